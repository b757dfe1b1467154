from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, activation_range
from bitworth.recipe import Calibrator

Floats = NDArray[np.floating]
MSE = Calibrator("mse")
FP8 = {
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0),
}


def seen(x: NDArray[np.generic]) -> RangeStatistics:
    accumulator = RangeAccumulator()
    accumulator.add(x)
    return accumulator.finish()


def symmetric_error(x: Floats, threshold: float, kind: str) -> float:
    """Of the quantizer as lowered: round half to even, then saturate."""
    if threshold == 0.0:
        return float(np.mean(x.astype(np.float64) ** 2))
    wide = x.astype(np.float64)
    if kind in FP8:
        dtype, largest = FP8[kind]
        step = threshold / largest
        back = np.clip(wide / step, -largest, largest).astype(dtype).astype(np.float64) * step
    else:
        step = threshold / (255 if kind == "unsigned" else 127)
        low, high = (0, 255) if kind == "unsigned" else (-128, 127)
        back = np.clip(np.rint(wide / step), low, high) * step
    return float(np.mean((wide - back) ** 2))


def asymmetric_error(x: Floats, low: float, high: float) -> float:
    low, high = min(low, 0.0), max(high, 0.0)
    step = (high - low) / 255
    zero = round(-low / step)
    back = (np.clip(np.rint(x.astype(np.float64) / step) + zero, 0, 255) - zero) * step
    return float(np.mean((x - back) ** 2))


SHAPES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "normal": lambda r: r.standard_normal(60_000),
    "laplace": lambda r: r.laplace(size=60_000),
    "heavy": lambda r: r.standard_t(3, 60_000),
    "relu": lambda r: r.standard_normal(60_000).clip(0),
    "skewed": lambda r: r.gumbel(size=60_000),
    "hardswish": lambda r: (x := 3 * r.standard_normal(60_000)) * np.clip(x + 3, 0, 6) / 6,
    "negative": lambda r: -r.exponential(size=60_000),
    "shifted": lambda r: r.standard_normal(60_000) + 8,
    "small": lambda r: r.standard_normal(500),
    "few": lambda r: r.choice([-3.0, 0.25, 5.5], 60_000),
}


@pytest.fixture(params=list(SHAPES))
def values(request: pytest.FixtureRequest) -> NDArray[np.float32]:
    return SHAPES[request.param](np.random.default_rng(0)).astype(np.float32)


@pytest.mark.parametrize("kind", ["int8", "unsigned", *FP8])
def test_no_threshold_is_better(values: NDArray[np.float32], kind: str) -> None:
    if kind == "unsigned":
        values = np.abs(values)
    found = seen(values)
    low, high = activation_range(
        found, MSE, format=kind if kind in FP8 else "int8", unsigned=kind == "unsigned"
    )
    assert found.minimum <= low <= high <= found.maximum
    error = symmetric_error(values, max(-low, high), kind)
    others = found.amax * np.exp2(-np.arange(0, 6, 0.03))
    best = min(symmetric_error(values, float(t), kind) for t in others)
    assert error <= 1.03 * best + (1e-3 * found.width) ** 2


def test_no_two_ends_are_better(values: NDArray[np.float32]) -> None:
    found = seen(values)
    low, high = activation_range(found, MSE, symmetric=False)
    step = (max(high, 0.0) - min(low, 0.0)) / 255
    assert min(found.minimum, 0.0) - step <= low <= high <= max(found.maximum, 0.0) + step
    error = asymmetric_error(values, low, high)
    shares = np.linspace(0.15, 1.0, 18)
    bottom, top = min(found.minimum, 0.0), max(found.maximum, 0.0)
    best = min(
        asymmetric_error(values, bottom * a, top * b)
        for a in (shares if bottom < 0 else [1.0])
        for b in (shares if top > 0 else [1.0])
    )
    assert error <= 1.03 * best + (1e-3 * found.width) ** 2


def test_the_ends_are_a_grid_with_zero_on_it(values: NDArray[np.float32]) -> None:
    low, high = activation_range(seen(values), MSE, symmetric=False)
    zero = -low / ((high - low) / 255)
    assert low <= 0.0 <= high
    assert zero == pytest.approx(round(zero), abs=1e-9)


def test_the_ends_are_independent() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(100_000), [40.0]])
    low, high = activation_range(seen(x), MSE, symmetric=False)
    assert low > -4.5
    assert high > 15.0
    mirrored = activation_range(seen(-x), MSE, symmetric=False)
    assert mirrored == pytest.approx((-high, -low), rel=0.02)


@pytest.mark.parametrize("format_", ["int8", *FP8])
def test_what_one_range_represents_exactly_keeps_it(format_: str) -> None:
    """The largest of equals is taken: a constant, or a single value among zeros, is the end."""
    for x in ([2.5] * 20_000, [-2.5], [0.0] * 9 + [7e-30], [3e38, 0.0]):
        array = np.array(x, np.float32)
        low, high = activation_range(seen(array), MSE, format=format_)
        assert (low, high) == (array.min(), array.max())


@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 40),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
        | st.floats(-1, 1, width=32),
    )
)
def test_any_values_are_no_worse_than_with_their_extremes(x: NDArray[np.float32]) -> None:
    found = seen(x)
    for name in ("int8", *FP8):
        low, high = activation_range(found, MSE, format=name)
        assert found.minimum <= low <= high <= found.maximum
        # Where in its bin a value lies is not known; these here are denormal.
        limit = symmetric_error(x, found.amax, name) * (1 + 1e-6) + 1e-11 * found.amax**2
        limit += found.width**2
        assert symmetric_error(x, max(-low, high), name) <= limit


def test_zeros_do_not_matter() -> None:
    x = np.random.default_rng(2).exponential(size=20_000).astype(np.float32)
    more = np.concatenate([x, np.zeros(300_000, np.float32)])
    for options in ({}, {"symmetric": False}, {"format": "fp8_e4m3"}):
        low, high = activation_range(seen(more), MSE, **options)  # type: ignore[arg-type]
        without = activation_range(seen(x), MSE, **options)  # type: ignore[arg-type]
        assert high == pytest.approx(without[1])
        assert low == 0.0


def test_fp8_is_wider_than_int8() -> None:
    """A float's steps shrink towards zero: what is cut costs more than it saves."""
    found = seen(np.random.default_rng(3).standard_t(4, 200_000))
    int8, e4m3 = (activation_range(found, MSE, format=f)[1] for f in ("int8", "fp8_e4m3"))
    assert int8 < 0.7 * found.amax
    assert e4m3 > int8


def test_formats_without_a_grid_of_their_own_are_refused() -> None:
    for name in ("mxfp8", "nvfp4", "int4", "bf16"):
        with pytest.raises(ValueError, match=f"mse has no meaning for the format {name}"):
            activation_range(seen(np.ones(3)), MSE, format=name)
