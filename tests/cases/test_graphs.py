"""Rows 5, 7, 9, 16 and 21: what is a site, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bitworth.lowering.onnx_qdq import lower
from bitworth.recipe import PER_CHANNEL
from bitworth.recipe.eligibility import excluded
from bitworth.recipe.groups import Group, members
from bitworth.recipe.rules import preference, resolve
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

from .tools import (
    SITE_OPS,
    Array,
    case,
    rand,
    recipe_for,
    rel_l2,
    run_exact,
    write_model,
)

EVERY_OP = pytest.mark.parametrize("op", SITE_OPS)

#: Attention as exporters write it; two layers, each with two products of two activations.
ATTENTION = """
g (float[N, S, 8] x) => (float[N, S, 8] y) {
    q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  kt0 = Transpose<perm = [0, 2, 1]>(k0)
    s0 = MatMul(q0, kt0)  d0 = Div(s0, root)  p0 = Softmax<axis = -1>(d0)  a0 = MatMul(p0, x)
    q1 = MatMul(a0, wq)  kt1 = Transpose<perm = [0, 2, 1]>(a0)
    s1 = MatMul(q1, kt1)  p1 = Softmax<axis = -1>(s1)  a1 = MatMul(p1, a0)
    y = Add(a1, x)
}
"""
ATTENTION_WEIGHTS = {"wq": rand(8, 8), "wk": rand(8, 8, seed=1), "root": np.array(2, np.float32)}


def test_row_05_products_of_two_activations_are_left_alone(tmp_path: Path) -> None:
    """Off unless asked for: they are listed, they are in no group, and "all" is without them."""
    path = write_model(tmp_path / "m.onnx", ATTENTION, ATTENTION_WEIGHTS)
    x = rand(2, 5, 8)
    subject = case(path, [{"x": x}])
    assert [s.id for s in subject.scan.sites] == ["wq", "wk", "wq#2"]
    assert len(subject.scan.attention) == 4
    model = subject.lowered(recipe_for("int8", placement="input_only"))
    before = {n.name: [v.name for v in n.inputs if v] for n in subject.prepared.model.graph}
    for node in model.graph:
        if node.name in {s.node for s in subject.scan.attention}:
            assert [v.name for v in node.inputs if v] == before[node.name]


@pytest.mark.parametrize("chosen", range(4))
def test_row_05_all_or_none_of_an_attention(tmp_path: Path, chosen: int) -> None:
    """A group that names one product has those of its attention, and no other's."""
    path = write_model(tmp_path / "m.onnx", ATTENTION, ATTENTION_WEIGHTS)
    scan = find_sites(prepare(load(path), 19))
    one = scan.attention[chosen]
    group = Group("attention", names=(one.id,), attention=True)
    found = members(group, scan.sites, {}, scan.attention)
    assert {s.id for s in found} == {s.id for s in scan.attention if s.scope == one.scope}
    assert len(found) == 2
    without = Group("attention", exclude=(one.id,), attention=True)
    assert not set(members(without, scan.sites, {}, scan.attention)) & set(found)


