"""The range with the smallest mean squared error of the quantizer that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.statistics import BINS, CENTRE, RangeStatistics

Floats = NDArray[np.float64]

# Steps that are tried first: so many an octave, so many octaves down from the widest range. Below,
# one value at the widest range outweighs the rounding of nearly 10**9 others.
PER_OCTAVE = 12
OCTAVES = 12
# Then so many between the neighbours of each of the best places, then of the best.
FINE = 15
PLACES = 4
# Errors are taken to be equal within this share of the sum of squares.
TOLERANCE = 1e-12


def symmetric_mse_threshold(statistics: RangeStatistics, levels: tuple[Floats, Floats]) -> float:
    """Return the threshold t with the smallest error when x becomes the nearest of t * ``levels``.

    At most the largest magnitude, and the largest of equals; 0 for a tensor that is always zero.
    Values in a bin of the histogram count as spread evenly over it, those in the tail as they are.

    Args:
        statistics: what calibration saw; with its histogram.
        levels: what the quantizer yields for positive numbers, and the magnitudes of what it yields
            for negative ones: each ascending from 0, in units of t.
    """
    if statistics.amax == 0.0:
        return 0.0
    above, below = _sides(statistics)
    up, down = levels

    def errors(thresholds: Floats) -> Floats:
        rows = thresholds[:, None]
        return above.errors(rows * up)[:, -1] + below.errors(rows * down)[:, -1]

    def cut(thresholds: Floats) -> Floats:
        return above.cut(thresholds * up[-1]) + below.cut(thresholds * down[-1])

    return _smallest(errors, cut, above.square + below.square) * statistics.amax


def asymmetric_mse_range(statistics: RangeStatistics, steps: int) -> tuple[float, float]:
    """Return the ends (low, high) of the grid with the smallest error.

    The grid is a real quantizer's: ``steps`` equal steps, and zero is on it. The size of a step is
    searched for as `symmetric_mse_threshold` does; for each size, zero is tried at every place. So
    the ends are independent of each other, and lie up to a step beyond the extremes.
    """
    if statistics.amax == 0.0:
        return 0.0, 0.0
    above, below = _sides(statistics)
    amax = statistics.amax
    high, low = max(statistics.maximum, 0.0) / amax, min(statistics.minimum, 0.0) / amax
    widest = (high - low) / steps
    grid = widest * np.arange(steps + 1)

    def by_place(sizes: Floats) -> Floats:
        """Error of each size (row) with each number of steps above zero (column)."""
        knots = sizes[:, None] * grid
        return above.errors(knots) + below.errors(knots)[:, ::-1]

    size = _smallest(
        lambda sizes: by_place(sizes).min(axis=1),
        # No end lies further from zero than both ends from each other.
        lambda sizes: above.cut(sizes * grid[-1]) + below.cut(sizes * grid[-1]),
        above.square + below.square,
    )
    up = int(np.argmin(by_place(np.array([size]))[0]))
    step = size * widest
    # Multiplied last: the largest float may be the end of the range.
    return -(steps - up) * step * amax, up * step * amax


@dataclass(frozen=True)
class _Side:
    """Magnitudes of one sign in units of the largest: sorted intervals, evenly filled.

    Attributes:
        start: lower ends, ascending, the first a sentinel at 0 that holds nothing.
        end: upper ends; equal to the lower one for a value that is known exactly.
        count: values in each.
        before: sums of x**0, x**1 and x**2 over all intervals before each; shape (3, intervals).
        total: those sums over all of them.
    """

    start: Floats
    end: Floats
    count: Floats
    before: Floats
    total: Floats

    @property
    def square(self) -> float:
        return float(self.total[2])

    def errors(self, knots: Floats) -> Floats:
        """Sums of squared errors when each value becomes the nearest of some knots.

        Args:
            knots: shape (cases, levels), each row ascending from 0.

        Returns:
            Shape (cases, levels): column m is the error when the knots behind m are not there.
        """
        ends = (knots[:, 1:] + knots[:, :-1]) / 2.0
        below = self._sums_below(ends)
        inside = np.diff(below, axis=2, prepend=0.0)
        rounded = np.zeros_like(knots)
        rounded[:, 1:] = np.cumsum(_around(inside, knots[:, :-1]), axis=1)
        beyond = np.empty((3, *knots.shape))
        beyond[:, :, 0] = self.total[:, None]
        beyond[:, :, 1:] = self.total[:, None, None] - below
        return rounded + _around(beyond, knots)

    def cut(self, ends: Floats) -> Floats:
        """Sum of squared errors of what lies beyond each of ``ends``, when it becomes that."""
        return _around(self.total[:, None] - self._sums_below(ends), ends)

    def _sums_below(self, ends: Floats) -> Floats:
        place = np.searchsorted(self.start, ends, side="right") - 1
        start, stop = self.start[place], np.minimum(ends, self.end[place])
        length = self.end[place] - start
        share = np.divide(stop - start, length, out=np.ones_like(start), where=length > 0.0)
        held = self.count[place] * share
        sums = self.before[:, place]
        sums[0] += held
        sums[1] += held * (start + stop) / 2.0
        sums[2] += held * (start * start + start * stop + stop * stop) / 3.0
        return sums


def _around(sums: Floats, level: Floats) -> Floats:
    """Sum of (x - level)**2, from the sums of x**0, x**1 and x**2."""
    return np.asarray(sums[2] - level * (2.0 * sums[1] - level * sums[0]))


def _sides(statistics: RangeStatistics) -> tuple[_Side, _Side]:
    """The positive values, and the magnitudes of the negative ones; zeros are always exact."""
    up = statistics.histogram[CENTRE:].astype(np.float64)
    down = statistics.histogram[CENTRE::-1].astype(np.float64)
    near = up[0] - statistics.zeros
    share = up[1] / (up[1] + down[1]) if up[1] + down[1] > 0.0 else 0.5
    if statistics.minimum >= 0.0 or statistics.maximum <= 0.0:
        share = 1.0 if statistics.minimum >= 0.0 else 0.0
    up[0], down[0] = near * share, near * (1.0 - share)
    tail, low, high = statistics.tail, statistics.minimum, statistics.maximum
    return (
        _side(statistics, up, tail[tail > 0.0], (max(low, 0.0), max(high, 0.0))),
        _side(statistics, down, -tail[tail < 0.0][::-1], (max(-high, 0.0), max(-low, 0.0))),
    )


def _side(
    statistics: RangeStatistics, bins: Floats, tail: Floats, extremes: tuple[float, float]
) -> _Side:
    with np.errstate(over="ignore"):  # the outermost edge may lie beyond float64
        edges = np.clip(np.arange(BINS + 1) * statistics.width, *extremes)
    held = bins > 0.0
    start = np.concatenate([[0.0], edges[:-1][held], tail]) / statistics.amax
    end = np.concatenate([[0.0], edges[1:][held], tail]) / statistics.amax
    count = np.concatenate([[0.0], bins[held], np.ones(tail.size)])
    moments = [count, count * (start + end) / 2.0, count * (start**2 + start * end + end**2) / 3.0]
    sums = np.cumsum(np.pad(np.stack(moments), ((0, 0), (1, 0))), axis=1)
    return _Side(start, end, count, sums[:, :-1], sums[:, -1])


def _smallest(
    errors: Callable[[Floats], Floats], bound: Callable[[Floats], Floats], square: float
) -> float:
    """The place in (0, 1] where ``errors`` is smallest; the largest of equals.

    ``bound`` is no larger than ``errors``, grows downwards and is cheap; ``square`` is the tensor's
    sum of squares.
    """
    tried = np.exp2(-np.arange(PER_OCTAVE * OCTAVES + 1) / PER_OCTAVE)
    hopeful = int(np.count_nonzero(bound(tried) <= errors(tried[:1]) + TOLERANCE * square))
    tried = tried[: hopeful + 1]  # to the first that is worse: the best may lie just before it
    # A float's grid, and values that are few, make several minima: the best of all is not always
    # next to the best of these.
    tried = _around_places(tried, np.argsort(errors(tried), kind="stable")[:PLACES])
    tried = _around_places(tried, np.array([_first(errors(tried), square)]))
    return float(tried[_first(errors(tried), square)])


def _around_places(tried: Floats, places: NDArray[np.intp]) -> Floats:
    """Some of ``tried``, which descend, with ``FINE`` more between the neighbours of each."""
    above, below = tried[np.maximum(places - 1, 0)], tried[np.minimum(places + 1, tried.size - 1)]
    more = np.linspace(below, above, FINE + 2).ravel()
    return np.unique(np.concatenate([more, tried[places]]))[::-1]


def _first(found: Floats, square: float) -> int:
    return int(np.argmax(found <= found.min() + TOLERANCE * square))
