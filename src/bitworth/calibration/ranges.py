"""Statistics to a range: what each calibrator keeps of a tensor."""

from __future__ import annotations

from bitworth.calibration.statistics import RangeStatistics
from bitworth.recipe.recipe import Calibrator


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
