from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, statistics
from bitworth.calibration.statistics import BINS, FINEST, TAIL

Array = NDArray[np.generic]
SHARES = (0.0, 0.001, 0.25, 0.5, 0.9, 0.999, 0.9999, 0.999999, 1.0)

wild = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.floats(-1, 1, width=32)
    | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-13, 4096.0]),
)


def collect(arrays: Iterable[Array]) -> RangeStatistics:
    accumulator = RangeAccumulator()
    for array in arrays:
        accumulator.add(array)
    return accumulator.finish()


def spread(seed: int, size: int = 20_000, scale: float = 1.0) -> NDArray[np.float32]:
    """Values over several powers of two, growing along the array."""
    rng = np.random.default_rng(seed)
    grow = np.exp2(np.linspace(-6, 6, size)) * scale
    return (rng.standard_normal(size) * grow).astype(np.float32)


def check_against_numpy(found: RangeStatistics, values: Array) -> None:
    x = values.astype(np.float64).ravel()
    assert found.count == x.size
    assert found.zeros == np.count_nonzero(x == 0)
    assert (found.minimum, found.maximum) == (x.min(), x.max())
    inside = np.abs(x) < np.ldexp(1.0, found.exponent)
    assert np.array_equal(found.tail, np.sort(x[~inside]))
    edges = np.arange(BINS + 1) * found.width
    up = np.histogram(x[inside & (x >= 0)], edges)[0]
    down = np.histogram(-x[inside & (x < 0)], edges)[0]
    assert np.array_equal(found.histogram[BINS:], up[1:])
    assert np.array_equal(found.histogram[: BINS - 1], down[:0:-1])
    assert found.histogram[BINS - 1] == up[0] + down[0]


def same(a: RangeStatistics, b: RangeStatistics) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in vars(a))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 3e-38])
def test_histogram_is_numpys_at_the_final_range(scale: float) -> None:
    x = spread(1, scale=scale)
    found = collect(np.array_split(x, 37))
    check_against_numpy(found, x)
    assert found.tail.size <= TAIL < x.size


@given(wild, st.integers(1, 7))
def test_any_values_are_binned_exactly(x: NDArray[np.float32], parts: int) -> None:
    with patch.object(statistics, "TAIL", 4), patch.object(statistics, "CHUNK", 16):
        found = collect(np.array_split(x, parts))
    check_against_numpy(found, x)
    assert found.tail.size <= 4
    # The smallest range that will do: half of it would leave too much outside.
    half = np.count_nonzero(np.abs(x.astype(np.float64)) >= np.ldexp(1.0, found.exponent - 1))
    assert half > 4 or found.exponent == FINEST


@given(wild, st.integers(1, 9), st.randoms(use_true_random=False))
def test_order_and_split_do_not_matter(x: NDArray[np.float32], parts: int, random: object) -> None:
    order = list(range(x.size))
    random.shuffle(order)  # type: ignore[attr-defined]
    with patch.object(statistics, "TAIL", 4):
        assert same(collect([x]), collect(np.array_split(x[order], parts)))


def test_many_samples_are_the_same_as_one() -> None:
    x = spread(2, 200_000)
    assert same(collect([x.reshape(2, 100, 1000)]), collect(np.array_split(x[::-1], 401)))


@given(wild)
def test_quantiles_are_numpys_within_a_bin(x: NDArray[np.float32]) -> None:
    with patch.object(statistics, "TAIL", 4):
        found = collect([x])
    check_quantiles(found, x.astype(np.float64))


def check_quantiles(found: RangeStatistics, x: NDArray[np.float64]) -> None:
    for share in SHARES:
        slack = 1e-12 * found.amax
        exact = np.quantile(np.abs(x), share)
        # A cut tail is never cut deeper than was asked for.
        assert exact - slack <= found.magnitude_quantile(share) <= exact + found.width + slack
        assert abs(found.quantile(share) - np.quantile(x, share)) <= found.width + slack


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_of_large_tensors(seed: int) -> None:
    x = np.random.default_rng(seed).standard_t(3, 1_000_000).astype(np.float32)
    found = collect(np.array_split(x, 10))
    check_quantiles(found, x.astype(np.float64))
    for share in (0.9999, 0.999999):  # in the tail: exact
        assert found.magnitude_quantile(share) == pytest.approx(
            float(np.quantile(np.abs(x.astype(np.float64)), share)), rel=1e-12
        )


