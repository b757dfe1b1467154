from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.calibration import (
    RangeAccumulator,
    RangeStatistics,
    UnusableScaleError,
    activation_range,
    activation_scale,
    weight_scale,
)
from bitworth.calibration.scales import smallest_scale
from bitworth.lowering.scaling import TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe import PER_TENSOR, Calibrator, Quantize, Site

INT8 = Quantize("all", "int8", sign="s8", zero_point="symmetric", weight_range="full")
FP8 = replace(INT8, format="fp8_e4m3")
SIGNS: tuple[Literal["s8", "u8", "by_range"], ...] = ("s8", "u8", "by_range")
POINTS: tuple[Literal["symmetric", "asymmetric"], ...] = ("symmetric", "asymmetric")

# Everything that float32 can hold, with a scale above the smallest normal number.
magnitudes = st.floats(2.0**-116, float(np.finfo(np.float32).max), width=32) | st.floats(
    2.0**-10, 1024, width=32
)
ends = st.just(0.0) | magnitudes | magnitudes.map(lambda x: -x)


def seen(*values: float | np.floating | NDArray[np.floating]) -> RangeStatistics:
    accumulator = RangeAccumulator()
    for value in values:
        accumulator.add(np.asarray(value, np.float32))
    return accumulator.finish()


def weight_site(shape: tuple[int, ...], axis: int, op_type: str = "Conv", groups: int = 1) -> Site:
    return Site("w", "n", op_type, "w", shape, axis, 1, "x", "y", groups)


def error(x: NDArray[np.float64], scale: TensorScale) -> NDArray[np.float64]:
    # In fp64, so that the property is the scale's and not the arithmetic's.
    step = scale.scale.astype(np.float64)
    low, high = (0, 255) if scale.storage == "uint8" else (-128, 127)
    q = np.clip(np.rint(x / step) + scale.zero_point, low, high)
    off: NDArray[np.float64] = np.abs((q - scale.zero_point) * step - x)
    return off


@given(st.tuples(ends, ends), st.sampled_from(SIGNS), st.sampled_from(POINTS))
def test_every_value_in_the_range_is_within_half_a_step(
    pair: tuple[float, float],
    sign: Literal["s8", "u8", "by_range"],
    point: Literal["symmetric", "asymmetric"],
) -> None:
    found = seen(np.array(pair))
    scale = activation_scale(found, replace(INT8, sign=sign, zero_point=point))
    assert scale.scale.dtype == np.float32
    assert scale.scale.shape == ()
    low, high = min(pair), max(pair)
    x = low + (high - low) * np.linspace(0, 1, 1001)
    x[0], x[-1] = low, high
    assert (error(x, scale) <= float(scale.scale) * 0.5001).all()
    assert error(np.zeros(1), scale) == 0.0
    lowest, highest = (0, 255) if scale.storage == "uint8" else (-128, 127)
    assert lowest <= scale.zero_point <= highest


@given(st.lists(ends, min_size=1, max_size=40))
def test_fp8_reaches_448_at_amax(values: list[float]) -> None:
    x = np.array(values, np.float32)
    amax = np.abs(x).max()
    assume(amax > 2.0**-113)  # else the scale underflows
    scale = activation_scale(seen(x), FP8)
    assert (scale.storage, scale.zero_point) == ("fp8_e4m3", 0)
    back = dequantize(quantize(x, scale), scale).astype(np.float64)
    # Three bits of mantissa; below 2**-6 of a step's unit the spacing is 2**-9.
    assert (np.abs(back - x) <= np.maximum(np.abs(x) / 16.0, scale.scale * 2.0**-10) * 1.001).all()


