"""Statistics made of other statistics: of tensors under one scale, of tensors that are rescaled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.statistics import FINEST, RangeAccumulator, RangeStatistics


def merged(statistics: Iterable[RangeStatistics]) -> RangeStatistics:
    """Return the statistics of several tensors together, as for one scale that they share.

    They are those that one accumulator would have that had seen every value of every tensor,
    whatever the order; without channel extremes. Of a tensor that holds none but non-finite values,
    only their count enters. Where only the extremes of one tensor are known, so they are of all.
    """
    whole = RangeAccumulator()
    for part in statistics:
        whole.absorb(part)
    return whole.finish()


def rescaled(statistics: RangeStatistics, factors: NDArray[np.floating]) -> RangeStatistics:
    """Return the statistics of a tensor after each of its channels is divided by its factor.

    The extremes are exact, and so are the counts; a histogram over all channels cannot follow, so
    the result's ``shape_known`` is false and no calibrator but ``max`` takes it.

    Args:
        statistics: with channel extremes.
        factors: shape ``(channels,)``; finite and positive. Divided in float64.

    Raises:
        ValueError: there are no channel extremes, or the factors do not fit them.
    """
    low, high = statistics.channel_minimum, statistics.channel_maximum
    if low is None or high is None:
        raise ValueError("a tensor can be rescaled only when its channels' extremes were observed")
    divisors = np.asarray(factors, np.float64)
    if divisors.shape != low.shape:
        raise ValueError(f"{low.size} channels take as many factors, not shape {divisors.shape}")
    if not (np.isfinite(divisors).all() and (divisors > 0.0).all()):
        raise ValueError("the factors of channels have to be finite and positive")
    low, high = low / divisors, high / divisors
    return replace(
        statistics,
        minimum=float(low.min(initial=np.inf)) if low.size else 0.0,
        maximum=float(high.max(initial=-np.inf)) if high.size else 0.0,
        exponent=FINEST,
        histogram=np.zeros_like(statistics.histogram),
        tail=np.empty(0, np.float64),
        channel_minimum=low,
        channel_maximum=high,
        shape_known=False,
    )