def test_an_outlier_does_not_widen_the_bins() -> None:
    x = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    x[1234] = 1e30
    found = collect([x])
    assert found.maximum == pytest.approx(1e30)
    assert found.width < 0.001
    assert found.quantile(0.9) == pytest.approx(float(np.quantile(x, 0.9)), abs=found.width)
    assert found.magnitude_quantile(0.9999) < 6


def test_zeros() -> None:
    found = collect([np.zeros((3, 70_000), np.float32), np.full(5, -0.0, np.float32)])
    assert (found.amax, found.count, found.zeros) == (0.0, 210_005, 210_005)
    assert found.magnitude_quantile(0.9999) == found.quantile(0.5) == 0.0


def test_mostly_zeros_have_a_zero_quantile() -> None:
    found = collect([np.zeros(100_000, np.float32), np.full(5000, 3.0, np.float32)])
    assert found.magnitude_quantile(0.9) == 0.0
    assert found.magnitude_quantile(0.99) == pytest.approx(3.0, abs=found.width)


@pytest.mark.parametrize("value", [5.0, -0.3, 1e-30, -1e30, 1e-44])
def test_constants(value: float) -> None:
    x = np.full(30_000, value, np.float32)
    found = collect([x])
    check_against_numpy(found, x)
    assert found.minimum == found.maximum == x[0]
    assert found.quantile(0.5) == pytest.approx(float(x[0]), abs=found.width)


def test_float16_is_as_exact_as_float64() -> None:
    """CASES 4: histograms do not depend on the tensor's type."""
    x = spread(3, scale=10.0).astype(np.float16)
    assert same(collect([x]), collect([x.astype(np.float64)]))
    smallest = np.full(10_000, 6e-8, np.float16)
    check_against_numpy(collect([smallest]), smallest)


def test_other_element_types() -> None:
    x = spread(4)
    narrow = x.astype(ml_dtypes.bfloat16)
    assert same(collect([narrow]), collect([narrow.astype(np.float32)]))
    assert same(collect([x]), collect([x.astype(np.float64)]))
    assert collect([np.array([[-7, 9]], np.int64)]).amax == 9.0
    check_against_numpy(collect([np.array([1e300, -1e-300])]), np.array([1e300, -1e-300]))
    for bad in (np.array(["a"]), np.array([True]), np.array([1j])):
        with pytest.raises(TypeError, match="cannot be observed"):
            collect([bad])


def test_double_precision_to_its_end() -> None:
    x = np.full(10_000, np.finfo(np.float64).max)
    found = collect([x, -x])
    assert found.magnitude_quantile(0.5) == x[0]
    assert (found.quantile(0.0), found.quantile(1.0)) == (-x[0], x[0])


def test_nonfinite_values_are_counted_and_left_out() -> None:
    x = np.array([1.0, np.nan, -2.0, np.inf, -np.inf, 0.0], np.float32)
    found = collect([x, np.full(3, np.nan, np.float32)])
    assert (found.minimum, found.maximum) == (-2.0, 1.0)
    assert (found.count, found.nonfinite, found.zeros) == (3, 6, 1)


def test_nothing_seen() -> None:
    found = collect([np.empty((0, 3), np.float32), np.full(2, np.nan, np.float32)])
    assert (found.minimum, found.maximum, found.count, found.nonfinite) == (0.0, 0.0, 0, 2)
    assert found.magnitude_quantile(1.0) == found.quantile(0.0) == 0.0


@given(st.lists(wild, max_size=4), wild)
def test_absorbed_statistics_are_as_good_as_the_values(
    parts: list[NDArray[np.float32]], more: NDArray[np.float32]
) -> None:
    with patch.object(statistics, "TAIL", 4):
        accumulator = RangeAccumulator()
        for part in parts:
            accumulator.absorb(collect([part]))
        accumulator.add(more)
        found = accumulator.finish()
        assert same(found, collect([*parts, more]))
    check_against_numpy(found, np.concatenate([*parts, more]))


def test_a_quantile_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        collect([np.ones(3, np.float32)]).quantile(1.5)


def test_strided_arrays() -> None:
    x = spread(5).reshape(100, 200)
    assert same(collect([x.T[::2]]), collect([np.ascontiguousarray(x.T[::2])]))
