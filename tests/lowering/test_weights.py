from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.lowering.scaling import TensorScale
from bitworth.lowering.weights import dequantize, quantize


def _f32(x: float) -> np.float32:
    return np.float32(x)


def test_half_goes_to_even() -> None:
    scale = TensorScale("int8", np.array(1, np.float32))
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert quantize(x, scale).tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize(
    ("storage", "zero", "limit", "expected"),
    [
        ("int8", 0, None, [-128, 127]),
        ("int8", 0, 127, [-127, 127]),
        ("int8", 0, 63, [-63, 63]),
        ("uint8", 128, None, [0, 255]),
        ("uint8", 128, 63, [65, 191]),
        ("fp8_e4m3", 0, None, [-448, 448]),
    ],
)
@pytest.mark.parametrize("large", [1e3, 1e20, 3e38])
def test_saturation(
    storage: str, zero: int, limit: int | None, expected: list[int], large: float
) -> None:
    scale = TensorScale(storage, _f32(1.0), zero, None, limit)  # type: ignore[arg-type]
    x = np.array([-large, large], np.float32)
    assert quantize(x, scale).astype(np.float32).tolist() == expected


def test_an_all_zero_channel_stays_zero() -> None:
    scale = TensorScale("fp8_e4m3", np.array([1, 0.5], np.float32), 0, axis=0)
    x = np.array([[0, 0], [1, 2]], np.float32)
    assert dequantize(quantize(x, scale), scale).tolist() == x.tolist()


def test_every_code_point_of_e4m3_survives() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    finite = codes[np.isfinite(codes.astype(np.float32))]
    scale = TensorScale("fp8_e4m3", np.array(1, np.float32))
    assert quantize(finite.astype(np.float32), scale).tobytes() == finite.tobytes()


@given(
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["int8", "uint8", "fp8_e4m3"]),
    st.sampled_from([None, 63]),
)
def test_the_error_is_half_a_step(axis: int, seed: int, storage: str, limit: int | None) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    amax = np.abs(x).max(axis=tuple(i for i in range(4) if i != axis))
    zero = 128 if storage == "uint8" else 0
    top = 448.0 if storage == "fp8_e4m3" else float(limit or 127)
    step = (amax / top).astype(np.float32)
    scale = TensorScale(storage, step, zero, axis, limit if top < 448 else None)  # type: ignore[arg-type]
    shape = [-1 if i == axis else 1 for i in range(4)]
    error = np.abs(dequantize(quantize(x, scale), scale) - x) / step.reshape(shape)
    # E4M3 has 4 significant bits: half a unit in the last place, or half the subnormal step.
    bound = np.maximum(np.abs(x) / step.reshape(shape) / 16, 2.0**-10) if top == 448 else 0.5
    assert (error <= bound * (1 + 1e-4)).all()
