"""How many elements of a tensor share one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor: scale shape ``()``."""

    kind: Literal["per_tensor"] = "per_tensor"


@dataclass(frozen=True)
class PerChannel:
    """One scale for each channel: scale shape ``(channels,)``.

    Of a weight the axis is that of the output channels (``Site.weight_axis``): 0 for Conv, 1 for
    ConvTranspose, 0 or 1 for Gemm by ``transB``, the last for MatMul. Of an activation it is that
    of the channels (``Site.activation_axis``): 1 for convolutions, the last otherwise.
    """

    kind: Literal["per_channel"] = "per_channel"


@dataclass(frozen=True)
class PerBlock:
    """One scale for ``size`` neighbours along the axis that is summed (``Site.block_axis``).

    Scale shape: that of the tensor, with that axis divided by ``size``, rounded up. Shapes: a
    weight (K, N) of a MatMul with blocks of 32 has scales (K / 32, N).
    """

    size: int
    kind: Literal["block"] = "block"


@dataclass(frozen=True)
class PerRow:
    """One scale for each row of an activation, from its values: shape (rows, 1).

    A row is what a product multiplies by the weight: a token, or a position of an image.
    """

    kind: Literal["per_row"] = "per_row"


Granularity = PerTensor | PerChannel | PerBlock | PerRow
PER_TENSOR = PerTensor()
PER_CHANNEL = PerChannel()
PER_ROW = PerRow()
