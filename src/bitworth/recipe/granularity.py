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
    """One scale for each output channel: scale shape ``(out_channels,)``.

    The axis is the site's own (``Site.weight_axis``): 0 for Conv, 1 for ConvTranspose, 0 or 1 for
    Gemm by ``transB``, the last for MatMul.
    """

    kind: Literal["per_channel"] = "per_channel"


Granularity = PerTensor | PerChannel
PER_TENSOR = PerTensor()
PER_CHANNEL = PerChannel()