def test_signs_and_zero_points() -> None:
    positive, mixed = seen(np.array([0.0, 2.0])), seen(np.array([-3.0, 2.0]))

    def made(found: RangeStatistics, **changes: str) -> tuple[str, float, int]:
        scale = activation_scale(found, replace(INT8, **changes))  # type: ignore[arg-type]
        return scale.storage, float(scale.scale), scale.zero_point

    def f32(x: float) -> float:
        return float(np.float32(x))

    assert made(mixed) == ("int8", f32(3 / 127), 0)
    assert made(positive) == ("int8", f32(2 / 127), 0)
    assert made(positive, sign="u8") == ("uint8", f32(2 / 255), 0)
    assert made(mixed, sign="u8") == ("uint8", f32(3 / 127), 128)
    assert made(positive, sign="by_range") == ("uint8", f32(2 / 255), 0)
    assert made(mixed, sign="by_range") == ("int8", f32(3 / 127), 0)
    assert made(mixed, sign="u8", zero_point="asymmetric") == ("uint8", f32(5 / 255), 153)
    assert made(mixed, sign="s8", zero_point="asymmetric") == ("int8", f32(5 / 255), 25)
    # Widened to hold zero.
    far = seen(np.array([4.0, 5.0]))
    assert made(far, sign="u8", zero_point="asymmetric") == ("uint8", f32(5 / 255), 0)
    assert made(seen(-4.0), sign="u8", zero_point="asymmetric") == ("uint8", f32(4 / 255), 255)


def test_percentile_ranges() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32) + np.float32(1)
    x[0] = 1000.0
    found = seen(x)
    cut = Calibrator("percentile", 99.9)
    assert activation_range(found, Calibrator()) == (found.minimum, 1000.0)
    low, high = activation_range(found, cut)
    assert high == pytest.approx(np.quantile(np.abs(x), 0.999), abs=found.width)
    assert low == max(found.minimum, -high)
    low, high = activation_range(found, cut, symmetric=False)
    assert low == pytest.approx(np.quantile(x, 0.0005), abs=found.width)
    assert high == pytest.approx(np.quantile(x, 0.9995), abs=found.width)
    everything = Calibrator("percentile", 100.0)
    assert activation_range(found, everything, symmetric=False) == (found.minimum, 1000.0)


def test_a_percentile_never_makes_a_tensor_vanish() -> None:
    found = seen(np.zeros(10_000), 7.0)
    for symmetric in (True, False):
        cut = Calibrator("percentile", 99.0)
        assert activation_range(found, cut, symmetric=symmetric) == (0.0, 7.0)


@pytest.mark.parametrize("entry", [INT8, FP8, replace(INT8, sign="u8", zero_point="asymmetric")])
def test_zero_tensors_get_scale_one(entry: Quantize) -> None:
    """CASES 1."""
    assert activation_scale(seen(np.zeros(9)), entry).scale == 1.0


@pytest.mark.parametrize("entry", [INT8, FP8])
def test_underflow_is_reported(entry: Quantize) -> None:
    """CASES 3."""
    with pytest.raises(UnusableScaleError, match="underflows in float32"):
        activation_scale(seen(1e-40), entry)
    with pytest.raises(UnusableScaleError, match="underflows in float16"):
        activation_scale(seen(1e-6), entry, dtype="float16")
    activation_scale(seen(1e-6), entry)
    with pytest.raises(UnusableScaleError, match="overflows"):
        weight_scale(np.full((1, 1), 1e300), weight_site((1, 1), 0), entry)


def test_the_widest_range_does_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    scale = activation_scale(
        seen(largest, -largest), replace(INT8, sign="u8", zero_point="asymmetric")
    )
    assert float(scale.scale) == pytest.approx(float(largest) / 127.5)


def test_nothing_finite_is_reported() -> None:
    with pytest.raises(UnusableScaleError, match="no finite value"):
        activation_scale(seen(np.nan), INT8)


def test_unresolved_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="'auto'"):
        activation_scale(seen(1.0), Quantize("all", "int8"))
    with pytest.raises(ValueError, match="'auto'"):
        weight_scale(np.ones((2, 2)), weight_site((2, 2), 0), Quantize("all", "int8"))
    with pytest.raises(ValueError, match="bf16"):
        activation_scale(seen(1.0), replace(INT8, format="bf16"))


