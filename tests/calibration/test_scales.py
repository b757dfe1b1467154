from __future__ import annotations

from dataclasses import replace
from typing import Literal

import ml_dtypes
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
)
from bitworth.calibration.scales import smallest_scale, usable_scale
from bitworth.lowering.scaling import DynamicScale, TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe import Calibrator, Quantize

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


def static(
    found: RangeStatistics, entry: Quantize, dtype: str = "float32", axis: int | None = None
) -> TensorScale:
    scale = activation_scale(found, entry, dtype=dtype, axis=axis)
    assert isinstance(scale, TensorScale)
    return scale


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
    scale = static(found, replace(INT8, sign=sign, zero_point=point))
    assert scale.scale.dtype == np.float32
    assert scale.scale.shape == ()
    low, high = min(pair), max(pair)
    x = low + (high - low) * np.linspace(0, 1, 1001)
    x[0], x[-1] = low, high
    assert (error(x, scale) <= float(scale.scale) * 0.5001).all()
    assert error(np.zeros(1), scale) == 0.0
    lowest, highest = (0, 255) if scale.storage == "uint8" else (-128, 127)
    assert lowest <= scale.zero_point <= highest


@given(
    st.lists(ends, min_size=1, max_size=40),
    st.sampled_from([("fp8_e4m3", 448.0, 4, -6), ("fp8_e5m2", 57344.0, 3, -14)]),
)
def test_fp8_reaches_its_largest_at_amax(
    values: list[float], kind: tuple[str, float, int, int]
) -> None:
    name, largest, digits, smallest = kind
    x = np.array(values, np.float32)
    amax = np.abs(x).max()
    assume(amax > 2.0**-109)  # else the scale underflows
    scale = static(seen(x), replace(INT8, format=name))
    assert (scale.storage, scale.zero_point) == (name, 0)
    assert scale.scale == np.float32(float(amax) / largest)
    back = dequantize(quantize(x, scale), scale).astype(np.float64)
    room = np.maximum(np.abs(x) * 2.0**-digits, scale.scale * 2.0 ** (smallest - digits))
    assert (np.abs(back - x) <= room * 1.001).all()


def test_signs_and_zero_points() -> None:
    positive, mixed = seen(np.array([0.0, 2.0])), seen(np.array([-3.0, 2.0]))

    def made(found: RangeStatistics, **changes: str) -> tuple[str, float, int]:
        scale = static(found, replace(INT8, **changes))  # type: ignore[arg-type]
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
    assert static(seen(np.zeros(9)), entry).scale == 1.0


@pytest.mark.parametrize("entry", [INT8, FP8])
def test_underflow_is_reported(entry: Quantize) -> None:
    """CASES 3."""
    with pytest.raises(UnusableScaleError, match="underflows in float32"):
        activation_scale(seen(1e-40), entry)
    with pytest.raises(UnusableScaleError, match="underflows in float16"):
        activation_scale(seen(1e-6), entry, dtype="float16")
    activation_scale(seen(1e-6), entry)
    with pytest.raises(UnusableScaleError, match="overflows in float32"):
        usable_scale(1e300, 127.0, "float32")


def test_the_widest_range_does_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    scale = static(seen(largest, -largest), replace(INT8, sign="u8", zero_point="asymmetric"))
    assert float(scale.scale) == pytest.approx(float(largest) / 127.5)


def test_nothing_finite_is_reported() -> None:
    with pytest.raises(UnusableScaleError, match="no finite value"):
        activation_scale(seen(np.nan), INT8)


def test_unresolved_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="'auto'"):
        activation_scale(seen(1.0), Quantize("all", "int8"))
    with pytest.raises(ValueError, match="bf16"):
        activation_scale(seen(1.0), replace(INT8, format="bf16"))


def channels(low: list[float], high: list[float], **changes: object) -> RangeStatistics:
    found = seen(np.array(low), np.array(high))
    return replace(found, channel_minimum=np.array(low), channel_maximum=np.array(high), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [1, -1, -2])
