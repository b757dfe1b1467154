"""Scales and zero points: what keeps them usable, and those of one activation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from bitworth.calibration.ranges import activation_range
from bitworth.calibration.statistics import RangeStatistics
from bitworth.lowering.scaling import ActivationScale, DynamicScale, StorageType, TensorScale
from bitworth.recipe.formats import FORMATS, Format
from bitworth.recipe.recipe import Quantize

# Largest E4M3 number: what the largest block scale becomes under a tensor's scale.
LARGEST_E4M3 = 448.0
_DTYPES: dict[str, DTypeLike] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_DYNAMIC_INT8 = DynamicScale("uint8")


class UnusableScaleError(Exception):
    """No scale represents a tensor; the message is the reason, to be listed with the site."""


def activation_scale(
    statistics: RangeStatistics | None,
    quantize: Quantize,
    *,
    dtype: str = "float32",
    axis: int | None = None,
) -> ActivationScale:
    """Return the scale of an activation under a resolved recipe entry.

    Static, shape ``()``, with amax the larger end of the range: int8 symmetric: s8 amax / 127; u8
    with zero point 0 and amax / 255 for a tensor that was never negative, else 128 and amax / 127.
    int8 asymmetric: the range is widened to hold zero, which is then exact; (high - low) / 255.
    fp8: amax / 448 or / 57344. Static, shape ``(channels,)``: int8 s8 amax / 127 and fp8 as before,
    of each channel's extremes, held to the range that the calibrator keeps of the whole tensor.
    What is always zero gets scale 1. Computed in fp64, rounded to ``dtype``.

    Dynamic: nothing of the statistics for int8 and mxfp8 (blocks of 32 under a power of two); for
    nvfp4 (blocks of 16 under E4M3) the tensor's scale amax / (6 * 448), in fp32.

    Args:
        statistics: what calibration saw; None only where nothing of it is needed.
        quantize: with no ``auto`` left.
        dtype: element type of the tensor in the graph: the scale has to hold in it as well.
        axis: that of the channels, for one scale each.

    Raises:
        UnusableScaleError: no finite value was seen, or the scale leaves the type's range.
        ValueError: the entry is not resolved, its format has no such scales, or the statistics that
            they need are missing.
    """
    kind = quantized_format(quantize)
    if kind.weights_only or quantize.scheme == "weight_only":
        raise ValueError(f"group '{quantize.group}' leaves activations alone")
    if statistics is not None and not statistics.count:
        raise UnusableScaleError("calibration saw no finite value of it")
    if quantize.scheme == "dynamic":
        return _dynamic(statistics, quantize, kind)
    if statistics is None:
        raise ValueError("static scales need statistics")
    if kind.block is not None:
        raise ValueError(f"format '{kind.name}' has no static scales for activations")
    if axis is not None:
        return _per_channel(statistics, quantize, kind, dtype, axis)
    if kind.element in ("fp8_e4m3", "fp8_e5m2"):
        amax = _amax(statistics, quantize)
        return TensorScale(kind.element, usable_scale(amax, kind.largest, dtype))
    return _int8(statistics, quantize, dtype)


def smallest_scale(dtype: str) -> float:
    """Smallest scale that still does its work in ``dtype``.

    float32 (and any other type): the smallest normal number, which bfloat16 has too. float16 goes
    on into its denormals, which lose digits: at 2**-17 the scale is off by at most 1/256, which
    moves the largest of 127 levels by half a step, as much as rounding does.
    """
    return 2.0**-17 if dtype == "float16" else float(np.finfo(np.float32).smallest_normal)


def usable_scale(
    amax: float | NDArray[np.float64], levels: float, dtype: str
) -> NDArray[np.float32]:
    """``amax / levels``, rounded to numbers of ``dtype``; 1 for what is always zero.

    Args:
        amax: largest magnitudes, shape ``()`` or one a scale.
        levels: what the largest magnitude becomes.
        dtype: element type of the tensor in the graph: the type that its scales are stored in.

    Raises:
        UnusableScaleError: all scales underflow, or one overflows.
    """
    magnitude = np.asarray(amax, np.float64)
    wanted = magnitude / levels
    widest = float(wanted.max(initial=0.0))
    if 0.0 < widest < smallest_scale(dtype):
        raise UnusableScaleError(f"its scale of {widest:.3g} underflows in {dtype}")
    with np.errstate(over="ignore"):
        scale = np.where(magnitude > 0.0, np.maximum(wanted, smallest_scale(dtype)), 1.0)
        stored = np.asarray(scale, _DTYPES.get(dtype, np.float32)).astype(np.float32)
    if not np.isfinite(stored).all():
        raise UnusableScaleError(f"its scale of {widest:.3g} overflows in {dtype}")
    return stored


def quantized_format(quantize: Quantize) -> Format:
    """The format of an entry.

    Raises:
        ValueError: it does not quantize.
    """
    kind = FORMATS.get(quantize.format)
    if kind is None or kind.role != "quantized":
        raise ValueError(f"format '{quantize.format}' has no scales")
    return kind


def check_resolved(quantize: Quantize, *choices: str) -> None:
    """Raise ValueError when one of these fields of ``quantize`` is still ``auto``."""
    if any(getattr(quantize, choice) == "auto" for choice in choices):
        raise ValueError(f"the recipe of group '{quantize.group}' still holds 'auto'; resolve it")


def _amax(statistics: RangeStatistics, quantize: Quantize) -> float:
    low, high = activation_range(statistics, quantize.calibrator, format=quantize.format)
    return max(-low, high)


def _dynamic(statistics: RangeStatistics | None, quantize: Quantize, kind: Format) -> DynamicScale:
    if kind.name == "int8":
        return _DYNAMIC_INT8
    if kind.block is None:
        raise ValueError(f"format '{kind.name}' has no dynamic scales")
    element: StorageType = "fp4_e2m1" if kind.element == "fp4_e2m1" else "fp8_e4m3"
    if kind.scale != "fp8_e4m3":
        return DynamicScale(element, kind.block, kind.scale)
    if statistics is None:
        raise ValueError("a tensor's scale needs statistics")
    levels = kind.largest * LARGEST_E4M3
    whole = usable_scale(_amax(statistics, quantize), levels, "float32")
    return DynamicScale(element, kind.block, kind.scale, float(whole))


def _per_channel(
    statistics: RangeStatistics, quantize: Quantize, kind: Format, dtype: str, axis: int
) -> TensorScale:
    low, high = statistics.channel_minimum, statistics.channel_maximum
    if low is None or high is None:
        raise ValueError("the extremes of its channels were not observed")
    amax = np.minimum(np.maximum(-low, high), _amax(statistics, quantize))
    levels = 127.0 if kind.name == "int8" else kind.largest
    storage: StorageType = "int8" if kind.element == "float" else kind.element
    return TensorScale(storage, usable_scale(amax, levels, dtype), axis=axis)


def _int8(statistics: RangeStatistics, quantize: Quantize, dtype: str) -> TensorScale:
    check_resolved(quantize, "sign", "zero_point")
    nonnegative = statistics.minimum >= 0.0
    unsigned = quantize.sign == "u8" or (quantize.sign == "by_range" and nonnegative)
    storage: StorageType = "uint8" if unsigned else "int8"
    symmetric = quantize.zero_point == "symmetric"
    low, high = activation_range(
        statistics, quantize.calibrator, symmetric=symmetric, format="int8", unsigned=unsigned
    )
    if symmetric:
        if unsigned and nonnegative:
            return TensorScale(storage, usable_scale(high, 255.0, dtype))
        amax = max(-low, high)
        return TensorScale(storage, usable_scale(amax, 127.0, dtype), 128 if unsigned else 0)
    low, high = min(low, 0.0), max(high, 0.0)
    # Halved, as the difference of two floats can be beyond the largest one.
    scale = usable_scale(high / 2.0 - low / 2.0, 127.5, dtype)
    # -low / scale lies within 0..255 but for the rounding of the scale.
    zero_point = min(max(round(-low / float(scale)), 0), 255)
    return TensorScale(storage, scale, zero_point if unsigned else zero_point - 128)
