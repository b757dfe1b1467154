"""Scales and zero points: what keeps them usable, and those of one activation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.ranges import activation_range
from bitworth.calibration.statistics import RangeStatistics
from bitworth.lowering.scaling import StorageType, TensorScale
from bitworth.recipe.formats import FORMATS
from bitworth.recipe.recipe import Quantize


class UnusableScaleError(Exception):
    """No scale represents a tensor; the message is the reason, to be listed with the site."""


def activation_scale(
    statistics: RangeStatistics, quantize: Quantize, *, dtype: str = "float32"
) -> TensorScale:
    """Return the scale of an activation, shape ``()``, under a resolved recipe entry.

    With amax the larger end of the range: int8 symmetric: s8 amax / 127; u8 with zero point 0 and
    amax / 255 for a tensor that was never negative, else 128 and amax / 127. int8 asymmetric: the
    range is widened to hold zero, which is then exact; (high - low) / 255. fp8_e4m3: amax / 448.
    A tensor that is always zero gets scale 1. Computed in fp64, rounded to fp32.

    Args:
        statistics: what calibration saw.
        quantize: with no ``auto`` left.
        dtype: element type of the tensor in the graph: the scale has to hold in it as well.

    Raises:
        UnusableScaleError: no finite value was seen, or the scale leaves the type's range.
        ValueError: the entry is not resolved, or its format has no scales.
    """
    if not statistics.count:
        raise UnusableScaleError("calibration saw no finite value of it")
    if quantize.format == "fp8_e4m3":
        low, high = activation_range(statistics, quantize.calibrator)
        return TensorScale(
            "fp8_e4m3", usable_scale(max(-low, high), largest(quantize.format), dtype)
        )
    check_resolved(quantize)
    nonnegative = statistics.minimum >= 0.0
    unsigned = quantize.sign == "u8" or (quantize.sign == "by_range" and nonnegative)
    storage: StorageType = "uint8" if unsigned else "int8"
    symmetric = quantize.zero_point == "symmetric"
    low, high = activation_range(statistics, quantize.calibrator, symmetric=symmetric)
    if symmetric:
        if unsigned and nonnegative:
            return TensorScale(storage, usable_scale(high, 255.0, dtype))
        return TensorScale(
            storage, usable_scale(max(-low, high), 127.0, dtype), 128 if unsigned else 0
        )
    low, high = min(low, 0.0), max(high, 0.0)
    # Halved, as the difference of two floats can be beyond the largest one.
    scale = usable_scale(high / 2.0 - low / 2.0, 127.5, dtype)
    # -low / scale lies within 0..255 but for the rounding of the scale.
    zero_point = min(max(round(-low / float(scale)), 0), 255)
    return TensorScale(storage, scale, zero_point if unsigned else zero_point - 128)


def smallest_scale(dtype: str) -> float:
    """Smallest scale that still does its work in ``dtype``.

    float32 (and any other type): the smallest normal number. float16 goes on into its denormals,
    which lose digits: at 2**-17 the scale is off by at most 1/256, which moves the largest of 127
    levels by half a step, as much as rounding does.
    """
    return 2.0**-17 if dtype == "float16" else float(np.finfo(np.float32).smallest_normal)


def usable_scale(
    amax: float | NDArray[np.float64], levels: float, dtype: str
) -> NDArray[np.float32]:
    """``amax / levels`` as scales that ``dtype`` can hold; 1 for what is always zero.

    Args:
        amax: largest magnitudes, shape ``()`` or one a scale.
        levels: what the largest magnitude becomes.
        dtype: element type of the tensor in the graph.

    Raises:
        UnusableScaleError: all scales underflow, or one overflows.
    """
    magnitude = np.asarray(amax, np.float64)
    wanted = magnitude / levels
    widest = float(wanted.max())
    if 0.0 < widest < smallest_scale(dtype):
        raise UnusableScaleError(f"its scale of {widest:.3g} underflows in {dtype}")
    with np.errstate(over="ignore"):
        scale = np.where(magnitude > 0.0, np.maximum(wanted, smallest_scale(dtype)), 1.0)
        stored = np.asarray(scale, np.float32)
        used = stored.astype(np.float16 if dtype == "float16" else np.float32)
    if not np.isfinite(used).all():
        raise UnusableScaleError(f"its scale of {widest:.3g} overflows in {dtype}")
    return stored


def largest(name: str) -> float:
    """Largest finite magnitude of a format."""
    return FORMATS[name].largest


def check_resolved(quantize: Quantize) -> None:
    """Raise ValueError unless ``quantize`` is int8 with no ``auto`` left."""
    if quantize.format != "int8":
        raise ValueError(f"format '{quantize.format}' has no scales")
    if "auto" in (quantize.sign, quantize.zero_point, quantize.weight_range):
        raise ValueError(f"the recipe of group '{quantize.group}' still holds 'auto'; resolve it")
