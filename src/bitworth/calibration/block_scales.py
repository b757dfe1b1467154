"""Scales of the formats that fix their blocks: powers of two, and E4M3 under a tensor's scale."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn
from numpy.typing import NDArray

from bitworth.calibration.scales import (
    LARGEST_E4M3,
    UnusableScaleError,
    smallest_scale,
    usable_scale,
)

# Exponents of E4M3's largest number, and of E8M0's ends.
_E4M3_EXPONENT = 8
_E8M0_EXPONENTS = -127, 127
_LARGEST_E2M1 = 6.0
_SMALLEST_E4M3 = 2.0**-9


def power_scale(amax: NDArray[np.float64]) -> NDArray[np.float32]:
    """Scales of mxfp8 blocks: 2**(floor(log2(amax)) - 8), within 2**-127..2**127.

    OCP Microscaling formats (MX) specification 1.0, section 6.3: a block's largest number may lie
    above 448 times its scale, and saturates then. (Some libraries take the next power of two at or
    above amax / 448.) A block of zeros gets 1: any scale keeps it zero, and 2**-127, which is no
    normal fp32 number, may be flushed to zero by an engine, and zero over zero is NaN.

    Args:
        amax: largest magnitude of each block, any shape; the scales have the same.

    Raises:
        UnusableScaleError: all scales that are not 1 would be below 2**-127, or one above 2**127.
    """
    magnitude = np.asarray(amax, np.float64)
    wanted = np.frexp(magnitude)[1] - 1 - _E4M3_EXPONENT
    live = magnitude > 0.0
    low, high = _E8M0_EXPONENTS
    if live.any():
        widest = int(wanted[live].max())
        if not low <= widest <= high:
            what = "underflows" if widest < low else "overflows"
            raise UnusableScaleError(f"its scale of 2**{widest} {what} in e8m0")
    exponents = np.where(live, np.clip(wanted, low, high), 0)
    return np.asarray(np.ldexp(1.0, exponents), np.float32)


def two_level_scale(amax: NDArray[np.float64]) -> tuple[NDArray[np.float32], float]:
    """Scales of nvfp4 blocks, as E4M3 holds them, and the fp32 number that multiplies all.

    The tensor's scale is amax / (6 * 448) over all blocks, a block's E4M3(amax / (6 * tensor
    scale)), rounded half to even, in fp32, as NVIDIA's Model Optimizer computes them. A block of
    zeros gets 1. One whose scale would underflow gets the smallest: 2**-9, or what its product with
    the tensor's scale needs to be a normal number.

    Args:
        amax: largest magnitude of each block, any shape; the scales have the same.

    Raises:
        UnusableScaleError: the tensor's scale underflows or overflows in fp32.
    """
    magnitude = np.asarray(amax, np.float64)
    whole = usable_scale(magnitude.max(initial=0.0), _LARGEST_E2M1 * LARGEST_E4M3, "float32")
    wanted = magnitude.astype(np.float32) / (np.float32(_LARGEST_E2M1) * whole)
    smallest = max(_SMALLEST_E4M3, smallest_scale("float32") / float(whole))
    stored = np.clip(wanted, np.float32(smallest), np.float32(LARGEST_E4M3)).astype(float8_e4m3fn)
    scale = np.where(magnitude > 0.0, stored.astype(np.float32), np.float32(1.0))
    return np.asarray(scale, np.float32), float(whole)
