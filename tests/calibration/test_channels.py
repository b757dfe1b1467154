from __future__ import annotations

from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.calibration import channels
from bitworth.calibration.channels import ChannelExtremes

Array = NDArray[np.generic]


def extremes(axis: int, *arrays: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    found = ChannelExtremes(axis)
    for array in arrays:
        found.add(array)
    return found.finish()


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 5, 7), (2, 3, 4, 5), (1, 1, 6, 1), (300, 2)])
def test_any_axis_of_any_rank(shape: tuple[int, ...], chunk: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    for axis in range(-len(shape), len(shape)):
        others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
        with patch.object(channels, "CHUNK", chunk):
            low, high = extremes(axis, *arrays)
        assert low.dtype == high.dtype == np.float64
        assert np.array_equal(low, np.min([a.min(axis=others) for a in arrays], axis=0))
        assert np.array_equal(high, np.max([a.max(axis=others) for a in arrays], axis=0))


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.int64, np.uint8, np.int8]
)
def test_any_type(dtype: type[np.generic]) -> None:
    x = (np.random.default_rng(0).random((4, 3, 5)) * 100).astype(dtype)
    low, high = extremes(1, x)
    wide = x.astype(np.float64)
    assert np.array_equal(low, wide.min(axis=(0, 2)))
    assert np.array_equal(high, wide.max(axis=(0, 2)))


def test_other_axes_may_change() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 4, m)) for n, m in ((1, 9), (3, 2), (2, 1))]
    low, _ = extremes(1, *arrays)
    assert np.array_equal(low, np.min([a.min(axis=(0, 2)) for a in arrays], axis=0))


@pytest.mark.parametrize("order", [1, -1])
def test_nonfinite_values_are_left_out(order: int) -> None:
    first = np.array([[1.0, np.nan, 5.0, np.inf], [2.0, 3.0, -np.inf, np.nan]], np.float32)
    second = np.array([[0.5, np.nan, 6.0, np.nan]], np.float32)
    low, high = extremes(1, *(first, second)[::order])
    # A channel in which nothing finite was seen has 0.
    assert low.tolist() == [0.5, 3.0, 5.0, 0.0]
    assert high.tolist() == [2.0, 3.0, 6.0, 0.0]


def test_empty_arrays() -> None:
    low, high = extremes(1, np.empty((0, 3), np.float32), np.ones((1, 3), np.float32))
    assert low.tolist() == high.tolist() == [1.0, 1.0, 1.0]
    assert [a.shape for a in extremes(1, np.empty((2, 0), np.float32))] == [(0,), (0,)]
    assert [a.tolist() for a in extremes(0, np.empty((2, 0), np.float32))] == [[0, 0], [0, 0]]
    assert [a.shape for a in extremes(0)] == [(0,), (0,)]


def test_strided_arrays() -> None:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    assert np.array_equal(extremes(0, x.T[::2])[0], x.min(axis=0)[::2])


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="axis 1 has 3 channels, before 2"):
        extremes(1, np.ones((1, 2)), np.ones((1, 3)))
    for axis in (2, -3):
        with pytest.raises(ValueError, match=f"rank 2 has no axis {axis}"):
            extremes(axis, np.ones((1, 2)))