def test_row_05_asked_for_it_is_quantized(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", ATTENTION, ATTENTION_WEIGHTS)
    x = rand(2, 5, 8)
    subject = case(path, [{"x": x}])
    variant = subject.scaled(recipe_for("int8"), subject.scan.attention)
    assert len(variant.scaled.quantized) == 4
    model = lower(variant.graph.prepared, variant.scaled.quantized)
    products = {s.node for s in subject.scan.attention}
    for node in model.graph:
        if node.name in products:
            kinds = [v.producer().op_type for v in node.inputs if v is not None]  # type: ignore[union-attr]
            assert kinds == ["DequantizeLinear"] * 2
    got, want = (run_exact(serialize(m), {"x": x})["y"] for m in (model, subject.prepared.model))
    assert rel_l2(got, want) < 0.05


#: Convolutions in groups: channels, groups, output channels.
GROUPED = {"depthwise": (32, 32, 32), "multiplied": (16, 16, 32), "grouped": (32, 4, 64)}


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_row_07_grouped_convolutions_have_no_fp8_kernel(
    tmp_path: Path, kind: str, op: str, name: str
) -> None:
    """An engine's rule leaves them out and says why; the others stay in."""
    channels, groups, out = GROUPED[kind]
    shape = (out, channels // groups, 3, 3) if op == "Conv" else (channels, out // groups, 3, 3)
    graph = (
        f"g (float[1, {channels}, 8, 8] x) => (float[1, {out}, A, B] y)"
        f"{{ y = {op}<group = {groups}>(x, w) }}"
    )
    path = write_model(tmp_path / "m.onnx", graph, {"w": rand(*shape)})
    subject = case(path, [{"x": rand(1, channels, 8, 8)}])
    scaled = subject.scaled(recipe_for(name), engine="tensorrt").scaled
    assert scaled.quantized == ()
    ((site, reason),) = scaled.left_out
    assert site == "w"
    assert reason.startswith("rule ")
    assert "FP8" in reason
    assert "grouped" in reason


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "tensorrt"])
def test_row_07_int8_depthwise_is_left_to_the_measurement(tmp_path: Path, engine: str) -> None:
    """No rule forbids it: whether it pays is measured (see the study of row 8)."""
    graph = (
        "g (float[1, 32, 8, 8] x) => (float[1, 32, A, B] y)"
        "{ c = Conv<group = 32>(x, w) r = Relu(c) y = Conv<group = 32>(r, w) }"
    )
    path = write_model(tmp_path / "m.onnx", graph, {"w": rand(32, 1, 3, 3)})
    subject = case(path, [{"x": rand(1, 32, 8, 8)}])
    quantized = subject.scaled(recipe_for("int8"), engine=engine).scaled.quantized
    assert "w" in [q.site.id for q in quantized]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_row_09_the_first_convolution(tmp_path: Path, channels: int, name: str) -> None:
    """The stem is left out of FP8 by a rule with its reason; what follows is not."""
    graph = (
        f"g (float[1, {channels}, 9, 9] x) => (float[1, 32, A, B] y)"
        "{ c = Conv(x, stem) r = Relu(c) y = Conv(r, body) }"
    )
    weights = {"stem": rand(16, channels, 3, 3), "body": rand(32, 16, 3, 3)}
    path = write_model(tmp_path / "m.onnx", graph, weights)
    subject = case(path, [{"x": rand(1, channels, 9, 9)}])
    scaled = subject.scaled(recipe_for(name), engine="tensorrt").scaled
    assert [q.site.id for q in scaled.quantized] == ["body"]
    ((site, reason),) = scaled.left_out
    assert site == "stem"
    assert "first convolution" in reason
    # In int8 the same engine takes it.
    entry = resolve(recipe_for("int8"), preference("tensorrt", ()))
    assert excluded("tensorrt", [(s, entry) for s in subject.scan.sites]) == {}


