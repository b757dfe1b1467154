from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, activation_range
from bitworth.calibration.entropy import CUT, Ranges, Reference, divergence, entropy_range
from bitworth.recipe import Calibrator

Array = NDArray[np.generic]
ENTROPY = Calibrator("entropy")


def seen(*values: Array) -> RangeStatistics:
    accumulator = RangeAccumulator()
    for array in values:
        accumulator.add(array)
    return accumulator.finish()


def published(bins: list[float], low: int, high: int, levels: int) -> float:
    """The published pseudocode, bin by bin: ``bins`` hold what lies from bin ``low`` to ``high``.

    ``low`` and ``high`` are indices into ``bins``; what is outside is cut.
    """
    inside = bins[low:high]
    occupied = [i for i, n in enumerate(inside) if n]
    reference = list(inside)
    reference[occupied[0]] += sum(bins[:low])
    reference[occupied[-1]] += sum(bins[high:])
    candidate = [0.0] * len(inside)
    for level in range(levels):
        members = [i for i in range(len(inside)) if i * levels // len(inside) == level]
        filled = [i for i in members if inside[i]]
        for i in filled:
            candidate[i] = sum(inside[j] for j in members) / len(filled)
    p = [n / sum(reference) for n in reference]
    q = [n / sum(candidate) for n in candidate]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


@given(
    st.lists(st.integers(0, 50), min_size=8, max_size=120),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([4, 7, 8]),
)
def test_the_divergence_is_the_published_one(
    bins: list[int], down: int, up: int, levels: int
) -> None:
    zero = len(bins) // 2
    low, high = max(zero - down, 0), min(zero + up, len(bins))
    if not any(bins[low:high]):
        bins[low] = 3
    index = np.array([i - zero for i, n in enumerate(bins) if n], np.float64)
    reference = Reference(1.0, index, np.array([n for n in bins if n], np.float64))
    inside = np.flatnonzero((index >= low - zero) & (index < high - zero))
    ranges = Ranges(
        np.array([float(low - zero)]),
        np.array([float(high - zero)]),
        inside[:1],
        inside[-1:],
    )
    found = divergence(reference, ranges, levels)
    assert found[0] == pytest.approx(published(list(bins), low, high, levels), abs=1e-9)


SHAPES: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "normal": lambda r: r.standard_normal(200_000),
    "laplace": lambda r: r.laplace(size=200_000),
    "heavy": lambda r: r.standard_t(4, 200_000),
    "relu": lambda r: r.standard_normal(200_000).clip(0),
    "exponential": lambda r: r.exponential(size=200_000),
    "uniform": lambda r: r.uniform(-1, 1, 200_000),
    "shifted": lambda r: r.standard_normal(200_000) + 3,
    "softmax": lambda r: (e := np.exp(4 * r.standard_normal((2000, 100)))) / e.sum(1)[:, None],
}


@pytest.fixture(params=list(SHAPES))
def values(request: pytest.FixtureRequest) -> NDArray[np.float32]:
    return SHAPES[request.param](np.random.default_rng(1)).astype(np.float32)


def square_error(x: Array, low: float, high: float, *, symmetric: bool) -> float:
    wide = x.astype(np.float64)
    if symmetric:
        step, zero, last = max(-low, high) / 127, 128, 255
    else:
        low, high = min(low, 0.0), max(high, 0.0)
        step, last = (high - low) / 255, 255
        zero = round(-low / step)
    back = (np.clip(np.rint(wide / step) + zero, 0, last) - zero) * step
    return float(np.mean((wide - back) ** 2))


@pytest.mark.parametrize("symmetric", [True, False])
def test_no_more_is_cut_than_is_said_and_it_costs_little(
    values: NDArray[np.float32], symmetric: bool
) -> None:
    """CASES 17: accuracy does not collapse, for asymmetric ranges neither."""
    found = seen(values)
    low, high = activation_range(found, ENTROPY, symmetric=symmetric)
    assert found.minimum <= low <= high <= found.maximum
    cut = np.count_nonzero((values < low) | (values > high))
    assert cut <= CUT * np.count_nonzero(values) + 1
    error = square_error(values, low, high, symmetric=symmetric)
    assert error <= 1.5 * square_error(values, found.minimum, found.maximum, symmetric=symmetric)


