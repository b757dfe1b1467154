"""The blocks of one session as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    order: NDArray[np.int64]
    value_ns: NDArray[np.float64]
    first_half_ns: NDArray[np.float64]
    second_half_ns: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = self.order.shape
        if len(shape) != 2 or shape[1] == 0:
            raise ValueError(f"the order of a session has shape (rounds, k), got {shape}")
        for name in ("value_ns", "first_half_ns", "second_half_ns"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, order {shape}")
        if not np.array_equal(np.sort(self.order, axis=1), _labels(shape)):
            raise ValueError(f"every round must hold each of the labels 0 to {shape[1] - 1} once")

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
    order: ArrayLike, samples: Sequence[Sequence[Sequence[int]]]
) -> SessionBlocks:
    """Reduce the samples of a session to block medians.

    The halves of an odd number of samples leave out the middle one. A block with a sample that is
    not positive takes that sample as its value: it counts as missing, and the clock gate sees it.

    Args:
        order: integers, shape (rounds, k), label at each position.
        samples: integer ns, ``samples[round][position]``; an empty block is a dropped one. Rounds
            that a session did not reach may be absent at the end.

    Raises ValueError for a round with another number of positions than ``order`` or for more
    rounds than it has.
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
    return SessionBlocks(labels, value, first, second)
