from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from bitworth.lowering.scaling import StorageType, TensorScale
from bitworth.lowering.weights import (
    STORAGE,
    dequantize,
    effective_scale,
    emulated_tensor,
    quantize,
    quantized_tensor,
)

Floats = NDArray[np.float32]
ONE = np.array(1, np.float32)
STORAGES: tuple[StorageType, ...] = ("int8", "int4", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1")
# What the largest magnitude becomes, significant bits, and the exponent of the smallest normal.
LEVELS = {"int8": 127.0, "int4": 7.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "fp4_e2m1": 6.0}
FLOATS = {"fp8_e4m3": (4, -6), "fp8_e5m2": (3, -14), "fp4_e2m1": (2, 0)}
TORCH = json.loads((Path(__file__).parent / "data" / "torch_rounding.json").read_text())


def codes(storage: StorageType) -> NDArray[Any]:
    """Every number of a storage type, in its type."""
    dtype = STORAGE[storage].numpy()
    if storage in FLOATS:
        bits = np.arange(16 if storage == "fp4_e2m1" else 256, dtype=np.uint8).view(dtype)
        return bits[np.isfinite(bits.astype(np.float32))]
    low, high = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}[storage]
    return np.arange(low, high + 1).astype(dtype)


def half_steps(x: Floats, storage: str) -> Floats:
    """Half the distance between neighbours at ``x``, in units of the scale."""
    if storage not in FLOATS:
        return np.full(x.shape, 0.5, np.float32)
    digits, smallest = FLOATS[storage]
    exponent = np.maximum(np.frexp(x)[1] - 1, smallest)
    return np.ldexp(np.float32(0.5), exponent - digits + 1)


def spread(scale: TensorScale, shape: tuple[int, ...]) -> Floats:
    """The scale of each element, by repetition: another way than the one under test."""
    step = effective_scale(scale)
    if scale.axis is None:
        return np.broadcast_to(step, shape)
    if scale.block is None:
        others = tuple(i for i in range(len(shape)) if i != scale.axis % len(shape))
        return np.broadcast_to(np.expand_dims(step, others), shape)
    each = np.repeat(step, scale.block, axis=scale.axis)
    return each.take(np.arange(shape[scale.axis]), axis=scale.axis)


def scales(
    rng: np.random.Generator, x: Floats, storage: StorageType, kind: str, axis: int, block: int
) -> TensorScale:
    """Scales of which the largest element, channel or block just fits."""
    size = np.abs(np.asarray(x, np.float32))
    if kind == "tensor":
        return TensorScale(storage, (size.max() / LEVELS[storage]).astype(np.float32))
    if kind == "channel":
        others = tuple(i for i in range(x.ndim) if i != axis)
        return TensorScale(storage, _live(size.max(axis=others) / LEVELS[storage]), 0, axis)
    starts = np.arange(0, x.shape[axis], block)
    step = _live(np.maximum.reduceat(size, starts, axis=axis) / LEVELS[storage])
    if kind == "block":
        return TensorScale(storage, step, 0, axis, None, block)
    above = float(np.float32(rng.uniform(0.65, 1.0) * step.max() / 256))
    # Rounded up to E4M3 (its steps are at most an eighth), so that everything fits.
    stored = (np.minimum(step / np.float32(above) * 1.13 + 2.0**-8, 448)).astype(
        ml_dtypes.float8_e4m3fn
    )
    stored = np.maximum(stored.astype(np.float32), 2.0**-9).astype(np.float32)
    return TensorScale(storage, stored, 0, axis, None, block, "fp8_e4m3", above)


def _live(step: NDArray[np.floating]) -> Floats:
    return np.where(step > 0, step, 1.0).astype(np.float32)


def test_half_goes_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    for storage in ("int8", "int4"):
        scale = TensorScale(storage, ONE)  # type: ignore[arg-type]
        assert quantize(x, scale).astype(int).tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize(
    ("storage", "zero", "limit", "expected"),
    [
        ("int8", 0, None, [-128, 127]),
        ("int8", 0, 127, [-127, 127]),
        ("int8", 0, 63, [-63, 63]),
        ("uint8", 128, None, [0, 255]),
        ("uint8", 128, 63, [65, 191]),
        ("int4", 0, None, [-8, 7]),
        ("int4", 0, 7, [-7, 7]),
        ("fp8_e4m3", 0, None, [-448, 448]),
        ("fp8_e5m2", 0, None, [-57344, 57344]),
        ("fp4_e2m1", 0, None, [-6, 6]),
    ],
)
@pytest.mark.parametrize("large", [61440, 1e20, 3e38, np.inf])
@pytest.mark.parametrize("step", [1.0, 2.0**-126])
def test_saturation(
    storage: StorageType, zero: int, limit: int | None, expected: list[int], large: float,
    step: float,
) -> None:  # fmt: skip
    scale = TensorScale(storage, np.float32(step), zero, None, limit)  # type: ignore[arg-type]
    x = np.array([-large, large], np.float32)
    assert quantize(x, scale).astype(np.float32).tolist() == expected


