"""Ranges to scales and zero points: for one activation, and for one weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.statistics import RangeStatistics
from bitworth.lowering.scaling import StorageType, TensorScale
from bitworth.recipe.formats import FORMATS
from bitworth.recipe.granularity import PerChannel
from bitworth.recipe.recipe import Calibrator, Quantize
from bitworth.recipe.site import Site

REDUCED_LIMIT = 63


class UnusableScaleError(Exception):
    """No scale represents a tensor; the message is the reason, to be listed with the site."""


def activation_range(
    statistics: RangeStatistics, calibrator: Calibrator, *, symmetric: bool = True
) -> tuple[float, float]:
    """Return the range (low, high) that is to be represented, within the extremes seen.

    ``max``: the extremes. ``percentile``: for a symmetric range the quantile of |x| bounds both
    ends; else half of what is cut is cut at each end. Where that leaves nothing of a tensor that is
    not zero (nearly all of it is zeros), the extremes.
    """
    low, high = statistics.minimum, statistics.maximum
    if calibrator.name == "max":
        return low, high
    kept = calibrator.percentile / 100.0
    if symmetric:
        largest = statistics.magnitude_quantile(kept)
        cut = max(low, -largest), min(high, largest)
    else:
        cut = statistics.quantile((1.0 - kept) / 2.0), statistics.quantile((1.0 + kept) / 2.0)
    return cut if cut != (0.0, 0.0) else (low, high)


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
        return TensorScale("fp8_e4m3", _scale(max(-low, high), _largest(quantize.format), dtype))
    _check_resolved(quantize)
    nonnegative = statistics.minimum >= 0.0
    unsigned = quantize.sign == "u8" or (quantize.sign == "by_range" and nonnegative)
    storage: StorageType = "uint8" if unsigned else "int8"
    symmetric = quantize.zero_point == "symmetric"
    low, high = activation_range(statistics, quantize.calibrator, symmetric=symmetric)
    if symmetric:
        if unsigned and nonnegative:
            return TensorScale(storage, _scale(high, 255.0, dtype))
        return TensorScale(storage, _scale(max(-low, high), 127.0, dtype), 128 if unsigned else 0)
    low, high = min(low, 0.0), max(high, 0.0)
    # Halved, as the difference of two floats can be beyond the largest one.
    scale = _scale(high / 2.0 - low / 2.0, 127.5, dtype)
    # -low / scale lies within 0..255 but for the rounding of the scale.
    zero_point = min(max(round(-low / float(scale)), 0), 255)
    return TensorScale(storage, scale, zero_point if unsigned else zero_point - 128)


def weight_scale(weight: NDArray[np.generic], site: Site, quantize: Quantize) -> TensorScale:
    """Return the scale of a weight: shape ``()``, or one for each index of ``site.weight_axis``.

    amax / 127, or / 63 in the reduced range, or / 448 for fp8_e4m3; always symmetric. A channel or
    tensor of zeros gets scale 1. A channel so small that its own scale would underflow, beside
    others that do not, gets the smallest usable one: still finer than a scale for the whole tensor.
    A ConvTranspose with groups has out_channels / groups indices on its axis: each is shared by one
    channel of every group, as DequantizeLinear cannot tell them apart.

    Args:
        weight: as stored, ``site.weight_shape``, any float type.
        site: whose weight it is.
        quantize: with no ``auto`` left.

    Raises:
        UnusableScaleError: a weight is not finite, or the scales leave the range of
            ``site.dtype``.
        ValueError: the entry is not resolved, or its format has no scales.
    """
    axis = site.weight_axis if isinstance(quantize.weights, PerChannel) else None
    largest = weight_amax(weight, axis)
    if not np.isfinite(largest).all():
        raise UnusableScaleError("it holds values that are not finite")
    if quantize.format == "fp8_e4m3":
        scale = _scale(largest, _largest(quantize.format), site.dtype)
        return TensorScale("fp8_e4m3", scale, axis=axis)
    _check_resolved(quantize)
    limit = REDUCED_LIMIT if quantize.weight_range == "reduced" else None
    scale = _scale(largest, 127.0 if limit is None else float(limit), site.dtype)
    return TensorScale("int8", scale, axis=axis, limit=limit)


def weight_amax(weight: NDArray[np.generic], axis: int | None) -> NDArray[np.float64]:
    """Largest magnitude of a weight, shape ``()``, or of each index of ``axis``."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # Two reductions in the weight's own type: exact, and no copy of a large weight.
    low = np.min(weight, axis=others).astype(np.float64)
    high = np.max(weight, axis=others).astype(np.float64)
    return np.asarray(np.maximum(-low, high))


def smallest_scale(dtype: str) -> float:
    """Smallest scale that still does its work in ``dtype``.

    float32 (and any other type): the smallest normal number. float16 goes on into its denormals,
    which lose digits: at 2**-17 the scale is off by at most 1/256, which moves the largest of 127
    levels by half a step, as much as rounding does.
    """
    return 2.0**-17 if dtype == "float16" else float(np.finfo(np.float32).smallest_normal)


def _scale(amax: float | NDArray[np.float64], levels: float, dtype: str) -> NDArray[np.float32]:
    largest = np.asarray(amax, np.float64)
    wanted = largest / levels
    widest = float(wanted.max())
    if 0.0 < widest < smallest_scale(dtype):
        raise UnusableScaleError(f"its scale of {widest:.3g} underflows in {dtype}")
    with np.errstate(over="ignore"):
        scale = np.where(largest > 0.0, np.maximum(wanted, smallest_scale(dtype)), 1.0)
        stored = np.asarray(scale, np.float32)
        used = stored.astype(np.float16 if dtype == "float16" else np.float32)
    if not np.isfinite(used).all():
        raise UnusableScaleError(f"its scale of {widest:.3g} overflows in {dtype}")
    return stored


def _largest(name: str) -> float:
    return FORMATS[name].largest


def _check_resolved(quantize: Quantize) -> None:
    if quantize.format != "int8":
        raise ValueError(f"format '{quantize.format}' has no scales")
    if "auto" in (quantize.sign, quantize.zero_point, quantize.weight_range):
        raise ValueError(f"the recipe of group '{quantize.group}' still holds 'auto'; resolve it")