@pytest.mark.parametrize(
    ("entry", "storage", "levels"),
    [
        (INT8, "int8", 127.0),
        (replace(INT8, sign="u8", zero_point="asymmetric"), "int8", 127.0),
        (Quantize("all", "int8"), "int8", 127.0),
        (FP8, "fp8_e4m3", 448.0),
        (replace(INT8, format="fp8_e5m2"), "fp8_e5m2", 57344.0),
    ],
)
def test_channels_are_symmetric(axis: int, entry: Quantize, storage: str, levels: float) -> None:
    found = channels([-1.0, 0.0, 0.5, 0.0], [0.25, 3.0, 2.0, 0.0])
    scale = static(found, entry, axis=axis)
    assert (scale.storage, scale.axis, scale.zero_point) == (storage, axis, 0)
    wanted = [np.float32(a / levels) for a in (1.0, 3.0, 2.0)]
    assert scale.scale.tolist() == [*wanted, 1.0]


def test_channels_are_held_to_the_calibrated_range() -> None:
    x = np.random.default_rng(0).standard_normal((10_000, 2)).astype(np.float32)
    x[0, 0] = 1000.0
    low, high = x.min(axis=0).astype(np.float64), x.max(axis=0).astype(np.float64)
    found = replace(seen(x), channel_minimum=low, channel_maximum=high)
    cut = Calibrator("percentile", 99.9)
    _, end = activation_range(found, cut)
    scale = static(found, replace(INT8, calibrator=cut), axis=-1)
    assert scale.scale[0] == np.float32(end / 127)
    assert scale.scale[1] == np.float32(min(float(np.abs(x[:, 1]).max()), end) / 127)


def test_a_tiny_channel_gets_the_smallest_scale() -> None:
    """CASES 3."""
    found = channels([-1.0, -1e-6], [1.0, 1e-6])
    assert static(found, INT8, dtype="float16", axis=1).scale[1] == smallest_scale("float16")
    with pytest.raises(UnusableScaleError, match="underflows in float16"):
        static(channels([-1e-6], [1e-6]), INT8, dtype="float16", axis=1)


def test_channels_that_were_not_observed() -> None:
    with pytest.raises(ValueError, match="channels were not observed"):
        activation_scale(seen(1.0), INT8, axis=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("entry", [INT8, FP8, replace(INT8, sign="u8", zero_point="asymmetric")])
@given(st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_scales_are_numbers_of_the_graphs_type(
    dtype: str, entry: Quantize, low: float, high: float
) -> None:
    """What is stored is what divides, so nothing is lost between the two."""
    scale = static(seen(-low, high), entry, dtype=dtype)
    stored = scale.scale.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    assert stored.astype(np.float32) == scale.scale
    assert scale.scale == pytest.approx(static(seen(-low, high), entry).scale, rel=2.0**-8)


@pytest.mark.parametrize("name", ["int8", "mxfp8", "nvfp4"])
def test_dynamic_scales(name: str) -> None:
    entry = Quantize("all", name, scheme="dynamic")
    wanted = {
        "int8": DynamicScale("uint8"),
        "mxfp8": DynamicScale("fp8_e4m3", 32, "e8m0"),
        "nvfp4": DynamicScale("fp4_e2m1", 16, "fp8_e4m3", float(np.float32(5.0 / 2688))),
    }[name]
    assert activation_scale(seen(-5.0, 3.0), entry) == wanted
    assert activation_scale(seen(-5.0, 3.0), entry, dtype="float16") == wanted
    if name == "nvfp4":
        with pytest.raises(ValueError, match="needs statistics"):
            activation_scale(None, entry)
    else:
        assert activation_scale(None, entry) == wanted
    dead = activation_scale(seen(np.zeros(3)), entry)
    assert dead == (replace(wanted, tensor_scale=1.0) if name == "nvfp4" else wanted)
    with pytest.raises(UnusableScaleError, match="no finite value"):
        activation_scale(seen(np.nan), entry)


def test_scales_that_no_format_has() -> None:
    for entry, match in (
        (replace(FP8, scheme="dynamic"), "fp8_e4m3' has no dynamic scales"),
        (replace(INT8, format="nvfp4"), "nvfp4' has no static scales"),
        (replace(INT8, format="mxfp8"), "mxfp8' has no static scales"),
        (replace(INT8, format="int4"), "leaves activations alone"),
        (replace(INT8, scheme="weight_only"), "leaves activations alone"),
        (replace(INT8, format="fp33"), "fp33"),
    ):
        with pytest.raises(ValueError, match=match):
            activation_scale(seen(1.0), entry)
    with pytest.raises(ValueError, match="need statistics"):
        activation_scale(None, INT8)
