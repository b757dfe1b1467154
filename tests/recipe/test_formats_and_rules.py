from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from itertools import product
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bitworth.recipe as public
from bitworth.engines.cpu import ISA_FLAGS
from bitworth.recipe import FORMATS, PER_CHANNEL, PER_TENSOR, Quantize, Recipe, Site, format_named
from bitworth.recipe.recipe import Placement, Sign, WeightRange, ZeroPoint
from bitworth.recipe.rules import preference, resolve

ENGINES = ("onnxruntime", "openvino", "mock")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp32", np.float32),
        ("bf16", ml_dtypes.bfloat16),
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn),
        ("int8", np.int8),
    ],
)
def test_the_table_of_formats(name: str, dtype: type) -> None:
    found = format_named(name)
    info = np.iinfo(dtype) if name == "int8" else ml_dtypes.finfo(dtype)
    assert found.name == name
    assert found.largest == float(info.max)
    assert found.bits == np.dtype(dtype).itemsize * 8
    assert found.role == ("base" if name in ("fp32", "bf16") else "quantized")


def test_no_format_is_without_a_test() -> None:
    assert list(FORMATS) == ["fp32", "bf16", "int8", "fp8_e4m3"]
    # Per-channel Q/DQ needs opset 13, FP8 needs 19.
    assert FORMATS["int8"].onnx_opset == 13
    assert FORMATS["fp8_e4m3"].onnx_opset == 19


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="unknown format 'int7'; known: fp32, bf16, int8, fp8_e4m3"):
        format_named("int7")


def test_the_table_and_a_recipe_are_frozen() -> None:
    with pytest.raises(TypeError):
        FORMATS["fp32"] = FORMATS["int8"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        Recipe().base = "bf16"  # type: ignore[misc]
    assert Recipe() == Recipe("fp32", ())
    entry = Quantize("all", "int8")
    assert (entry.weights, entry.activations) == (PER_CHANNEL, PER_TENSOR)
    assert hash(Recipe("fp32", (entry,)))


def test_public_names_exist() -> None:
    assert len(set(public.__all__)) == len(public.__all__)
    assert all(hasattr(public, name) for name in public.__all__)


quantizations = st.builds(
    Quantize,
    group=st.just("all"),
    format=st.sampled_from(["int8", "fp8_e4m3"]),
    sign=st.sampled_from(get_args(Sign)),
    zero_point=st.sampled_from(get_args(ZeroPoint)),
    weight_range=st.sampled_from(get_args(WeightRange)),
    placement=st.sampled_from(get_args(Placement)),
)


@given(quantizations, st.sampled_from(ENGINES), st.sets(st.sampled_from(ISA_FLAGS)))
@settings(max_examples=50, deadline=None)
def test_resolving_leaves_no_auto_and_changes_nothing_else(
    quantize: Quantize, engine: str, isa: set[str]
) -> None:
    preferred = preference(engine, isa)
    done = resolve(quantize, preferred)
    for field in fields(Quantize):
        was, now = getattr(quantize, field.name), getattr(done, field.name)
        assert now != "auto"
        open_ = was == "auto" or (field.name == "fused" and was is None)
        assert now == (getattr(preferred, field.name) if open_ else was)
    assert resolve(done, preferred) == done


@pytest.mark.parametrize(
    ("engine", "isa"), list(product(ENGINES, [(), ("avx2",), ("avx512_vnni",), ("amx_int8",)]))
)
def test_preferences_say_why(engine: str, isa: tuple[str, ...]) -> None:
    found = preference(engine, isa)
    assert "auto" not in vars(found).values()
    assert found.reason
    assert "\n" not in found.reason
    # 16-bit sums saturate where there is no 8-bit dot product.
    narrow = isa in ((), ("avx2",))
    assert found.weight_range == ("reduced" if narrow else "full")
    assert ("7 bits" in found.reason) == narrow


def test_what_is_given_stands() -> None:
    given_all = Quantize("all", "int8", sign="s8", placement="input_only", fused=("Relu",))
    done = resolve(given_all, preference("onnxruntime", ()))
    assert (done.sign, done.placement, done.fused) == ("s8", "input_only", ("Relu",))


@pytest.mark.parametrize(
    ("op_type", "shape", "axis", "weight_input", "groups", "channels"),
    [
        ("Conv", (16, 4, 3, 3), 0, 1, 2, (4, 16)),
        ("ConvTranspose", (8, 6, 3, 3), 1, 1, 2, (4, 12)),
        ("Gemm", (10, 20), 0, 1, 1, (20, 10)),  # transB
        ("Gemm", (20, 10), 1, 1, 1, (20, 10)),
        ("MatMul", (20, 10), 1, 1, 1, (20, 10)),
        ("MatMul", (3, 20, 10), 2, 1, 1, (20, 10)),
        ("MatMul", (3, 10, 20), 1, 0, 1, (20, 10)),  # W @ x
    ],
)
def test_channels_of_a_site(
    op_type: str,
    shape: tuple[int, ...],
    axis: int,
    weight_input: int,
    groups: int,
    channels: tuple[int, int],
) -> None:
    site = Site("w", "n", op_type, "w", shape, axis, weight_input, "x", "y", groups)
    assert (site.in_channels, site.out_channels) == channels
