"""Scales of one weight: per tensor, per output channel, per block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.block_scales import power_scale, two_level_scale
from bitworth.calibration.scales import (
    UnusableScaleError,
    check_resolved,
    quantized_format,
    usable_scale,
)
from bitworth.lowering.scaling import StorageType, TensorScale
from bitworth.recipe.granularity import PerBlock, PerChannel
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site

REDUCED_LIMIT = 63


def weight_scale(weight: NDArray[np.generic], site: Site, quantize: Quantize) -> TensorScale:
    """Return the scales of a weight, always symmetric.

    Shape ``()``, one for each index of ``site.weight_axis``, or for blocks of ``size`` along
    ``site.block_axis`` the weight's shape with that axis divided by ``size``, rounded up: the last
    block may be short. int8: amax / 127, or / 63 in the reduced range; int4: amax / 7; fp8: amax /
    448 or / 57344. nvfp4 and mxfp8 have blocks of their own (see ``block_scales``).

    A channel, block or tensor of zeros gets scale 1. One so small that its own scale would
    underflow, beside others that do not, gets the smallest usable one: still finer than a scale for
    the whole tensor. A ConvTranspose with groups has out_channels / groups indices on its axis:
    each is shared by one channel of every group, as DequantizeLinear cannot tell them apart.

    Args:
        weight: as stored, ``site.weight_shape``, any float type.
        site: whose weight it is.
        quantize: with no ``auto`` left.

    Raises:
        UnusableScaleError: a weight is not finite, or the scales leave the range of
            ``site.dtype``.
        ValueError: the entry is not resolved, or its format has no scales.
    """
    kind = quantized_format(quantize)
    storage: StorageType = "int8" if kind.element == "float" else kind.element
    axis, block = _cut(site, quantize, kind.block)
    amax = weight_amax(weight, axis, block)
    if not np.isfinite(amax).all():
        raise UnusableScaleError("it holds values that are not finite")
    if kind.scale == "e8m0":
        return TensorScale(storage, power_scale(amax), axis=axis, block=block, scale_storage="e8m0")
    if kind.scale == "fp8_e4m3":
        scale, whole = two_level_scale(amax)
        return TensorScale(
            storage, scale, axis=axis, block=block, scale_storage="fp8_e4m3", tensor_scale=whole
        )
    limit = None
    if kind.name == "int8":
        check_resolved(quantize, "weight_range")
        limit = REDUCED_LIMIT if quantize.weight_range == "reduced" else None
    levels = kind.largest if limit is None else float(limit)
    scale = usable_scale(amax, levels, site.dtype)
    return TensorScale(storage, scale, axis=axis, limit=limit, block=block)


def weight_amax(
    weight: NDArray[np.generic], axis: int | None, block: int | None = None
) -> NDArray[np.float64]:
    """Largest magnitudes of a weight: of all of it, each index of ``axis``, or blocks along it.

    Shape ``()``, ``(channels,)``, or the weight's with ``axis`` divided by ``block``, rounded up.
    """
    # Two reductions in the weight's own type: exact, and no copy of a large weight.
    lowest, highest = (
        _reduced(reduce, weight, axis, block).astype(np.float64) for reduce in (np.min, np.max)
    )
    return np.asarray(np.maximum(-lowest, highest))


def _reduced(
    reduce: Callable[..., NDArray[np.generic]],
    weight: NDArray[np.generic],
    axis: int | None,
    block: int | None,
) -> NDArray[np.generic]:
    if axis is None or block is None:
        others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
        return reduce(weight, axis=others)
    # The whole blocks as an axis of their own (30 times faster than reduceat), then the short one.
    before, after = weight.shape[:axis], weight.shape[axis + 1 :]
    blocks = weight.shape[axis] // block
    along = (slice(None),) * axis
    whole = weight[(*along, slice(0, blocks * block))]
    parts = [reduce(whole.reshape(*before, blocks, block, *after), axis=axis + 1)]
    if blocks * block < weight.shape[axis]:
        short = weight[(*along, slice(blocks * block, None))]
        parts.append(reduce(short, axis=axis, keepdims=True))
    return np.concatenate(parts, axis=axis)


def _cut(site: Site, quantize: Quantize, block: int | None) -> tuple[int | None, int | None]:
    """The axis along which scales differ, and the size of blocks where there are any."""
    if block is not None:
        return site.block_axis, block
    if isinstance(quantize.weights, PerBlock):
        return site.block_axis, quantize.weights.size
    return site.weight_axis if isinstance(quantize.weights, PerChannel) else None, None
