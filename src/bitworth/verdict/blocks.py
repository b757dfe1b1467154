"""The blocks of one session as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class SessionBlocks:
    """One session: the label and the time of each block, all of shape (rounds, k).

    Raises ValueError when the shapes differ or a row of ``order`` does not hold every label once.

    Attributes:
        order: int64, label at each position.
        value_ns: float64, median of the block's samples in ns. NaN: dropped or absent. A value
            that is not positive says that the clock failed in this block.
        first_half_ns: float64, median of the first half of the samples; NaN for one sample.
        second_half_ns: float64, median of the second half; NaN for one sample.
        quantile: what ``tail_ns`` holds; None where medians of blocks are judged.
        tail_ns: float64, shape (k,), that quantile of all samples of each label in ns; NaN for a
            label that lacks over half of its blocks.
    """

    order: NDArray[np.int64]
    value_ns: NDArray[np.float64]
    first_half_ns: NDArray[np.float64]
    second_half_ns: NDArray[np.float64]
    quantile: float | None = None
    tail_ns: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        shape = self.order.shape
        if len(shape) != 2 or shape[1] == 0:
            raise ValueError(f"the order of a session has shape (rounds, k), got {shape}")
        for name in ("value_ns", "first_half_ns", "second_half_ns"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, order {shape}")
        if not np.array_equal(np.sort(self.order, axis=1), _labels(shape)):
            raise ValueError(f"every round must hold each of the labels 0 to {shape[1] - 1} once")
        if (self.quantile is None) != (self.tail_ns is None):
            raise ValueError("a quantile and its values come together")
        if self.tail_ns is not None and self.tail_ns.shape != shape[1:]:
            raise ValueError(f"tail_ns has shape {self.tail_ns.shape}, not {shape[1:]}")

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.order.shape[0])

    @property
    def labels(self) -> int:
        """Number of labels, k."""
        return int(self.order.shape[1])

    def by_label(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reorder (rounds, k) values from positions to labels."""
        result = np.empty_like(values)
        np.put_along_axis(result, self.order, values, axis=1)
        return result


def _labels(shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(shape[1], dtype=np.int64), shape)


def blocks_from_samples(
    order: ArrayLike,
    samples: Sequence[Sequence[Sequence[int]]],
    quantile: float | None = None,
) -> SessionBlocks:
    """Reduce the samples of a session to block medians and, if asked, to a quantile of each label.

    The halves of an odd number of samples leave out the middle one. A block with a sample that is
    not positive takes that sample as its value: it counts as missing, and the clock gate sees it.

    Args:
        order: integers, shape (rounds, k), label at each position.
        samples: integer ns, ``samples[round][position]``; an empty block is a dropped one. Rounds
            that a session did not reach may be absent at the end.
        quantile: compare this quantile of all samples of a label in the session, such as 0.99,
            instead of its blocks' medians; over 0 and under 1.

    Raises ValueError for a round with another number of positions than ``order``, for more rounds
    than it has, and for a quantile outside 0 to 1.
    """
    labels = np.asarray(order, dtype=np.int64)
    if labels.ndim != 2:
        raise ValueError(f"the order of a session has shape (rounds, k), got {labels.shape}")
    if len(samples) > labels.shape[0]:
        raise ValueError(f"{len(samples)} rounds of samples, but only {labels.shape[0]} in order")
    value, first, second = (np.full(labels.shape, np.nan) for _ in range(3))
    for i, row in enumerate(samples):
        if len(row) != labels.shape[1]:
            raise ValueError(f"round {i} has {len(row)} blocks, not {labels.shape[1]}")
        for j, block in enumerate(row):
            if not len(block):
                continue
            times = np.asarray(block, dtype=np.float64)
            lowest = float(times.min())
            value[i, j] = float(np.median(times)) if lowest > 0 else lowest
            half = len(times) // 2
            if half and lowest > 0:
                first[i, j] = np.median(times[:half])
                second[i, j] = np.median(times[-half:])
    if quantile is None:
        return SessionBlocks(labels, value, first, second)
    tails = [
        sample_quantile(label_samples(labels, samples, label), quantile)
        if 2 * np.sum((labels == label) & (value > 0)) >= labels.shape[0] > 0
        else np.nan
        for label in range(labels.shape[1])
    ]
    return SessionBlocks(labels, value, first, second, quantile, np.array(tails))


def per_item(blocks: SessionBlocks, items: Sequence[int]) -> SessionBlocks:
    """``blocks`` with the times of each label divided by ``items[label]``; none: as they are.

    A time that is not positive stays so, as the clock gate wants it.
    """
    if not items:
        return blocks
    parts = np.asarray(items, dtype=np.float64)
    at = parts[blocks.order]
    return replace(
        blocks,
        value_ns=blocks.value_ns / at,
        first_half_ns=blocks.first_half_ns / at,
        second_half_ns=blocks.second_half_ns / at,
        tail_ns=None if blocks.tail_ns is None else blocks.tail_ns / parts,
    )


def label_samples(
    order: ArrayLike, samples: Sequence[Sequence[Sequence[int]]], label: int
) -> NDArray[np.float64]:
    """All samples of one label in a session, in the order in which they were taken.

    Shape: (n,), float64, ns. Blocks with a sample that is not positive are left out: the clock
    gate sees them. ``order`` and ``samples`` as for ``blocks_from_samples``.
    """
    found = [
        np.asarray(block, dtype=np.float64)
        for row, labels in zip(samples, np.asarray(order), strict=False)
        for block, at in zip(row, labels, strict=True)
        if at == label and len(block) and min(block) > 0
    ]
    return np.concatenate(found) if found else np.empty(0)


def sample_quantile(values: NDArray[np.float64], quantile: float) -> float:
    """A quantile of a sample, linear between its order statistics at (i - 1/3) / (n + 1/3).

    Shape: (n,), finite; unit: that of the values; NaN for n = 0. This position (number 8 of
    Hyndman and Fan, 1996, Sample quantiles in statistical packages, American Statistician 50:361)
    is about median-unbiased for every distribution, where numpy's default one is too low in the
    tail. Raises ValueError for a quantile outside 0 to 1.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"a quantile must lie between 0 and 1, got {quantile}")
    if values.size == 0:
        return float("nan")
    return float(np.quantile(values, quantile, method="median_unbiased"))
