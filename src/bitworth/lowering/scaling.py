"""Scales and zero points of one lowered site: what calibration hands to lowering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.recipe.site import Site

StorageType = Literal["int8", "uint8", "fp8_e4m3"]


@dataclass(frozen=True)
class TensorScale:
    """How one tensor is quantized: q = saturate(round_half_even(x / scale) + zero_point).

    Attributes:
        storage: element type that QuantizeLinear yields.
        scale: float32, shape ``()`` for one scale or ``(channels,)``; finite and positive.
        zero_point: added after rounding; always 0 for fp8 and for per-channel scales.
        axis: the channel axis for per-channel scales, else None.
        limit: largest magnitude that the quantized value may take around the zero point
            (63 for a reduced int8 range); None for the whole range of the storage type.
    """

    storage: StorageType
    scale: NDArray[np.float32]
    zero_point: int = 0
    axis: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class QuantizedSite:
    """One site with all that its lowering needs.

    Attributes:
        site: the site, in the prepared graph.
        weight: how its weight is quantized.
        activation: how its activation input is quantized.
        output_value: name of the value at which its output is quantized, if it is.
        output: how that value is quantized.
    """

    site: Site
    weight: TensorScale
    activation: TensorScale
    output_value: str | None = None
    output: TensorScale | None = None
