"""Every rule about an installed engine is what that engine does, and there are no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from bitworth.engines.cpu import isa
from bitworth.recipe import PER_CHANNEL, PerBlock, Quantize
from bitworth.recipe.eligibility import RULES, rule_against
from bitworth.recipe.recipe import Sign, ZeroPoint
from bitworth.recipe.rules import preference, resolve
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

from .conftest import QUANTIZED_OPS, Native, ort_ops
from .quantized_graphs import CASES, graph, matmul

ENGINES = ("onnxruntime", "openvino")
U8 = Quantize("g", "int8", sign="u8", zero_point="asymmetric", placement="before_activation")
S8 = Quantize("g", "int8", sign="s8", zero_point="symmetric", placement="before_activation")
BARE = Quantize("g", "int8", sign="u8", zero_point="asymmetric", placement="input_only")
DYNAMIC = Quantize("g", "int8", scheme="dynamic", placement="input_only")
WEIGHTS = Quantize("g", "int8", scheme="weight_only", placement="input_only")
INT4 = Quantize("g", "int4", PerBlock(32), scheme="weight_only", placement="input_only")
BLOCKS = Quantize("g", "int8", PerBlock(16), sign="s8", zero_point="symmetric",
                  placement="input_only")  # fmt: skip
CHANNELS = Quantize("g", "int8", activations=PER_CHANNEL, sign="u8", zero_point="symmetric",
                    placement="input_only")  # fmt: skip

#: By rule: an entry, and the operations that it leaves out under that entry.
TRUE: dict[str, list[tuple[Quantize, tuple[str, ...]]]] = {
    "onnxruntime-conv-transpose": [
        (U8, ("ConvTranspose 1d", "ConvTranspose 2d", "ConvTranspose 3d", "ConvTranspose grouped")),
        (S8, ("ConvTranspose 2d", "ConvTranspose depthwise")),
    ],
    "onnxruntime-conv-output": [
        (BARE, ("Conv 1d", "Conv 2d", "Conv 3d", "Conv grouped", "Conv depthwise 2d")),
    ],
    "onnxruntime-gemm-output": [(BARE, ("Gemm biased", "Gemm transB biased"))],
    "onnxruntime-weight-on-left": [
        (U8, ("MatMul left", "MatMul left batched")),
        (DYNAMIC, ("MatMul left",)),
        (WEIGHTS, ("MatMul left",)),
    ],
    "onnxruntime-batched-weight": [(U8, ("MatMul batched",))],
    "onnxruntime-weight-only-operators": [
        (WEIGHTS, ("Conv 2d", "Conv depthwise 2d", "ConvTranspose 2d", "MatMul batched")),
        (INT4, ("MatMul batched",)),
    ],
    "onnxruntime-weight-only-transposed": [(WEIGHTS, ("Gemm transB",)), (INT4, ("Gemm transB",))],
    "onnxruntime-block-weights": [(BLOCKS, ("MatMul 2d", "MatMul 3d", "Gemm"))],
    "onnxruntime-channel-activations": [
        (
            replace(CHANNELS, placement="after_activation"),
            ("Conv depthwise 1d", "Conv depthwise 3d"),
        ),
    ],
    "openvino-dynamic": [(DYNAMIC, ("MatMul 2d", "MatMul 3d", "Gemm", "Gemm transB", "product"))],
    "openvino-grouped-conv-transpose": [
        (S8, ("ConvTranspose grouped", "ConvTranspose depthwise")),
    ],
    "openvino-zero-point": [
        (U8, ("product", "ConvTranspose 2d", "Conv depthwise 3d", "MatMul left")),
        (BARE, ("product", "ConvTranspose 1d", "ConvTranspose 3d", "MatMul left batched")),
    ],
    "openvino-block-weights": [(BLOCKS, ("MatMul 2d", "Gemm", "Gemm transB"))],
    "openvino-weight-only-operators": [
        (WEIGHTS, ("Conv 2d", "ConvTranspose 2d", "MatMul batched", "MatMul left")),
        (INT4, ("MatMul batched",)),
    ],
}  # fmt: skip
SHOWN = [(rule, *pair) for rule, pairs in TRUE.items() for pair in pairs]


@pytest.mark.parametrize(("rule", "entry", "names"), SHOWN)
def test_what_a_rule_leaves_out_does_not_run_natively(
    rule: str, entry: Quantize, names: tuple[str, ...], native: Native
) -> None:
    engine = rule.partition("-")[0]
    for name in names:
        found = rule_against(engine, CASES[name].site, entry)
        assert found is not None, name
        assert found.id == rule
        assert not native(engine, graph(CASES[name], entry)), name


def test_every_rule_about_an_installed_engine_is_shown() -> None:
    measured = {r.id for r in RULES if set(r.engines) & set(ENGINES)}
    assert set(TRUE) == measured
    assert all(r.id.startswith(f"{r.engines[0]}-") for r in RULES if r.engines != ("*",))


def entries(engine: str, name: str) -> list[Quantize]:
    """What a study would ask for: int8 as the engine prefers it, weights alone, scales at run time.

    A Gemm's alpha, which a site does not tell, keeps its weight from being packed.
    """
    site = CASES[name].site
    found = [resolve(Quantize("g", "int8"), preference(engine, isa()), site)]
    if site.op_type in ("MatMul", "Gemm"):
        found += [DYNAMIC]
        found += [WEIGHTS, INT4] if site.weight and name != "Gemm alpha" else []
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_what_no_rule_leaves_out_runs_natively(engine: str, name: str, native: Native) -> None:
    case = CASES[name]
    for entry in entries(engine, name):
        rule = rule_against(engine, case.site, entry)
        # What holds for every engine is about what lowering writes for them all.
        if rule is None or "*" not in rule.engines:
            assert native(engine, graph(case, entry)) == (rule is None), (entry, rule)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["Conv 2d", "Conv depthwise 2d", "Gemm transB", "MatMul 3d"])
def test_it_holds_at_the_lowest_opset_of_int8(engine: str, name: str, native: Native) -> None:
    for entry in (U8, S8):
        assert native(engine, graph(CASES[name], entry, opset=13))


def test_a_block_that_is_cut_short(native: Native) -> None:
    """onnxruntime takes it, OpenVINO refuses it: one rule for all keeps it out."""
    case = matmul((48, 16), (4, 48))
    assert native("onnxruntime", graph(case, INT4))
    assert not native("openvino", graph(case, INT4))
    for engine in ENGINES:
        found = rule_against(engine, case.site, INT4)
        assert found is not None
        assert found.id == "whole-blocks"


def test_activations_by_channel_stay_on_depthwise_convolutions(native: Native) -> None:
    for name in ("Conv depthwise 1d", "Conv depthwise 2d", "Conv depthwise 3d"):
        assert rule_against("openvino", CASES[name].site, CHANNELS) is None
        assert native("openvino", graph(CASES[name], CHANNELS)), name
    for name in ("Conv 2d", "Conv grouped", "MatMul 2d", "Gemm", "ConvTranspose 2d"):
        found = rule_against("openvino", CASES[name].site, CHANNELS)
        assert found is not None
        assert found.id == "channels-summed"
        assert not native("openvino", graph(CASES[name], CHANNELS)), name


#: What stands between an operation and the next one, a bias addition first.
FOLLOWED = [("Relu",), ("Clip",), ("Tanh",), ("Add",), ("Add", "Relu"), ("Add", "Tanh")]


@pytest.mark.parametrize("sign", ["auto", "u8", "s8"])
@pytest.mark.parametrize("zero_point", ["auto", "symmetric"])
@pytest.mark.parametrize("name", ["Conv 2d", "Conv depthwise 2d", "Gemm", "MatMul 2d", "MatMul 3d"])
def test_onnxruntime_fuses_what_its_preference_says(
    name: str, sign: Sign, zero_point: ZeroPoint, native: Native
) -> None:
    case = CASES[name]
    asked = Quantize("g", "int8", sign=sign, zero_point=zero_point)
    # A convolution's bias is part of it.
    for after in FOLLOWED if name in ("MatMul 2d", "MatMul 3d") else FOLLOWED[:3]:
        site = replace(case.site, becomes_gemm="Add" in after)
        entry = resolve(asked, preference("onnxruntime", isa()), site)
        fused = entry.fused is None or set(after) <= {*entry.fused, "Add"}
        # Lowering puts the output's Q/DQ in front of what is not fused.
        placed = entry if fused else replace(entry, placement="before_activation")
        assert native("onnxruntime", graph(case, placed, after=after)), after


@pytest.mark.parametrize(
    ("name", "after", "sign", "zero_point"),
    [
        ("Conv 2d", ("Relu",), "s8", "symmetric"),
        ("Conv 2d", ("Clip",), "s8", "symmetric"),
        ("Conv 2d", ("Tanh",), "u8", "asymmetric"),
        ("Gemm", ("Relu",), "s8", "symmetric"),
        ("MatMul 2d", ("Add", "Tanh"), "u8", "asymmetric"),
        ("MatMul 3d", ("Add", "Relu"), "u8", "asymmetric"),
        ("MatMul 3d", ("Add",), "s8", "symmetric"),
    ],
)
def test_behind_what_onnxruntime_does_not_fuse_it_computes_in_float(
    name: str, after: tuple[str, ...], sign: Sign, zero_point: ZeroPoint, native: Native
) -> None:
    entry = Quantize("g", "int8", sign=sign, zero_point=zero_point, placement="after_activation")
    assert not native("onnxruntime", graph(CASES[name], entry, after=after))


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("bias", [(16,), (1, 16), (4, 16), (1,), (), (1, 1, 16)])
@pytest.mark.parametrize("free", [(), (0,)])
def test_what_becomes_a_gemm_computes_in_float_without_a_quantized_output(
    rank: int, bias: tuple[int, ...], free: tuple[int, ...], tmp_path: Path
) -> None:
    name = f"MatMul {rank}d"
    shape: list[int | str] = [*CASES[name].x]
    for axis in free:
        shape[axis] = f"n{axis}"
    written = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["p"]),
            onnx.helper.make_node("Add", ["p", "bias"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.ones((32, 16), np.float32), "w"),
            onnx.numpy_helper.from_array(np.ones(bias, np.float32), "bias"),
        ],
    )
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(
        onnx.helper.make_model(written, opset_imports=opset, ir_version=10), tmp_path / "m.onnx"
    )
    (site,) = find_sites(prepare(load(tmp_path / "m.onnx"), 21)).sites
    quantized = graph(CASES[name], BARE, after=("Add",))
    (constant,) = [t for t in quantized.graph.initializer if t.name == "bias"]
    constant.CopyFrom(onnx.numpy_helper.from_array(np.ones(bias, np.float32), "bias"))
    dims = quantized.graph.input[0].type.tensor_type.shape.dim
    for axis in free:
        dims[axis].dim_param = f"n{axis}"
    assert bool(QUANTIZED_OPS & set(ort_ops(quantized, tmp_path))) != site.becomes_gemm
