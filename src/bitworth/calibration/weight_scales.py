"""Scales of one weight: per tensor, per output channel, per block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.scales import UnusableScaleError, check_resolved, largest, usable_scale
from bitworth.lowering.scaling import TensorScale
from bitworth.recipe.granularity import PerChannel
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site

REDUCED_LIMIT = 63


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
    amax = weight_amax(weight, axis)
    if not np.isfinite(amax).all():
        raise UnusableScaleError("it holds values that are not finite")
    if quantize.format == "fp8_e4m3":
        scale = usable_scale(amax, largest(quantize.format), site.dtype)
        return TensorScale("fp8_e4m3", scale, axis=axis)
    check_resolved(quantize)
    limit = REDUCED_LIMIT if quantize.weight_range == "reduced" else None
    scale = usable_scale(amax, 127.0 if limit is None else float(limit), site.dtype)
    return TensorScale("int8", scale, axis=axis, limit=limit)


def weight_amax(weight: NDArray[np.generic], axis: int | None) -> NDArray[np.float64]:
    """Largest magnitude of a weight, shape ``()``, or of each index of ``axis``."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # Two reductions in the weight's own type: exact, and no copy of a large weight.
    low = np.min(weight, axis=others).astype(np.float64)
    high = np.max(weight, axis=others).astype(np.float64)
    return np.asarray(np.maximum(-low, high))
