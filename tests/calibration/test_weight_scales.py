from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.calibration import UnusableScaleError, weight_scale
from bitworth.calibration.block_scales import power_scale
from bitworth.calibration.scales import smallest_scale
from bitworth.calibration.weight_scales import weight_amax
from bitworth.lowering.weights import dequantize, effective_scale, quantize
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, PerBlock, Quantize, Site

INT8 = Quantize("all", "int8", sign="s8", zero_point="symmetric", weight_range="full")
FP8 = replace(INT8, format="fp8_e4m3")
E5M2 = replace(INT8, format="fp8_e5m2")
INT4 = Quantize("all", "int4", weights=PerBlock(32), scheme="weight_only")
MXFP8 = Quantize("all", "mxfp8", weights=PerBlock(32), scheme="dynamic")
NVFP4 = Quantize("all", "nvfp4", weights=PerBlock(16), scheme="dynamic")
LEVELS = {"int8": 127.0, "int4": 7.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


def weight_site(shape: tuple[int, ...], axis: int, op_type: str = "Conv", groups: int = 1) -> Site:
    return Site("w", "n", op_type, "w", shape, axis, 1, "x", "y", groups)


def matmul(shape: tuple[int, ...], dtype: str = "float32") -> Site:
    return replace(weight_site(shape, len(shape) - 1, "MatMul"), dtype=dtype)


def blocks_of(x: NDArray[np.generic], axis: int, size: int) -> list[NDArray[np.generic]]:
    starts = range(0, x.shape[axis], size)
    return [x.take(range(i, min(i + size, x.shape[axis])), axis) for i in starts]


def biggest(x: NDArray[np.generic], axis: int, size: int) -> NDArray[np.float64]:
    parts = [np.abs(b.astype(np.float64)).max(axis=axis) for b in blocks_of(x, axis, size)]
    return np.stack(parts, axis=axis)


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
@pytest.mark.parametrize(
    "entry",
    [INT8, replace(INT8, weight_range="reduced"), FP8, E5M2, replace(INT4, weights=PER_CHANNEL)],
)
def test_weights_per_channel(
    op_type: str, shape: tuple[int, ...], axis: int, groups: int, entry: Quantize
) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    site = weight_site(shape, axis, op_type, groups)
    scale = weight_scale(w, site, entry)
    assert scale.scale.shape == (shape[axis],)
    assert scale.axis == axis
    levels = 63.0 if scale.limit else LEVELS[entry.format]
    for channel in range(shape[axis]):
        wanted = np.float32(np.abs(w.take(channel, axis)).max().astype(np.float64) / levels)
        assert scale.scale[channel] == wanted
    whole = weight_scale(w, site, replace(entry, weights=PER_TENSOR))
    assert whole.scale.shape == ()
    assert whole.axis is None
    assert whole.scale == scale.scale.max()
    if entry.format in ("int8", "int4"):
        stored = quantize(w, scale).astype(int)
        assert np.abs(stored).max() == levels
        room = np.expand_dims(scale.scale, tuple(i for i in range(w.ndim) if i != axis))
        assert (np.abs(dequantize(quantize(w, scale), scale) - w) <= room * 0.5001).all()


@pytest.mark.parametrize("entry", [INT8, FP8, E5M2, replace(INT4, weights=PER_CHANNEL)])
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
    assert scale.scale[0] == np.float32(np.asarray(1 / 127, dtype))
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


def test_values_that_no_scale_can_hold() -> None:
    w = np.full((1, 32), 1e300)
    for entry in (INT8, FP8, E5M2, INT4, MXFP8, NVFP4):
        with pytest.raises(UnusableScaleError, match="overflows"):
            weight_scale(w, weight_site((1, 32), 0), entry)


def test_entries_are_resolved_as_far_as_weights_need_it() -> None:
    site = weight_site((2, 2), 0)
    with pytest.raises(ValueError, match="'auto'"):
        weight_scale(np.ones((2, 2)), site, Quantize("all", "int8"))
    weight_scale(np.ones((2, 2)), site, Quantize("all", "int8", weight_range="full"))
    with pytest.raises(ValueError, match="bf16"):
        weight_scale(np.ones((2, 2)), site, replace(INT8, format="bf16"))


@pytest.mark.parametrize(
    ("op_type", "shape", "axis", "cut"),
    [
        ("Conv", (6, 70, 3, 3), 0, 1),
        ("ConvTranspose", (70, 4, 3, 3), 1, 0),
        ("Gemm", (70, 7), 1, 0),
        ("Gemm", (5, 64), 0, 1),
        ("MatMul", (2, 70, 7), 2, 1),
        ("MatMul", (5, 7), 1, 0),
    ],
)
@pytest.mark.parametrize("entry", [INT8, replace(INT8, weight_range="reduced"), FP8, E5M2, INT4])
@pytest.mark.parametrize("size", [16, 32])
def test_blocks(
    op_type: str, shape: tuple[int, ...], axis: int, cut: int, entry: Quantize, size: int
) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    w[(slice(None),) * cut + (slice(0, size),)] *= 100
    scale = weight_scale(
        w, weight_site(shape, axis, op_type), replace(entry, weights=PerBlock(size))
    )
    assert (scale.axis, scale.block, scale.scale_storage) == (cut, size, "float")
    assert scale.scale.shape == (*shape[:cut], -(-shape[cut] // size), *shape[cut + 1 :])
    levels = 63.0 if scale.limit else LEVELS[entry.format]
    assert np.array_equal(scale.scale, (biggest(w, cut, size) / levels).astype(np.float32))


@pytest.mark.parametrize("size", [1, 5, 16, 100])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_largest_magnitudes(size: int, axis: int, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((7, 33, 16)).astype(dtype)
    for array in (x, np.asfortranarray(x), x[::-1, :, ::-1]):
        assert np.array_equal(weight_amax(array, axis, size), biggest(array, axis, size))


@pytest.mark.parametrize("entry", [INT8, FP8, E5M2, INT4, MXFP8, NVFP4])
def test_a_dead_block_gets_scale_one(entry: Quantize) -> None:
    """CASES 1 and 2."""
    entry = replace(entry, weights=PerBlock(32 if entry.format != "nvfp4" else 16))
    w = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
    w[:32, 1] = 0
    w[64:, 2] = 0
    scale = weight_scale(w, matmul(w.shape), entry)
    assert scale.scale[0, 1] == scale.scale[-1, 2] == 1.0
    back = dequantize(quantize(w, scale), scale)
    assert np.isfinite(back).all()
    assert not back[w == 0].any()
    nothing = np.zeros((64, 2), np.float32)
    scale = weight_scale(nothing, matmul(nothing.shape), entry)
    assert (scale.scale == 1.0).all()
    assert scale.tensor_scale in (None, 1.0)
    assert not dequantize(quantize(nothing, scale), scale).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("entry", [INT8, FP8, INT4])
def test_a_tiny_block_gets_the_smallest_scale(entry: Quantize, dtype: str) -> None:
    """CASES 3."""
    tiny = 1e-6 if dtype == "float16" else 1e-40
    w = np.ones((64, 2), np.float32)
    w[32:, 1] = tiny
    entry = replace(entry, weights=PerBlock(32))
    scale = weight_scale(w, matmul(w.shape, dtype), entry)
    assert scale.scale[1, 1] == np.float32(smallest_scale(dtype))
    with pytest.raises(UnusableScaleError, match=f"underflows in {dtype}"):
        weight_scale(w * np.float32(tiny), matmul(w.shape, dtype), entry)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("entry", [INT8, FP8, E5M2, replace(INT8, weights=PerBlock(16)), INT4])
def test_scales_are_numbers_of_the_graphs_type(entry: Quantize, dtype: str) -> None:
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    w = (np.random.default_rng(0).standard_normal((64, 5)) * 1000).astype(kind)
    scale = weight_scale(w, matmul(w.shape, dtype), entry)
    assert np.array_equal(scale.scale.astype(kind).astype(np.float32), scale.scale)


def test_mxfp8_at_every_exponent() -> None:
    """OCP MX 1.0, section 6.3: the power of two below amax, over that of 448."""
    exponents = np.arange(-118, 128)
    ones = np.ldexp(1.0, exponents).astype(np.float32)
    for amax, below in (
        (ones, 0),
        (np.nextafter(ones, np.float32(np.inf)), 0),
        (ones * np.float32(1.75), 0),
        (np.nextafter(ones, np.float32(0)), -1),
    ):
        w = np.zeros((32, ones.size), np.float32)
        w[5] = -amax
        scale = weight_scale(w, matmul(w.shape), MXFP8)
        assert (scale.storage, scale.block, scale.axis) == ("fp8_e4m3", 32, 0)
        assert (scale.scale_storage, scale.tensor_scale) == ("e8m0", None)
        wanted = np.ldexp(1.0, exponents - 8 + below).astype(np.float32)
        assert np.array_equal(scale.scale[0], wanted)
        codes = scale.scale[0].astype(ml_dtypes.float8_e8m0fnu)
        assert np.array_equal(codes.view(np.uint8), exponents - 8 + below + 127)
        assert np.array_equal(codes.astype(np.float32), wanted)


def test_torch_holds_every_power_as_the_same_code() -> None:
    """Its own conversion rounds to the nearest power, and zero to 2**-127; the scales are exact."""
    file = Path(__file__).parents[1] / "lowering" / "data" / "torch_rounding.json"
    found = json.loads(file.read_text())["formats"]["float8_e8m0fnu"]
    x, values = (np.frombuffer(bytes.fromhex(found[k]), "<f4") for k in ("inputs", "values"))
    stored = np.frombuffer(bytes.fromhex(found["stored"]), np.uint8)
    exponents = np.arange(-127, 128)
    assert np.array_equal(values[:255], np.ldexp(1.0, exponents).astype(np.float32))
    assert np.isnan(values[255])
    scales = power_scale(np.ldexp(1.0, exponents[:-8] + 8))
    assert np.array_equal(scales.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32), values[:247])
    for code, value in enumerate(scales):
        assert (stored[x == value] == code).all()
        assert (x == value).any()


def test_mxfp8_underflow() -> None:
    """CASES 3: beside others a tiny block has E8M0's smallest; alone the site is left out."""
    w = np.zeros((64, 1), np.float32)
    w[0], w[32] = 1.0, 1e-42
    assert weight_scale(w, matmul(w.shape), MXFP8).scale.tolist() == [[2.0**-8], [2.0**-127]]
    with pytest.raises(UnusableScaleError, match=r"2\*\*-148 underflows in e8m0"):
        weight_scale(w[32:], matmul((32, 1)), MXFP8)
    # The scale is no float16, and need not fit one.
    half = np.full((32, 1), 6e-8, np.float16)
    assert weight_scale(half, matmul((32, 1), "float16"), MXFP8).scale == 2.0**-32


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.floats(-30, 30))
def test_mxfp8_error(seed: int, length: int, power: float) -> None:
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((length, 3)) * 10.0**power).astype(np.float32)
    scale = weight_scale(w, matmul(w.shape), MXFP8)
    step = np.repeat(scale.scale, 32, axis=0)[:length]
    assert (np.abs(w) < 512 * step).all()
    # Half a step in the binade below 512, whose upper eighth saturates.
    room = np.where(np.abs(w) > 464 * step, 64 * step, np.abs(w) / 16 + step * 2.0**-10)
    assert (np.abs(dequantize(quantize(w, scale), scale) - w) <= room * 1.0001).all()


def test_nvfp4_by_its_recipe() -> None:
    """As NVIDIA's Model Optimizer: amax / (6 * 448), then E4M3(block amax / (6 * that))."""
    w = np.random.default_rng(0).standard_normal((70, 40)).astype(np.float32)
    w *= 10 ** np.random.default_rng(1).uniform(-2, 2, 40).astype(np.float32)
    scale = weight_scale(w, matmul(w.shape), NVFP4)
    assert (scale.storage, scale.block, scale.axis) == ("fp4_e2m1", 16, 0)
    assert scale.scale_storage == "fp8_e4m3"
    whole = np.float32(np.abs(w).max() / np.float32(2688))
    assert scale.tensor_scale == float(whole)
    wanted = biggest(w, 0, 16).astype(np.float32) / (np.float32(6) * whole)
    stored = np.clip(wanted, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(scale.scale, stored.astype(np.float32))
    assert scale.scale.max() == 448.0


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 50),
    st.floats(-30, 30),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_nvfp4_error(seed: int, length: int, power: float, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    kind = np.float32 if dtype == "float32" else ml_dtypes.bfloat16
    spread = 10.0 ** rng.uniform(-4, 0, (length, 3))
    w = (rng.standard_normal((length, 3)) * spread * 10.0**power).astype(kind)
    scale = weight_scale(w, matmul(w.shape, dtype), NVFP4)
    assert np.array_equal(
        scale.scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale.scale
    )
    step = np.repeat(effective_scale(scale), 16, axis=0)[:length]
    x = w.astype(np.float32)
    off = np.abs(dequantize(quantize(w, scale), scale) - x)
    # Half a step: 1, 0.5, 0.25 by binade. A block's scale may be rounded down by a sixteenth (or
    # half the smallest E4M3 number, of which the step is 2**-9), so that its largest saturates.
    room = np.select([np.abs(x) >= 4 * step, np.abs(x) >= 2 * step], [step, step / 2], step / 4)
    assert (off <= room * 1.0001).all()


def test_nvfp4_blocks_next_to_nothing() -> None:
    """Their scales would round to zero in E4M3; the smallest still tells them from zero."""
    w = np.zeros((48, 1), np.float32)
    w[0], w[16], w[32] = 2688.0, 0.005, 1e-30
    scale = weight_scale(w, matmul(w.shape), NVFP4)
    assert scale.tensor_scale == 1.0
    assert scale.scale.ravel().tolist() == [448.0, 2.0**-9, 2.0**-9]
    back = dequantize(quantize(w, scale), scale)
    assert back[16, 0] == pytest.approx(0.005, rel=0.25)
    assert back[32, 0] == 0.0
    with pytest.raises(UnusableScaleError, match="underflows in float32"):
        weight_scale(np.full((16, 1), 1e-36, np.float32), matmul((16, 1)), NVFP4)
    # The scale is no float16, and need not fit one.
    half = np.full((16, 1), 6e-8, np.float16)
    again = weight_scale(half, matmul((16, 1), "float16"), NVFP4)
    assert dequantize(quantize(half, again), again) == pytest.approx(half.astype(float), rel=1e-5)


@pytest.mark.parametrize("entry", [MXFP8, NVFP4, INT4])
def test_blocks_that_are_not_finite(entry: Quantize) -> None:
    w = np.ones((40, 2), np.float32)
    for value in (np.nan, np.inf, -np.inf):
        w[39, 1] = value
        with pytest.raises(UnusableScaleError, match="not finite"):
            weight_scale(w, matmul(w.shape), entry)