@pytest.mark.parametrize("storage", [*STORAGES, "uint8"])
def test_every_code_survives(storage: StorageType) -> None:
    every = codes(storage)
    for step in (1.0, 0.37, 2.0**-126):
        scale = TensorScale(storage, np.float32(step))  # type: ignore[arg-type]
        assert quantize(dequantize(every, scale), scale).tobytes() == every.tobytes()
    assert STORAGE[storage].numpy() == every.dtype


@pytest.mark.parametrize("storage", STORAGES)
def test_every_tie_goes_to_the_even_code(storage: StorageType) -> None:
    every = np.sort(codes(storage).astype(np.float64))
    every = np.unique(every)
    middle = ((every[1:] + every[:-1]) / 2).astype(np.float32)
    scale = TensorScale(storage, ONE)
    low, high = every[:-1], every[1:]
    # The even one of two neighbours: an even integer, or a float whose last bit is 0.
    bits = {v: b & 1 for v, b in zip(codes(storage).astype(float), _bits(storage), strict=True)}
    even = np.where([bits[v] == 0 for v in low], low, high)
    assert quantize(middle, scale).astype(float).tolist() == even.tolist()
    above = quantize(np.nextafter(middle, np.float32(np.inf)), scale)
    below = quantize(np.nextafter(middle, np.float32(-np.inf)), scale)
    assert above.astype(float).tolist() == high.tolist()
    assert below.astype(float).tolist() == low.tolist()


def _bits(storage: StorageType) -> list[int]:
    every = codes(storage)
    return [int(b) for b in (every.view(np.uint8) if storage in FLOATS else every.astype(int))]


@pytest.mark.parametrize(
    ("storage", "name"), [("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")]
)
def test_torch_differs_beyond_the_largest_alone(storage: StorageType, name: str) -> None:
    """torch 2.14 saturates E4M3 as we do; of E5M2 it makes an infinity of what rounds beyond."""
    found = {k: bytes.fromhex(v) for k, v in TORCH["formats"][name].items()}
    x, values = (np.frombuffer(found[k], "<f4") for k in ("inputs", "values"))
    theirs = np.frombuffer(found["stored"], np.uint8)
    ours = quantize(x, TensorScale(storage, ONE)).view(np.uint8)
    every = np.arange(256, dtype=np.uint8).view(STORAGE[storage].numpy())
    assert np.array_equal(every.astype(np.float32), values, equal_nan=True)
    known = ~np.isnan(x)
    beyond = np.isinf(values[theirs]) & known
    assert np.array_equal(ours[known & ~beyond], theirs[known & ~beyond])
    assert np.isnan(values[ours[~known]]).all()
    assert np.isnan(values[theirs[~known]]).all()
    assert (np.abs(values[ours[beyond]]) == LEVELS[storage]).all()
    assert beyond.any() == (storage == "fp8_e5m2")


def test_torch_has_no_fp4_conversion() -> None:
    """When it has one, the fixture shows its results, and they are to be compared."""
    assert list(TORCH["formats"]["float4_e2m1fn_x2"]) == ["absent"]


@pytest.mark.parametrize("storage", ["fp8_e4m3", "fp8_e5m2", "fp4_e2m1"])
def test_zeros_keep_their_sign(storage: StorageType) -> None:
    stored = quantize(np.array([0.0, -0.0, -1e-30], np.float32), TensorScale(storage, ONE))
    assert np.signbit(stored.astype(np.float32)).tolist() == [False, True, True]


def test_a_nan_stays_one_or_is_refused() -> None:
    x = np.array([1.0, np.nan], np.float32)
    for storage in ("fp8_e4m3", "fp8_e5m2"):
        scale = TensorScale(storage, ONE)  # type: ignore[arg-type]
        assert np.isnan(quantize(x, scale).astype(np.float32)).tolist() == [False, True]
    for storage in ("int8", "uint8", "int4", "fp4_e2m1"):
        with pytest.raises(ValueError, match=f"a NaN has no {storage}"):
            quantize(x, TensorScale(storage, ONE))  # type: ignore[arg-type]


