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
from bitworth.recipe.rules import EMULATED, preference, resolve

ENGINES = ("onnxruntime", "openvino", "tensorrt", "mock")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp32", np.float32),
        ("fp16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("int8", np.int8),
        ("int4", ml_dtypes.int4),
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn),
        ("fp8_e5m2", ml_dtypes.float8_e5m2),
        ("mxfp8", ml_dtypes.float8_e4m3fn),
        ("nvfp4", ml_dtypes.float4_e2m1fn),
    ],
)
def test_the_table_of_formats(name: str, dtype: type) -> None:
    found = format_named(name)
    info = ml_dtypes.iinfo(dtype) if name.startswith("int") else ml_dtypes.finfo(dtype)
    assert found.name == name
    assert found.largest == float(info.max)
    assert found.bits == info.bits
    assert found.role == ("base" if name in ("fp32", "fp16", "bf16") else "quantized")
    assert (found.element == "float") == (found.role == "base")


@pytest.mark.parametrize(
    ("name", "opset", "block", "scale"),
    [
        ("int8", 13, None, "float"),  # Q/DQ by channel
        ("int4", 21, None, "float"),
        ("fp8_e4m3", 19, None, "float"),
        ("fp8_e5m2", 19, None, "float"),
        ("nvfp4", 23, 16, "fp8_e4m3"),
        ("mxfp8", 24, 32, "e8m0"),
    ],
)
def test_what_a_quantized_format_needs(
    name: str, opset: int, block: int | None, scale: str
) -> None:
    found = FORMATS[name]
    assert (found.onnx_opset, found.block, found.scale) == (opset, block, scale)
    assert found.weights_only == (name == "int4")


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="unknown format 'int7'; known: fp32, fp16, bf16, int8"):
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
        if field.name == "fused":
            continue
        open_ = was == "auto" or (field.name in ("shared", "residual") and was is None)
        assert now == (getattr(preferred, field.name) if open_ else was)
    signed = (done.format, done.sign, done.zero_point) == ("int8", "s8", "symmetric")
    assert done.fused == (preferred.fused_signed if signed else preferred.fused)
    assert resolve(done, preferred) == done


@pytest.mark.parametrize(
    ("engine", "isa"), list(product(ENGINES, [(), ("avx2",), ("avx512_vnni",), ("amx_int8",)]))
)
def test_preferences_say_why(engine: str, isa: tuple[str, ...]) -> None:
    found = preference(engine, isa)
    assert "auto" not in vars(found).values()
    assert found.reason
    assert "\n" not in found.reason
    # 16-bit sums saturate where there is no 8-bit dot product; a GPU has one.
    narrow = isa in ((), ("avx2",)) and engine != "tensorrt"
    assert found.weight_range == ("reduced" if narrow else "full")
    assert ("7 bits" in found.reason) == narrow


def test_what_is_given_stands() -> None:
    given_all = Quantize("all", "int8", sign="s8", placement="input_only", fused=("Relu",))
    done = resolve(given_all, preference("onnxruntime", ()))
    assert (done.sign, done.placement, done.fused) == ("s8", "input_only", ("Relu",))


SITES = {
    "conv": Site("w", "n", "Conv", "w", (8, 8, 3, 3), 0, 1, "x", "y"),
    "depthwise 3d": Site("w", "n", "Conv", "w", (8, 1, 3, 3, 3), 0, 1, "x", "y", 8),
    "transposed": Site("w", "n", "ConvTranspose", "w", (8, 8, 2, 2), 1, 1, "x", "y"),
    "gemm": Site("w", "n", "Gemm", "w", (8, 8), 1, 1, "x", "y"),
    "gemm biased": Site("w", "n", "Gemm", "w", (8, 8), 1, 1, "x", "y", biased=True),
    "matmul": Site("w", "n", "MatMul", "w", (8, 8), 1, 1, "x", "y"),
    "joined": Site("w", "n", "MatMul", "w", (8, 8), 1, 1, "x", "y", becomes_gemm=True),
    "left": Site("w", "n", "MatMul", "w", (8, 8), 0, 0, "x", "y"),
    "product": Site("@matmul:a/1", "n", "MatMul", "", (), 0, 1, "x", "y", second="z", scope="a"),
}


@pytest.mark.parametrize(
    ("engine", "signed", "placed"),
    [
        (
            "onnxruntime",
            {},
            {
                "gemm": "input_only",
                "matmul": "input_only",
                "joined": "before_activation",
                "left": "input_only",
                "product": "input_only",
            },
        ),
        (
            "openvino",
            {"depthwise 3d", "transposed", "left", "product"},
            dict.fromkeys(("gemm", "gemm biased", "matmul", "joined", "product"), "input_only"),
        ),
        ("tensorrt", set(SITES), {}),
        ("mock", {}, {}),
    ],
)
def test_what_an_engine_prefers_for_a_site(
    engine: str, signed: set[str], placed: dict[str, str]
) -> None:
    preferred = preference(engine, ("avx2",))
    for name, site in SITES.items():
        done = resolve(Quantize("all", "int8"), preferred, site)
        expected = ("s8", "symmetric") if name in signed else ("u8", "asymmetric")
        assert (done.sign, done.zero_point) == expected, name
        assert done.placement == placed.get(name, "after_activation"), name
        # What is given stands, whatever the site.
        given_all = Quantize(
            "all", "int8", sign="u8", zero_point="asymmetric", placement="after_activation"
        )
        kept = resolve(given_all, preferred, site)
        assert (kept.sign, kept.zero_point, kept.placement) == (
            "u8", "asymmetric", "after_activation",
        )  # fmt: skip
    assert all(p.reason and "\n" not in p.reason for p in preferred.sites)


@pytest.mark.parametrize(
    ("sign", "zero_point", "fused"),
    [
        ("auto", "auto", ("Relu", "Clip")),
        ("u8", "symmetric", ("Relu", "Clip")),
        ("by_range", "symmetric", ("Relu", "Clip")),
        ("s8", "asymmetric", ("Relu", "Clip")),
        ("s8", "symmetric", ()),
    ],
)
def test_signed_values_around_zero_do_not_hide_a_relu(
    sign: Sign, zero_point: ZeroPoint, fused: tuple[str, ...]
) -> None:
    asked = Quantize("all", "int8", sign=sign, zero_point=zero_point)
    assert resolve(asked, preference("onnxruntime", ())).fused == fused
    assert resolve(asked, preference("openvino", ())).fused is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("site", [None, *SITES.values()])
@pytest.mark.parametrize(
    "entry",
    [
        Quantize("all", "int8", scheme="dynamic"),
        Quantize("all", "int8", scheme="weight_only"),
        Quantize("all", "int4", scheme="weight_only"),
        Quantize("all", "int4"),
        Quantize("all", "nvfp4", scheme="dynamic", placement="after_activation"),
    ],
)
def test_only_static_scales_stand_at_outputs(
    engine: str, site: Site | None, entry: Quantize
) -> None:
    assert resolve(entry, preference(engine, ()), site).placement == "input_only"
    assert resolve(entry, EMULATED, site).placement == "input_only"


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
