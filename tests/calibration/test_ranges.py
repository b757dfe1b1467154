from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, activation_range
from bitworth.recipe import Calibrator

Array = NDArray[np.generic]
CALIBRATORS = [
    Calibrator("max"),
    *(Calibrator("percentile", p) for p in (99.9, 99.99, 99.999, 99.9999)),
    Calibrator("entropy"),
    Calibrator("mse"),
]
FORMATS = ("int8", "fp8_e4m3", "fp8_e5m2")


def seen(*arrays: Array) -> RangeStatistics:
    accumulator = RangeAccumulator()
    for array in arrays:
        accumulator.add(array)
    return accumulator.finish()


def all_ranges(found: RangeStatistics) -> Iterator[tuple[str, tuple[float, float]]]:
    """The range under every calibrator, format, symmetry and sign that go together."""
    for calibrator in CALIBRATORS:
        for name in FORMATS:
            if name != "int8" and calibrator.name == "entropy":
                continue
            for symmetric, unsigned in ((True, False), (True, True), (False, False)):
                if name != "int8" and not (symmetric and not unsigned):
                    continue
                yield (
                    f"{calibrator} {name} {symmetric} {unsigned}",
                    activation_range(
                        found, calibrator, symmetric=symmetric, unsigned=unsigned, format=name
                    ),
                )


def check_sane(found: RangeStatistics) -> None:
    """Finite, ordered, within the extremes or a step beyond, and never empty but for zeros."""
    for case, (low, high) in all_ranges(found):
        assert np.isfinite(low), case
        assert np.isfinite(high), case
        assert low <= high, case
        step = max(high / 255, 0.0) - min(low / 255, 0.0)
        assert low >= min(found.minimum, 0.0) - step * (1 + 1e-9), case
        assert high <= max(found.maximum, 0.0) + step * (1 + 1e-9), case
        assert ((low, high) == (0.0, 0.0)) == (found.amax == 0.0), case


LARGEST = float(np.finfo(np.float32).max)
RNG = np.random.default_rng(0)
DEGENERATE: dict[str, list[Array]] = {
    "nothing": [],
    "empty": [np.empty((0, 3), np.float32)],
    "not finite": [np.array([np.nan, np.inf, -np.inf], np.float32)],
    "zeros": [np.zeros(30_000, np.float32)],
    "negative zeros": [np.full(5, -0.0, np.float32)],
    "one": [np.array([3.25], np.float32)],
    "constant": [np.full(30_000, 3.25, np.float32)],
    "negative constant": [np.full(30_000, -1e-7, np.float32)],
    "three values": [np.array([-1.0, 0.5, 7.0], np.float32)],
    "three values, often": [RNG.choice([-1.0, 0.5, 7.0], 40_000).astype(np.float32)],
    "two values": [np.array([0.0, 1.0] * 9_000, np.float32)],
    "one in a million": [np.zeros(999_999, np.float32), np.array([5.0], np.float32)],
    "huge outlier": [RNG.standard_normal(50_000).astype(np.float32), np.array([1e38])],
    "negative outlier": [RNG.random(50_000).astype(np.float32), np.array([-1e38])],
    "denormals": [np.array([1e-45, 3e-45, -1e-44] * 5_000, np.float32)],
    "some denormals": [np.array([1e-45, 1e-40, 2e-38], np.float32)],
    "all denormal but one": [np.full(20_000, 1e-41, np.float32), np.array([1.0])],
    "near the largest": [np.array([LARGEST, -LARGEST] * 5_000 + [1.0], np.float32)],
    "the largest once": [RNG.standard_normal(9_000), np.array([LARGEST])],
    "double": [np.array([1e308, -1e308, 1e-308])],
    "double, often": [RNG.standard_normal(9_000) * 3e307],
    "doubles far apart": [np.full(9_000, 1e-300), np.array([1e300])],
    "large offset": [RNG.standard_normal(20_000).astype(np.float32) + 1e4],
    "float16": [RNG.standard_normal(9_000).astype(np.float16), np.array([65504], np.float16)],
    "bfloat16": [RNG.standard_normal(9_000).astype(ml_dtypes.bfloat16)],
    "integers": [np.arange(-128, 128)],
}


@pytest.mark.parametrize("name", list(DEGENERATE))
def test_degenerate_tensors_have_a_sane_range(name: str) -> None:
    check_sane(seen(*DEGENERATE[name]))


@given(
    hnp.arrays(
        np.float64,
        st.integers(0, 30),
        elements=st.floats(allow_nan=True, allow_infinity=True)
        | st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1.7e308, 2.0**-114]),
    )
)
def test_any_tensor_has_a_sane_range(x: NDArray[np.float64]) -> None:
    check_sane(seen(x))


@pytest.mark.parametrize("seed", range(2))
def test_order_and_split_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, 40_000) + seed).astype(np.float32)
    whole = dict(all_ranges(seen(x)))
    shuffled = dict(all_ranges(seen(*np.array_split(rng.permutation(x), 13))))
    assert whole == shuffled


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_tensors_type_does_not_matter(dtype: type[np.generic]) -> None:
    """CASES 4: fp64 throughout, whatever is observed."""
    x = np.random.default_rng(0).laplace(scale=1e-3, size=30_000).astype(dtype)
    assert dict(all_ranges(seen(x))) == dict(all_ranges(seen(x.astype(np.float64))))


def test_each_calibrator_asks_for_its_own_range() -> None:
    found = seen(np.abs(np.random.default_rng(0).standard_t(3, 300_000)))
    ends = [activation_range(found, c)[1] for c in CALIBRATORS]
    assert len(set(ends)) == len(ends)
    assert ends[1:5] == sorted(ends[1:5])
    assert max(ends) == ends[0] == found.maximum


def test_symmetric_ranges_follow_the_larger_side() -> None:
    found = seen(np.random.default_rng(0).gumbel(size=100_000))
    for case, (low, high) in all_ranges(found):
        if "True" in case:
            assert low == max(found.minimum, -high), case


def test_only_max_takes_statistics_without_a_histogram() -> None:
    accumulator = RangeAccumulator()
    accumulator.add(np.ones(3))
    found = accumulator.finish()
    bare = RangeStatistics(
        **{**vars(found), "shape_known": False, "tail": found.tail[:0]}  # type: ignore[arg-type]
    )
    assert activation_range(bare, Calibrator()) == (1.0, 1.0)
    for calibrator in CALIBRATORS[1:]:
        with pytest.raises(ValueError, match="only max"):
            activation_range(bare, calibrator)