@pytest.mark.parametrize("storage", STORAGES)
def test_an_all_zero_channel_stays_zero(storage: StorageType) -> None:
    scale = TensorScale(storage, np.array([1, 0.5], np.float32), 0, axis=0)
    x = np.array([[0, 0], [1, 2]], np.float32)
    assert dequantize(quantize(x, scale), scale).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("step", "above"), [(0.0, 1.0), (2.0**-9, 2.0**-145)], ids=["zero", "underflow"]
)
def test_a_scale_of_zero_gives_zeros(step: float, above: float) -> None:
    """CASES 2: never 0/0, nor a number over 0."""
    x = np.array([[0.0] * 16 + [1e-30, -5.0] + [0.0] * 14], np.float32)
    numbers = np.array([[step, step]], np.float32)
    scale = TensorScale("fp4_e2m1", numbers, 0, 1, None, 16, "fp8_e4m3", above)
    stored = quantize(x, scale)
    assert not stored.astype(np.float32).any()
    assert not dequantize(stored, scale).any()


@given(
    st.sampled_from(STORAGES),
    st.sampled_from(["tensor", "channel", "block", "two levels"]),
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.float64]),
    st.sampled_from(["C", "F", "reversed", "every other"]),
    st.booleans(),
)
def test_the_error_is_half_a_step(
    storage: StorageType, kind: str, axis: int, block: int, seed: int, dtype: DTypeLike,
    layout: str, dead: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 12, 4))
    x = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2)).astype(dtype)
    if dead:
        x[(slice(None),) * axis + (0,)] = 0
    x = {
        "C": x,
        "F": np.asfortranarray(x),
        "reversed": x[::-1, :, ::-1],
        "every other": np.repeat(x, 2, axis=2)[:, :, ::2],
    }[layout]
    before = x.copy()
    scale = scales(rng, x, storage, kind, axis, block)
    stored = quantize(x, scale)
    assert stored.shape == x.shape
    assert stored.dtype == STORAGE[storage].numpy()
    assert np.array_equal(x, before)
    back = dequantize(stored, scale)
    assert back.dtype == np.float32
    step = spread(scale, x.shape)
    ratio = np.asarray(x, np.float32) / np.where(step > 0, step, 1)
    room = half_steps(ratio, storage) * 1.0001 * step
    assert (np.abs(back - np.asarray(x, np.float32)) <= room).all()
    assert not back[np.asarray(x) == 0].any()
    # What is on the grid stays there.
    assert quantize(back, scale).tobytes() == stored.tobytes()


@given(st.integers(0, 3), st.integers(0, 2**32 - 1), st.sampled_from([None, 63]))
def test_zero_points_and_limits(axis: int, seed: int, limit: int | None) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    others = tuple(i for i in range(4) if i != axis)
    step = (np.abs(x).max(axis=others) / (limit or 127)).astype(np.float32)
    scale = TensorScale("uint8", step, 128, axis, limit)
    error = np.abs(dequantize(quantize(x, scale), scale) - x)
    assert (error <= np.expand_dims(step, others) * 0.5001).all()


def test_negative_axes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    step = np.random.default_rng(1).uniform(0.01, 0.1, (3, 2)).astype(np.float32)
    one, other = (TensorScale("int8", step, 0, a, None, 16) for a in (1, -1))
    assert np.array_equal(quantize(x, one), quantize(x, other))


@pytest.mark.parametrize("storage", [*STORAGES, "uint8"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_are_computed_when_read(storage: StorageType, dtype: DTypeLike) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal((5, 7)).astype(dtype))
    source = ir.Tensor(x, dtype=ir.DataType.from_numpy(x.dtype))
    scale = TensorScale(storage, np.full((5, 2), 0.25, np.float32), 0, 1, None, 4)
    stored = quantized_tensor(source, scale, "q")
    assert stored.dtype == STORAGE[storage]
    assert stored.numpy().tobytes() == quantize(x, scale).tobytes()
    again = ir.from_proto(ir.to_proto(stored))
    assert again.numpy().tobytes() == stored.numpy().tobytes()
    emulated = emulated_tensor(source, scale, "e")
    assert emulated.dtype == source.dtype
    assert emulated.numpy().tobytes() == (
        dequantize(quantize(x, scale), scale).astype(x.dtype).tobytes()
    )


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_large_weight_needs_two_copies_at_most(storage: StorageType, axis: int) -> None:
    x = np.ones((512, 512), np.float32)
    step = np.full((32, 512) if axis == 0 else (512, 32), 0.5, np.float32)
    source = ir.Tensor(x)
    scale = TensorScale(storage, step, 0, axis, None, 16)
    for tensor in (quantized_tensor(source, scale, "q"), emulated_tensor(source, scale, "e")):
        tracemalloc.start()
        tensor.numpy()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 2 * x.nbytes
