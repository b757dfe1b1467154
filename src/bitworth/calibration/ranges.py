"""Statistics to a range: what each calibrator keeps of a tensor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.entropy import entropy_range
from bitworth.calibration.mse import asymmetric_mse_range, symmetric_mse_threshold
from bitworth.calibration.statistics import RangeStatistics
from bitworth.recipe.recipe import Calibrator

_FP8 = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}


def activation_range(
    statistics: RangeStatistics,
    calibrator: Calibrator,
    *,
    symmetric: bool = True,
    format: str = "int8",  # noqa: A002
    unsigned: bool = False,
) -> tuple[float, float]:
    """Return the range (low, high) that is to be represented, within the extremes seen.

    ``max``: the extremes. ``percentile``: for a symmetric range the quantile of |x| bounds both
    ends; else half of what is cut is cut at each end. ``entropy``: a threshold on |x| cuts both
    ends (`entropy.entropy_range`). ``mse``: the range whose quantizer has the smallest mean squared
    error; an end of an asymmetric one may lie up to one step beyond the extremes
    (`mse.asymmetric_mse_range`).

    Where a cut would leave nothing of a tensor that is not zero (nearly all of it is zeros), the
    extremes. No tensor is refused: (0, 0) for one of which nothing was seen. The result depends on
    the values alone, not on their order. It is not kept: ``entropy`` and ``mse`` take milliseconds.

    Args:
        statistics: what calibration saw.
        calibrator: how to choose.
        symmetric: whether zero is to be in the middle of the quantizer's levels. At zero's end, for
            ``unsigned``.
        format: what the levels are.
        unsigned: whether a symmetric int8 range without negative values gets all 255 steps.

    Raises:
        ValueError: the calibrator has no meaning for the format, or only the extremes are known and
            the calibrator is not ``max``.
    """
    low, high = statistics.minimum, statistics.maximum
    if calibrator.name == "max":
        return low, high
    statistics.check_shape_known()
    one_sided = symmetric and unsigned and low >= 0.0
    if calibrator.name == "percentile":
        cut = _percentile_range(statistics, calibrator.percentile / 100.0, symmetric=symmetric)
    elif calibrator.name == "entropy":
        if format != "int8":
            raise ValueError(f"the calibrator entropy has no meaning for the format {format}")
        steps = 127 if symmetric and not one_sided else 255
        cut = entropy_range(statistics, symmetric=symmetric, levels=steps)
    elif format == "int8" and not symmetric:
        cut = asymmetric_mse_range(statistics, 255)
    else:
        threshold = symmetric_mse_threshold(statistics, _levels(format, one_sided=one_sided))
        cut = max(low, -threshold), min(high, threshold)
    return cut if cut != (0.0, 0.0) else (low, high)


def _percentile_range(
    statistics: RangeStatistics, kept: float, *, symmetric: bool
) -> tuple[float, float]:
    if symmetric:
        largest = statistics.magnitude_quantile(kept)
        return max(statistics.minimum, -largest), min(statistics.maximum, largest)
    return statistics.quantile((1.0 - kept) / 2.0), statistics.quantile((1.0 + kept) / 2.0)


def _levels(name: str, *, one_sided: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a quantizer yields for positive and negative numbers, in units of its threshold."""
    if name == "int8":
        if one_sided:
            steps = np.arange(256) / 255.0
            return steps, steps
        return np.arange(128) / 127.0, np.arange(129) / 127.0  # it saturates at -128
    if name not in _FP8:
        raise ValueError(f"the calibrator mse has no meaning for the format {name}")
    codes = np.arange(128, dtype=np.uint8).view(_FP8[name]).astype(np.float64)
    finite = codes[np.isfinite(codes)]
    return finite / finite[-1], finite / finite[-1]