@pytest.mark.parametrize(
    ("op_type", "shape", "axis", "groups"),
    [
        ("Conv", (6, 4, 3, 3), 0, 1),
        ("Conv", (6, 2, 3), 0, 2),
        ("ConvTranspose", (6, 4, 3, 3), 1, 1),
        ("ConvTranspose", (6, 4, 3, 3), 1, 3),
        ("Gemm", (5, 7), 1, 1),
        ("Gemm", (5, 7), 0, 1),
        ("MatMul", (2, 5, 7), 2, 1),
    ],
)
@pytest.mark.parametrize("entry", [INT8, replace(INT8, weight_range="reduced"), FP8])
def test_weights_per_channel(
    op_type: str, shape: tuple[int, ...], axis: int, groups: int, entry: Quantize
) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    site = weight_site(shape, axis, op_type, groups)
    scale = weight_scale(w, site, entry)
    assert scale.scale.shape == (shape[axis],)
    assert scale.axis == axis
    levels = {"fp8_e4m3": 448.0}.get(entry.format, 63.0 if scale.limit else 127.0)
    for channel in range(shape[axis]):
        wanted = np.float32(np.abs(w.take(channel, axis)).max().astype(np.float64) / levels)
        assert scale.scale[channel] == wanted
    whole = weight_scale(w, site, replace(entry, weights=PER_TENSOR))
    assert whole.scale.shape == ()
    assert whole.axis is None
    assert whole.scale == scale.scale.max()
    if entry.format == "int8":
        stored = quantize(w, scale).astype(int)
        assert np.abs(stored).max() == levels
        room = np.expand_dims(scale.scale, tuple(i for i in range(w.ndim) if i != axis))
        assert (np.abs(dequantize(quantize(w, scale), scale) - w) <= room * 0.5001).all()


@pytest.mark.parametrize("entry", [INT8, FP8])
def test_a_zero_channel_gets_scale_one(entry: Quantize) -> None:
    """CASES 2."""
    w = np.ones((4, 3), np.float32)
    w[2] = 0
    scale = weight_scale(w, weight_site((4, 3), 0), entry)
    assert scale.scale[2] == 1.0
    back = dequantize(quantize(w, scale), scale)
    assert np.isfinite(back).all()
    assert not back[2].any()


def test_tiny_weights() -> None:
    """CASES 3."""
    w = np.full((2, 3), 1e-41, np.float32)
    with pytest.raises(UnusableScaleError, match="underflows in float32"):
        weight_scale(w, weight_site((2, 3), 0), INT8)
    half = np.full((2, 3), 6e-7, np.float16)
    site = weight_site((2, 3), 0)
    scale = weight_scale(half, site, INT8)
    assert scale.scale.dtype == np.float32
    assert float(scale.scale[0]) == pytest.approx(float(half[0, 0]) / 127)
    with pytest.raises(UnusableScaleError, match="underflows in float16"):
        weight_scale(half, replace(site, dtype="float16"), INT8)


@pytest.mark.parametrize(("dtype", "tiny"), [("float32", 1e-40), ("float16", 1e-4)])
def test_a_tiny_channel_beside_others_keeps_the_site(dtype: str, tiny: float) -> None:
    """As in both PP-OCRv6 models: one channel of denormals must not cost the whole site."""
    w = np.array([[1.0, -0.5], [tiny, tiny / 3], [0.0, 0.0]], np.float32)
    site = replace(weight_site((3, 2), 0), dtype=dtype)
    scale = weight_scale(w, site, INT8)
    assert scale.scale[0] == np.float32(1 / 127)
    assert scale.scale[1] == np.float32(smallest_scale(dtype))
    assert scale.scale[2] == 1.0
    back = dequantize(quantize(w, scale), scale)
    assert np.abs(back - w)[1].max() <= scale.scale[1] / 2
    with pytest.raises(UnusableScaleError, match=f"underflows in {dtype}"):
        weight_scale(w[1:], site, INT8)


def test_weights_that_are_not_finite() -> None:
    w = np.array([[1.0, np.inf]], np.float32)
    with pytest.raises(UnusableScaleError, match="not finite"):
        weight_scale(w, weight_site((1, 2), 0), INT8)
