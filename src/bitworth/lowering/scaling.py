"""Scales and zero points of one lowered site: what calibration hands to lowering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.recipe.site import Site

StorageType = Literal["int8", "uint8", "int4", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"]
ScaleStorage = Literal["float", "fp8_e4m3", "e8m0"]


@dataclass(frozen=True)
class TensorScale:
    """How one tensor is quantized: q = saturate(round_half_even(x / scale) + zero_point).

    Attributes:
        storage: element type that QuantizeLinear yields.
        scale: float32, shape ``()`` for one scale, ``(channels,)``, or for blocks the tensor's
            shape with ``axis`` divided by ``block``, rounded up; finite and positive. Where
            ``scale_storage`` is fp8_e4m3, these are the numbers that E4M3 holds, and what divides
            is their product with ``tensor_scale``.
        zero_point: added after rounding; always 0 for fp8 and fp4, for per-channel scales and for
            blocks.
        axis: the channel axis for per-channel scales, the axis that is cut for blocks, else None.
        limit: largest magnitude that the quantized value may take around the zero point
            (63 for a reduced int8 range); None for the whole range of the storage type, which for
            int8 and int4 weights is -127..127 and -7..7 by their scales.
        block: elements along ``axis`` that share a scale.
        scale_storage: how a scale is stored: in the data's float type, as E4M3, or as a power of
            two (E8M0); every number in ``scale`` is one that this type holds.
        tensor_scale: the fp32 number that multiplies all E4M3 scales; None without them.
    """

    storage: StorageType
    scale: NDArray[np.float32]
    zero_point: int = 0
    axis: int | None = None
    limit: int | None = None
    block: int | None = None
    scale_storage: ScaleStorage = "float"
    tensor_scale: float | None = None


@dataclass(frozen=True)
class DynamicScale:
    """How an activation is quantized with scales that its values give at run time.

    int8 (storage ``uint8``): one scale and zero point for the tensor from its minimum and maximum,
    as ONNX's DynamicQuantizeLinear defines. Blocks run along the last axis.

    Attributes:
        storage: element type.
        block: elements that share a scale; None: the whole tensor.
        scale_storage: how the scales are stored.
        tensor_scale: the static fp32 number above E4M3 scales; None without them.
    """

    storage: StorageType
    block: int | None = None
    scale_storage: ScaleStorage = "float"
    tensor_scale: float | None = None


ActivationScale = TensorScale | DynamicScale


@dataclass(frozen=True)
class QuantizedSite:
    """One site with all that its lowering needs.

    Attributes:
        site: the site, in the prepared graph.
        weight: how its weight is quantized; None for a product of two activations.
        activation: how its activation input is quantized; None: it is left alone.
        output_value: name of the value at which its output is quantized, if it is.
        output: how that value is quantized.
        second: how the second activation is quantized, for a product of two.
        compute: float type that the site computes in, numpy's name; None: that of the graph.
    """

    site: Site
    weight: TensorScale | None
    activation: ActivationScale | None
    output_value: str | None = None
    output: TensorScale | None = None
    second: ActivationScale | None = None
    compute: str | None = None
