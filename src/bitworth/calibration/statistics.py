"""Streaming range statistics of one tensor: extremes, counts and a histogram that grows exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Bins on each side of zero. A power of two, so that a bin's width is one as well and scaling a
# value to its bin is exact in binary floating point.
BINS = 4096
# Largest magnitudes kept as they are, beside the histogram. They cost 32 KiB and buy two things:
# the extreme percentiles of large tensors are exact, and a few outliers do not widen the bins that
# everything else falls in.
TAIL = 4096
# The finest histogram covers |x| < 2**-114: its bins are 2**-126 wide, the smallest normal float32.
FINEST = -114
# Elements handled at a time: the temporaries (float32 and int16) stay in the processor's cache.
CHUNK = 1 << 16

# Index of the histogram's central bin, and the exponent of BINS.
CENTRE = BINS - 1
BITS = BINS.bit_length() - 1


@dataclass(frozen=True, eq=False)
class RangeStatistics:
    """What calibration keeps of one tensor, over all samples.

    The histogram's bin k, at index k + BINS - 1, counts the values x with trunc(x / width) = k: it
    is symmetric about zero and its central bin covers (-width, width), zeros included. Together
    ``histogram`` and ``tail`` hold every finite value once. All of it depends on the values alone,
    not on their order or on how they were split into samples.

    Attributes:
        minimum: smallest finite value; 0 when there is none.
        maximum: largest finite value; 0 when there is none.
        count: finite values seen.
        zeros: those that are exactly zero.
        nonfinite: NaN and infinite values seen; they enter nothing else.
        exponent: the histogram holds the values with |x| < 2**exponent; the smallest exponent (but
            at least ``FINEST``) that leaves no more than ``TAIL`` values outside.
        histogram: int64, shape (2 * BINS - 1,).
        tail: float64, sorted: the values with |x| >= 2**exponent.
        channel_minimum: float64, shape (channels,): smallest finite value of each channel, 0 where
            there is none; None when it was not asked for.
        channel_maximum: largest finite values, likewise.
        shape_known: whether ``histogram`` and ``tail`` hold the values. They are empty when only
            the extremes are known, as after a change of the channels' scales.
    """

    minimum: float
    maximum: float
    count: int
    zeros: int
    nonfinite: int
    exponent: int
    histogram: NDArray[np.int64]
    tail: NDArray[np.float64]
    channel_minimum: NDArray[np.float64] | None = None
    channel_maximum: NDArray[np.float64] | None = None
    shape_known: bool = True

    @property
    def amax(self) -> float:
        """Largest finite magnitude."""
        return max(-self.minimum, self.maximum)

    @property
    def width(self) -> float:
        """Width of a histogram bin: a power of two."""
        return math.ldexp(1.0, self.exponent - BITS)

    def magnitude_quantile(self, share: float) -> float:
        """Quantile of |x|, interpolated as numpy's default does; at most one bin above the truth.

        Zeros and values in the tail are exact; a value in the histogram counts as its bin's outer
        edge. ``share`` is in [0, 1]. 0 when no finite value was seen. ValueError when only the
        extremes are known.
        """
        self.check_shape_known()
        folded = self.histogram[CENTRE:].copy()
        folded[1:] += self.histogram[:CENTRE][::-1]
        folded[0] -= self.zeros
        counts = np.concatenate([[self.zeros], folded, np.ones(self.tail.size, np.int64)])
        with np.errstate(over="ignore"):  # the outermost edge may lie beyond float64
            edges = np.minimum(np.arange(BINS + 1) * self.width, self.amax)
        levels = np.concatenate([edges, np.sort(np.abs(self.tail))])
        return _quantile(levels, counts, share)

    def quantile(self, share: float) -> float:
        """Quantile of x, interpolated as numpy's default does, within one bin of the truth.

        Values in the tail are exact; a value in the histogram counts as its bin's edge away from
        zero, one in the central bin as zero. ``share`` is in [0, 1]. 0 when no finite value was
        seen. ValueError when only the extremes are known.
        """
        self.check_shape_known()
        bins = np.arange(-CENTRE, BINS)
        with np.errstate(over="ignore"):
            edges = np.clip((bins + np.sign(bins)) * self.width, self.minimum, self.maximum)
        split = int(np.searchsorted(self.tail, 0.0))
        levels = np.concatenate([self.tail[:split], edges, self.tail[split:]])
        ones = np.ones(self.tail.size, np.int64)
        counts = np.concatenate([ones[:split], self.histogram, ones[split:]])
        return _quantile(levels, counts, share)

    def check_shape_known(self) -> None:
        """Raise ValueError when only the extremes are known."""
        if not self.shape_known:
            raise ValueError(
                "of a tensor whose channels were rescaled only the extremes are known: "
                "only max can be its calibrator"
            )


class RangeAccumulator:
    """Collects the statistics of one tensor, array by array, in constant memory."""

    def __init__(self) -> None:
        self._minimum = math.inf
        self._maximum = -math.inf
        self._count = 0
        self._zeros = 0
        self._nonfinite = 0
        self._exponent = FINEST
        self._histogram = np.zeros(2 * BINS - 1, np.int64)
        # Filled in place: what is allocated while a run's large arrays come and go sits in the gaps
        # that they leave, and the next run's then need new memory.
        self._tail_room = np.empty(TAIL, np.float64)
        self._tail = self._tail_room[:0]
        self._shape_known = True

    def add(self, values: NDArray[np.generic]) -> None:
        """Take in every element of ``values``, of any shape and any real number type.

        Raises:
            TypeError: the elements are not real numbers.
        """
        flat = values.reshape(-1)
        # Every float16, bfloat16 and float32 is a float32, and a float32 times a power of two is
        # exact: double precision would only cost time.
        exact: type[np.floating] = np.float64
        if flat.dtype == np.float32 or flat.dtype == np.float16 or flat.dtype.name == "bfloat16":
            exact = np.float32
        elif flat.dtype.kind not in "fiu":
            raise TypeError(f"ranges of {flat.dtype} elements cannot be observed")
        for start in range(0, flat.size, CHUNK):
            self._add_chunk(flat[start : start + CHUNK].astype(exact, copy=False))

    def absorb(self, other: RangeStatistics) -> None:
        """Take in all that ``other`` has seen, as if it had been added here.

        The channel extremes are not taken over. Once statistics of which only the extremes are
        known were taken in, no more is known of the whole.
        """
        self._nonfinite += other.nonfinite
        if not other.count:
            return
        self._count += other.count
        self._zeros += other.zeros
        self._minimum = min(self._minimum, other.minimum)
        self._maximum = max(self._maximum, other.maximum)
        self._shape_known &= other.shape_known
        # Neither exponent is larger than it has to be, so that of all the values is no smaller.
        if other.exponent > self._exponent:
            self._widen(other.exponent)
        self._histogram += widened(other.histogram, self._exponent - other.exponent)
        tail = np.concatenate([self._tail, other.tail])
        inside = np.frexp(tail)[1] <= self._exponent
        self._bin(self._scaled(tail[inside]))
        self._keep(tail[~inside])

    def finish(self) -> RangeStatistics:
        """Return the statistics of everything added so far."""
        seen = self._count > 0
        known = self._shape_known
        return RangeStatistics(
            minimum=self._minimum if seen else 0.0,
            maximum=self._maximum if seen else 0.0,
            count=self._count,
            zeros=self._zeros,
            nonfinite=self._nonfinite,
            exponent=self._exponent if known else FINEST,
            histogram=self._histogram.copy() if known else np.zeros_like(self._histogram),
            tail=np.sort(self._tail) if known else np.empty(0, np.float64),
            shape_known=known,
        )

    def _add_chunk(self, values: NDArray[np.floating]) -> None:
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = values[np.isfinite(values)]
            self._nonfinite += values.size - finite.size
            if not finite.size:
                return
            values = finite
            low, high = float(values.min()), float(values.max())
        self._count += values.size
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        if low <= 0.0 <= high:
            self._zeros += values.size - int(np.count_nonzero(values))
        scaled = self._scaled(values)
        if max(-low, high) * self._per_width() < BINS:
            self._bin(scaled)
            return
        outside = np.flatnonzero(np.abs(scaled) >= BINS)
        scaled[outside] = 0
        self._bin(scaled)
        self._histogram[CENTRE] -= outside.size
        self._keep(np.concatenate([self._tail, values[outside].astype(np.float64)]))

    def _per_width(self) -> float:
        return math.ldexp(1.0, BITS - self._exponent)

    def _scaled(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        # An overflow to infinity is a value far outside; it goes to the tail as it was.
        with np.errstate(over="ignore"):
            return values * values.dtype.type(self._per_width())

    def _bin(self, scaled: NDArray[np.floating]) -> None:
        index = scaled.astype(np.int16)  # truncates towards zero, as the bins are defined
        index += CENTRE
        self._histogram += np.bincount(index, minlength=2 * BINS - 1)

    def _keep(self, tail: NDArray[np.float64]) -> None:
        """Make ``tail`` the tail, and double the range until no more than ``TAIL`` are in it."""
        if tail.size > TAIL:
            exponents = np.frexp(tail)[1]  # |x| < 2**exponent, as tightly as possible
            place = tail.size - TAIL - 1
            grown = int(np.partition(exponents, place)[place])
            self._widen(grown)
            inside = exponents <= grown
            self._bin(self._scaled(tail[inside]))
            tail = tail[~inside]
        self._tail = self._tail_room[: tail.size]
        self._tail[:] = tail

    def _widen(self, exponent: int) -> None:
        self._histogram[:] = widened(self._histogram, exponent - self._exponent)
        self._exponent = exponent


def widened(histogram: NDArray[np.int64], doublings: int) -> NDArray[np.int64]:
    """Merge pairs of bins away from zero: the same as binning again at twice the width."""
    for _ in range(min(doublings, BITS)):  # then everything is in the central bin
        wider = np.zeros_like(histogram)
        middle = histogram[CENTRE]
        up = histogram[CENTRE:].reshape(-1, 2).sum(axis=1)
        down = histogram[CENTRE::-1].reshape(-1, 2).sum(axis=1)
        wider[CENTRE : CENTRE + up.size] = up
        wider[CENTRE - down.size + 1 : CENTRE] = down[:0:-1]
        wider[CENTRE] += down[0] - middle
        histogram = wider
    return histogram


def _quantile(levels: NDArray[np.float64], counts: NDArray[np.int64], share: float) -> float:
    """Quantile of ``counts[i]`` copies of each ``levels[i]``, which ascend."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a quantile's share lies between 0 and 1, not {share}")
    total = np.cumsum(counts)
    if not total[-1]:
        return 0.0
    rank = share * (int(total[-1]) - 1)
    below = math.floor(rank)
    first, second = (
        float(levels[np.searchsorted(total, place, side="right")])
        for place in (below, min(below + 1, int(total[-1]) - 1))
    )
    if first == second:
        return first
    # The two-sided form neither overflows nor leaves the interval when both ends are extreme.
    return first * (1.0 - (rank - below)) + second * (rank - below)