def test_long_tails_are_cut_and_even_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    far = seen(rng.standard_t(3, 500_000))
    assert activation_range(far, ENTROPY)[1] < 0.7 * far.amax
    even = seen(rng.uniform(-1, 1, 500_000))
    assert activation_range(even, ENTROPY) == (even.minimum, even.maximum)


@pytest.mark.parametrize("outlier", [1e3, 1e30, np.finfo(np.float32).max, -1e30])
@pytest.mark.parametrize("symmetric", [True, False])
def test_one_huge_outlier_is_cut(outlier: float, symmetric: bool) -> None:
    x = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    x[1234] = outlier
    low, high = activation_range(seen(x), ENTROPY, symmetric=symmetric)
    assert -6 < low < -3
    assert 3 < high < 6


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("zeros", [1, 300_000, 3_000_000])
def test_zeros_do_not_matter(zeros: int, symmetric: bool) -> None:
    x = np.random.default_rng(2).exponential(size=200_000).astype(np.float32)
    without = activation_range(seen(x), ENTROPY, symmetric=symmetric)
    low, high = activation_range(seen(x, np.zeros(zeros, np.float32)), ENTROPY, symmetric=symmetric)
    assert high == without[1]
    assert low == 0.0


def test_a_peak_next_to_zero_does_not_outweigh_the_rest() -> None:
    rng = np.random.default_rng(3)
    x = np.abs(rng.standard_normal(200_000))
    peak = seen(np.concatenate([x, rng.uniform(-1e-5, 1e-5, 2_000_000)]))
    high = activation_range(peak, ENTROPY)[1]
    assert np.quantile(x, 0.999) < high <= x.max()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_tensors_type_does_not_matter(dtype: type[np.floating], scale: float) -> None:
    """CASES 4."""
    x = (np.random.default_rng(4).laplace(size=100_000) * scale).astype(dtype)
    assert activation_range(seen(x), ENTROPY) == activation_range(
        seen(x.astype(np.float64)), ENTROPY
    )


@pytest.mark.parametrize("exponent", [-100, -10, 10, 100])
def test_the_unit_does_not_matter(exponent: int) -> None:
    x = np.random.default_rng(5).laplace(size=100_000).astype(np.float32)
    for symmetric in (True, False):
        low, high = activation_range(seen(x), ENTROPY, symmetric=symmetric)
        scaled = activation_range(seen(np.ldexp(x, exponent)), ENTROPY, symmetric=symmetric)
        assert scaled == (np.ldexp(low, exponent), np.ldexp(high, exponent))


def test_one_side_gets_all_levels() -> None:
    found = seen(np.random.default_rng(6).gamma(0.5, size=300_000).astype(np.float32))
    signed = activation_range(found, ENTROPY)
    unsigned = activation_range(found, ENTROPY, unsigned=True)
    assert unsigned == activation_range(found, ENTROPY, symmetric=False)
    assert unsigned == entropy_range(found, symmetric=True, levels=255)
    # Finer steps make what is cut dearer.
    assert signed[1] < unsigned[1] <= found.maximum
    mixed = seen(np.random.default_rng(6).standard_normal(1000))
    assert activation_range(mixed, ENTROPY, unsigned=True) == activation_range(mixed, ENTROPY)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_mirrored_tensor_has_the_mirrored_range(sign: float) -> None:
    x = np.random.default_rng(7).gumbel(size=100_000)
    low, high = activation_range(seen(sign * x), ENTROPY)
    assert (low, high) == tuple(sorted(sign * a for a in activation_range(seen(x), ENTROPY)))


def test_other_formats_are_refused() -> None:
    found = seen(np.ones(3))
    for name in ("fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4", "int4"):
        with pytest.raises(ValueError, match=f"entropy has no meaning for the format {name}"):
            activation_range(found, ENTROPY, format=name)
