from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, activation_range, statistics
from bitworth.calibration.channels import ChannelExtremes
from bitworth.calibration.merging import merged, rescaled
from bitworth.recipe import Calibrator

Array = NDArray[np.generic]

tensors = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(width=32) | st.floats(-1, 1, width=32) | st.sampled_from([0.0, -0.0, 4096]),
)


def seen(*arrays: Array, axis: int | None = None) -> RangeStatistics:
    accumulator = RangeAccumulator()
    channels = None if axis is None else ChannelExtremes(axis)
    for array in arrays:
        accumulator.add(array)
        if channels is not None:
            channels.add(array)
    found = accumulator.finish()
    if channels is None:
        return found
    low, high = channels.finish()
    return RangeStatistics(**{**vars(found), "channel_minimum": low, "channel_maximum": high})


def same(a: RangeStatistics, b: RangeStatistics) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in vars(a))


@given(st.lists(tensors, max_size=5), st.randoms(use_true_random=False))
def test_merged_is_what_one_accumulator_sees(parts: list[Array], random: object) -> None:
    order = list(parts)
    random.shuffle(order)  # type: ignore[attr-defined]
    with patch.object(statistics, "TAIL", 4):
        assert same(merged([seen(p) for p in order]), seen(*parts))


@pytest.mark.parametrize("scales", [(1.0, 1e-3, 40.0), (1e-30, 1e30), (0.0, 1.0), (1.0,) * 4])
def test_merged_of_large_tensors(scales: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.standard_t(3, 30_000) * s).astype(np.float32) for s in scales]
    whole = seen(*parts)
    assert same(merged([seen(p) for p in parts]), whole)
    assert same(merged([seen(p) for p in parts[::-1]]), whole)
    assert same(merged([merged([seen(p)]) for p in parts]), whole)


def test_merged_without_values() -> None:
    assert same(merged([]), seen())
    broken = seen(np.full(3, np.nan))
    found = merged([broken, seen(np.array([2.0, 3.0]))])
    assert (found.minimum, found.maximum, found.count, found.nonfinite) == (2.0, 3.0, 2, 3)


def test_merged_has_no_channels() -> None:
    found = merged([seen(np.ones((2, 3)), axis=1)])
    assert found.channel_minimum is None
    assert found.channel_maximum is None


@given(
    hnp.arrays(np.float32, (7, 5), elements=st.floats(-1e6, 1e6, width=32)),
    hnp.arrays(np.float64, 5, elements=st.floats(1e-3, 1e3)),
)
def test_rescaled_extremes_are_those_of_the_rescaled_tensor(
    x: NDArray[np.float32], factors: NDArray[np.float64]
) -> None:
    found = rescaled(seen(x, axis=-1), factors)
    divided = x.astype(np.float64) / factors
    assert (found.minimum, found.maximum) == (divided.min(), divided.max())
    assert np.array_equal(found.channel_minimum, divided.min(axis=0))
    assert np.array_equal(found.channel_maximum, divided.max(axis=0))
    assert (found.count, found.zeros) == (x.size, np.count_nonzero(x == 0))
    assert activation_range(found, Calibrator()) == (divided.min(), divided.max())


def test_rescaled_statistics_know_only_their_extremes() -> None:
    x = np.random.default_rng(0).standard_normal((4000, 3)).astype(np.float32)
    found = rescaled(seen(x, axis=1), np.array([1.0, 2.0, 4.0]))
    again = rescaled(found, np.array([1.0, 0.5, 0.25]))
    assert again.maximum == x.max()
    both = merged([found, seen(x)])
    assert both.maximum == x.max()
    assert both.count == 2 * x.size
    for unknown in (found, again, both, merged([seen(x), found])):
        assert not unknown.shape_known
        for calibrator in (Calibrator("percentile"), Calibrator("entropy"), Calibrator("mse")):
            with pytest.raises(ValueError, match="only max"):
                activation_range(unknown, calibrator)
        for quantile in (unknown.quantile, unknown.magnitude_quantile):
            with pytest.raises(ValueError, match="only the extremes"):
                quantile(0.5)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0, 2.0], "3 channels"),
        ([1.0, 2.0, 0.0], "finite and positive"),
        ([1.0, 2.0, -1.0], "finite and positive"),
        ([1.0, 2.0, np.inf], "finite and positive"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rescaled(seen(np.ones((2, 3)), axis=1), np.array(factors))


def test_without_channels_nothing_is_rescaled() -> None:
    with pytest.raises(ValueError, match="channels' extremes"):
        rescaled(seen(np.ones((2, 3))), np.ones(3))
