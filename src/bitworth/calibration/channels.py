"""Extremes of each channel of one tensor, over all samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.statistics import CHUNK


class ChannelExtremes:
    """Collects the smallest and the largest finite value of each index of one axis."""

    def __init__(self, axis: int) -> None:
        """``axis``: that of the channels; negative ones count from the last."""
        self._axis = axis
        self._low: NDArray[np.float64] | None = None
        self._high: NDArray[np.float64] | None = None

    def add(self, values: NDArray[np.generic]) -> None:
        """Take in every element of ``values``, of any real number type.

        Raises:
            ValueError: the array has no such axis, or another number of channels than those before.
        """
        rank = values.ndim
        if not -rank <= self._axis < rank:
            raise ValueError(f"an array of rank {rank} has no axis {self._axis} for its channels")
        axis = self._axis % rank
        channels = values.shape[axis]
        if self._low is None or self._high is None:
            self._low = np.full(channels, np.inf)
            self._high = np.full(channels, -np.inf)
        if channels != self._low.size:
            raise ValueError(f"axis {self._axis} has {channels} channels, before {self._low.size}")
        if not values.size:
            return
        # (outer, channels, inner) is a view of what onnxruntime returns.
        array = values.reshape(-1, channels, int(np.prod(values.shape[axis + 1 :], dtype=np.int64)))
        wide = max(1, CHUNK // array.shape[2])
        rows = max(1, wide // channels)
        for first in range(0, channels, wide):
            part = slice(first, first + wide)
            for start in range(0, array.shape[0], rows):
                low, high = _extremes(array[start : start + rows, part])
                np.minimum(self._low[part], low, out=self._low[part])
                np.maximum(self._high[part], high, out=self._high[part])

    def finish(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return minimum and maximum, shape ``(channels,)``; 0 for a channel without any."""
        if self._low is None or self._high is None:
            return np.empty(0), np.empty(0)
        seen = self._low <= self._high
        return np.where(seen, self._low, 0.0), np.where(seen, self._high, 0.0)


def _extremes(array: NDArray[np.generic]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Extremes over axes 0 and 2 of an array that is small enough to be copied."""
    if array.dtype.kind != "f" or array.dtype.itemsize < 4:  # numpy compares only these fast
        array = array.astype(np.float64 if array.dtype.kind in "iu" else np.float32)
    low, high = _minmax(array, array)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.isfinite(array)
        low, high = _minmax(np.where(finite, array, np.inf), np.where(finite, array, -np.inf))
    return low, high


def _minmax(
    lows: NDArray[np.generic], highs: NDArray[np.generic]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    if lows.shape[2] == 1:
        return lows[:, :, 0].min(axis=0), highs[:, :, 0].max(axis=0)
    return lows.min(axis=2).min(axis=0), highs.max(axis=2).max(axis=0)