#: How exporters hide a weight: nodes that turn ``s``, as stored, into ``w``, and the stored shape.
HIDDEN: dict[str, tuple[str, tuple[int, ...], str]] = {
    "Identity": ("w = Identity(s)", (6, 4), "float32"),
    "Identities": ("a = Identity(s) b = Identity(a) w = Identity(b)", (6, 4), "float32"),
    "Cast": ("w = Cast<to = 1>(s)", (6, 4), "float16"),
    "Cast twice": ("a = Cast<to = 11>(s) w = Cast<to = 1>(a)", (6, 4), "float16"),
    "Transpose": ("w = Transpose<perm = [1, 0]>(s)", (4, 6), "float32"),
    "Transpose twice": ("a = Transpose(s) w = Transpose(a) ", (6, 4), "float32"),
    "Reshape": ("w = Reshape(s, shape)", (2, 12), "float32"),
    "Unsqueeze": ("a = Unsqueeze(s, one) w = Reshape(a, shape)", (6, 4), "float32"),
    "Squeeze": ("w = Squeeze(s, one)", (6, 1, 4), "float32"),
    "Flatten": ("w = Flatten(s)", (6, 2, 2), "float32"),
    "Cast, Transpose": ("a = Cast<to = 1>(s) w = Transpose(a)", (4, 6), "float16"),
    "Transpose, Identity, Reshape": (
        "a = Transpose(s) b = Identity(a) w = Reshape(b, shape)", (12, 2), "float32",
    ),
    "Mul": ("w = Mul(s, two)", (6, 4), "float32"),
    "Concat": ("w = Concat<axis = 0>(s, s)", (3, 4), "float32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("consumer", ["MatMul", "Gemm", "two", "Gather too"])
@pytest.mark.parametrize("stored", ["initializer", "Constant"])
def test_row_16_a_weight_behind_other_nodes(
    tmp_path: Path, kind: str, consumer: str, stored: str
) -> None:
    """It is folded: the site is found, with a constant weight, and quantizes."""
    nodes, shape, dtype = HIDDEN[kind]
    use = {
        "MatMul": "y = MatMul(x, w)",
        "Gemm": "y = Gemm(x, w)",
        "two": "p = MatMul(x, w) q = Gemm(x, w) y = Add(p, q)",
        "Gather too": "p = MatMul(x, w) q = Gather(s, zero) r = ReduceSum<keepdims = 0>(q)"
        "r1 = Cast<to = 1>(r) y = Add(p, r1)",
    }[consumer]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"g (float[N, 6] x) => (float[N, 4] y) {{ {nodes} {use} }}"
    )
    arrays: dict[str, Array] = {
        "s": rand(*shape, dtype=dtype),
        "shape": np.array([6, 4]),
        "one": np.array([1]),
        "zero": np.array([0]),
        "two": np.array(2, np.float32),
    }
    read = {name for node in model.graph.node for name in node.input}
    for name in read & arrays.keys():
        tensor = numpy_helper.from_array(arrays[name], name)
        if stored == "initializer":
            model.graph.initializer.append(tensor)
        else:
            model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    sample = {"x": rand(3, 6)}
    subject = case(path, [sample])
    expected = 2 if consumer == "two" else 1
    assert len(subject.scan.sites) == expected
    assert not subject.scan.attention
    for site in subject.scan.sites:
        assert site.weight in subject.prepared.model.graph.initializers
        assert site.weight_shape == (6, 4)
    want = run_exact(path, sample)["y"]
    quantized = subject.scaled(recipe_for("int8", weights=PER_CHANNEL))
    assert len(quantized.scaled.quantized) == expected
    model_ = lower(quantized.graph.prepared, quantized.scaled.quantized)
    assert rel_l2(run_exact(serialize(model_), sample)["y"], want) < 0.05


@pytest.mark.parametrize("kind", ["Identity", "Cast", "Transpose", "Reshape", "Unsqueeze"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_row_16_a_convolutions_weight(tmp_path: Path, kind: str, op: str) -> None:
    shape = (6, 4, 3, 3) if op == "Conv" else (4, 6, 3, 3)
    weight = rand(*shape)
    hidden = {
        "Identity": ("w = Identity(s)", weight),
        "Cast": ("w = Cast<to = 1>(s)", weight.astype(np.float16)),
        "Transpose": (
            "w = Transpose<perm = [3, 2, 0, 1]>(s)", np.transpose(weight, (2, 3, 1, 0)).copy(),
        ),
        "Reshape": ("w = Reshape(s, shape)", weight.reshape(shape[0], -1)),
        "Unsqueeze": (
            "u = Unsqueeze(s, axes) w = Reshape(u, shape)", weight.reshape(shape[0], -1, 3),
        ),
    }  # fmt: skip
    nodes, array = hidden[kind]
    graph = f"g (float[1, 4, 6, 6] x) => (float[1, 6, A, B] y) {{ {nodes} y = {op}(x, w) }}"
    arrays = {"s": array, "shape": np.array(shape), "axes": np.array([0])}
    used = {k: v for k, v in arrays.items() if f"{k})" in graph or f"({k}" in graph}
    path = write_model(tmp_path / "m.onnx", graph, used)
    sample = {"x": rand(1, 4, 6, 6)}
    subject = case(path, [sample])
    (site,) = subject.scan.sites
    assert (site.op_type, site.weight_shape) == (op, shape)
    got = run_exact(serialize(subject.lowered(recipe_for("int8"))), sample)["y"]
    assert rel_l2(got, run_exact(path, sample)["y"]) < 0.05


#: Ways in which a model can be quantized already: nodes from x to y, further domains.
QUANTIZED: dict[str, str] = {
    "Q/DQ": "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)",
    "a weight": "v = DequantizeLinear(k, s, kz) y = MatMul(x, v)",
    "dynamic": "q, ds, dz = DynamicQuantizeLinear(x) y = DequantizeLinear(q, ds, dz)",
    "MatMulInteger": "q, ds, dz = DynamicQuantizeLinear(x) m = MatMulInteger(q, k)"
    " y = Cast<to = 1>(m)",
    "QLinearMatMul": "q = QuantizeLinear(x, s, z) m = QLinearMatMul(q, s, z, k, s, kz, s, z)"
    " y = DequantizeLinear(m, s, z)",
    "MatMulNBits": "y = com.microsoft.MatMulNBits"
    "<K = 4, N = 4, bits = 4, block_size = 16>(x, p, ps)",
}
_QUANTIZED_ARRAYS: dict[str, Array] = {
    "s": np.array(0.1, np.float32),
    "z": np.array(128, np.uint8),
    "k": np.arange(-8, 8).reshape(4, 4).astype(np.int8),
    "kz": np.array(0, np.int8),
    "p": np.zeros((4, 1, 8), np.uint8),
    "ps": np.ones(4, np.float32),
}


def quantized_model(path: Path, kind: str, place: str) -> Path:
    text = QUANTIZED[kind]
    words = set(re.findall(r"\w+", text))
    arrays = {k: v for k, v in _QUANTIZED_ARRAYS.items() if k in words}
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "own" : 1]>'
    if place == "main graph":
        model = onnx.parser.parse_model(
            f"{header} g (float[N, 4] x) => (float[N, 4] y) {{ {text} }}"
        )
    else:
        inner = re.sub(r"\by =", "o =", text)
        model = onnx.parser.parse_model(
            f"{header} g (float[N, 4] x, bool c) => (float[N, 4] y) {{ y = If(c) <"
            f"then_branch = t () => (float[N, 4] o) {{ {inner} }},"
            "else_branch = e () => (float[N, 4] p2) { p2 = Relu(x) }> }"
        )
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("place", ["main graph", "body"])
def test_row_21_a_model_that_is_quantized_already(
    bitworth: Callable[..., Any], tmp_path: Path, kind: str, place: str
) -> None:
    """It is told, and refused as a baseline with what to give instead; nothing is written."""
    path = quantized_model(tmp_path / "q.onnx", kind, place)
    model = load(path)
    assert model.has_qdq
    assert prepare(model, 17).has_qdq
    assert find_sites(prepare(model, 17)).already_quantized
    outcome = bitworth("study", "q.onnx", "--random-inputs", "--engine", "mock")
    assert outcome.code == 2
    line = outcome.err.strip().splitlines()[-1]
    assert "q.onnx" in line
    assert "float original" in line
    assert "bitworth compare" in line
    assert not list(tmp_path.glob("studies/**/*.md"))
