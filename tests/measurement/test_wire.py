from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

import ml_dtypes  # noqa: F401  registers its types with numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bitworth.measurement.wire import receive, send

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int4", "uint4", "float4_e2m1fn", "<U3"),
)


def there_and_back(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    near, far = Pipe()
    with near, far:
        send(near, header, arrays)
        return receive(far)


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape))
    data = draw(st.binary(min_size=count, max_size=count))
    numbers = np.frombuffer(data, np.uint8).reshape(shape)
    if dtype.kind == "U":
        array: NDArray[Any] = numbers.astype(dtype)
    elif dtype.itemsize == 1 and dtype.kind == "V" and "4" not in dtype.name[:6]:
        array = numbers.view(dtype) if numbers.ndim else numbers.reshape(1).view(dtype)[0, ...]
    else:
        array = (numbers % 2).astype(dtype)
    if array.ndim and draw(st.booleans()):
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    if draw(st.booleans()):
        array = array.T
    return np.asarray(array)


@given(st.dictionaries(st.text(max_size=5), arrays(), max_size=3))
@settings(max_examples=60, deadline=None)
def test_arrays_survive(given_arrays: dict[str, NDArray[Any]]) -> None:
    header, found = there_and_back({"op": "run"}, given_arrays)
    assert header == {"op": "run"}
    assert list(found) == list(given_arrays)
    for name, want in given_arrays.items():
        got = found[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), ()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_in_the_shapes_that_break(dtype: str, shape: tuple[int, ...]) -> None:
    want = np.zeros(shape, dtype=np.dtype(dtype))
    got = there_and_back({}, {"x": want, "y": np.arange(3)})[1]
    assert (got["x"].shape, got["x"].dtype) == (shape, want.dtype)
    assert got["y"].tolist() == [0, 1, 2]


def test_strings_come_as_strings() -> None:
    words = np.array([["one", "zwölf"], ["", "x"]], dtype=object)
    got = there_and_back({}, {"words": words})[1]["words"]
    assert got.dtype.kind == "U"
    assert got.tolist() == words.tolist()


def test_a_header_of_any_json_survives() -> None:
    header = {"ok": True, "samples": [1, 2], "text": "ü\n", "none": None, "tree": {"a": [1.5]}}
    assert there_and_back(header, {}) == (header, {})


def test_the_other_side_is_gone() -> None:
    near, far = Pipe()
    far.close()
    with near, pytest.raises(OSError, match=r"pipe|reset"):
        send(near, {}, {"x": np.zeros(10)})
    near, far = Pipe()
    near.close()
    with far, pytest.raises(EOFError):
        receive(far)
