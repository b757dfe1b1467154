"""Rows 5, 7, 9, 13, 14, 16, 21, 24 and 27: what a graph looks like before it is quantized."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitworth.lowering.onnx_qdq import lower
from bitworth.recipe import FORMATS, PER_CHANNEL, PER_TENSOR
from bitworth.recipe.eligibility import excluded
from bitworth.recipe.groups import Group, members
from bitworth.recipe.rules import preference, resolve
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import graph_sha256, prepare
from bitworth.subject.saving import save, serialize
from bitworth.subject.sites import find_sites

from .tools import (
    SITE_OPS,
    Array,
    Engines,
    case,
    rand,
    recipe_for,
    rel_l2,
    run_exact,
    site_graph,
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


def external_model(folder: Path) -> tuple[Path, dict[str, Array]]:
    """A model whose initializers, and the constants in the bodies of its If, lie in a file."""
    weights = {"w": rand(16, 16), "v": rand(16, 16, seed=1)}
    inner = {"then": rand(16, 16, seed=2), "else": rand(16, 16, seed=3)}
    blob = bytearray()

    def external(name: str, array: Array) -> TensorProto:
        tensor = numpy_helper.from_array(array, name)
        data = array.tobytes()
        start = len(blob)
        blob.extend(data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "m.data"), ("offset", start), ("length", len(data))):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def body(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], [f"c_{name}"], value=external("", inner[name])),
            helper.make_node("MatMul", ["h", f"c_{name}"], [f"o_{name}"]),
        ]
        output = helper.make_tensor_value_info(f"o_{name}", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [output])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["c"], ["i"], then_branch=body("then"), else_branch=body("else")),
        helper.make_node("MatMul", ["i", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        [external(n, a) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    (folder / "m.data").write_bytes(blob)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx", {**weights, **inner}


@pytest.mark.parametrize("external_above", [0, 10**9])
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("opset", [17, 19])
def test_row_13_external_data_is_saved_elsewhere(
    tmp_path: Path, external_above: int, flag: bool, quantized: bool, opset: int
) -> None:
    """What is written to another folder is whole: the original may go."""
    path, weights = external_model(tmp_path / "given")
    sample = {"x": rand(3, 16), "c": np.array(flag)}
    subject = case(path, [sample], opset)
    model = subject.lowered(recipe_for("int8")) if quantized else subject.prepared.model
    target = tmp_path / "elsewhere" / "other.onnx"
    save(model, target, external_above=external_above)
    middle = weights["then" if flag else "else"]
    shutil.rmtree(path.parent)
    assert (target.with_name("other.onnx.data").exists()) == (external_above == 0)
    onnx.checker.check_model(str(target))
    got = run_exact(target, sample)["y"]
    want = sample["x"] @ weights["w"] @ middle @ weights["v"]
    assert rel_l2(got, want) < (0.05 if quantized else 1e-5)
    assert find_sites(prepare(load(target), 17)).already_quantized == quantized


@pytest.mark.parametrize("place", range(4))
def test_row_13_every_external_byte_is_part_of_the_identity(tmp_path: Path, place: int) -> None:
    """A weight that changed beside an unchanged model file is another model."""
    path, _ = external_model(tmp_path / "given")
    before = load(path)
    prepared = graph_sha256(prepare(before, 17).model)
    data = bytearray((path.parent / "m.data").read_bytes())
    data[place * 16 * 16 * 4 + 5] ^= 0xFF
    (path.parent / "m.data").write_bytes(data)
    after = load(path)
    assert after.sha256 == before.sha256
    assert after.identity_sha256 != before.identity_sha256
    assert graph_sha256(prepare(load(path), 17).model) != prepared


#: Operators whose inputs or attributes moved between operator sets: text, inputs, first opset.
MOVED = {
    "Squeeze and Unsqueeze": "u = Unsqueeze<axes = [0]>(m)  v = Squeeze<axes = [0]>(u)",
    "Softmax": "v = Softmax<axis = 1>(m)",
    "Pad": 'v = Pad<pads = [0, 0, 0, 2], mode = "constant">(m)',
    "Clip": "v = Clip<min = -1.0, max = 1.0>(m)",
    "ReduceMean": "v = ReduceMean<axes = [1], keepdims = 1>(m)",
    "Split": "p, q = Split<axis = 1, split = [2, 3]>(m)  v = Concat<axis = 1>(q, p)",
    "Dropout": "v = Dropout<ratio = 0.5>(m)",
    "Upsample": 'r = Reshape(m, four)  s = Upsample<mode = "nearest">(r, scales)  v = Flatten(s)',
    "Slice": "v = Slice<axes = [1], starts = [1], ends = [4]>(m)",
}
_FIRST = {"Upsample": 9}


@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("name", [f.name for f in FORMATS.values() if f.role == "quantized"])
def test_row_14_the_opset_that_a_format_needs(tmp_path: Path, kind: str, name: str) -> None:
    """Raised from 9 to what the format needs, the model is valid, the same, and quantizable."""
    graph = (
        f"g (float[N, 6] x) => (float[N, K] y) {{ m = MatMul(x, w)  {MOVED[kind]}  y = Relu(v) }}"
    )
    weights = {
        "w": rand(6, 5),
        "four": np.array([0, 1, 1, 5]),
        "scales": np.array([1, 1, 1, 2], np.float32),
    }
    used = {k: v for k, v in weights.items() if k in graph}
    path = write_model(tmp_path / "m.onnx", graph, used, opset=9)
    sample = {"x": rand(3, 6)}
    opset = FORMATS[name].onnx_opset
    subject = case(path, [sample], opset)
    assert subject.prepared.opset == opset
    got = run_exact(serialize(subject.prepared.model), sample)["y"]
    assert np.allclose(got, run_exact(path, sample)["y"], rtol=1e-5, atol=1e-6)
    assert [s.id for s in subject.scan.sites] == ["w"]
    if FORMATS[name].block is None and name != "int4":
        model = subject.lowered(recipe_for(name))
        assert np.isfinite(run_exact(serialize(model), sample)["y"]).all()


@EVERY_OP
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_row_14_scales_have_the_type_that_their_tensor_needs(
    tmp_path: Path, op: str, dtype: str, name: str
) -> None:
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = {"w": rand(*shape, dtype=dtype)}
    if op != "MatMul":
        weights["b"] = rand(shape[axis], dtype=dtype)
    graph = site_graph(op, dtype={"float32": "float", "float16": "float16"}[dtype])
    path = write_model(tmp_path / "m.onnx", graph, weights)
    sample = {"x": rand(*SITE_OPS[op][2], dtype=dtype)}
    model = case(path, [sample]).lowered(recipe_for(name))
    kind = ir.DataType.FLOAT if dtype == "float32" else ir.DataType.FLOAT16
    nodes = [n for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len(nodes) >= 3
    assert {n.inputs[1].dtype for n in nodes if n.inputs[1] is not None} == {kind}
    got = run_exact(serialize(model), sample)["y"]
    assert rel_l2(got, run_exact(path, sample)["y"]) < 0.15


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


#: Convolutions of every rank, and the rest, as a float export has them.
EXPORTED = {
    "Conv 1d": ("Conv(x, w)", (8, 4, 3), (1, 4, 9)),
    "Conv 2d": ("Conv(x, w)", (8, 4, 3, 3), (1, 4, 7, 7)),
    "Conv 3d": ("Conv(x, w)", (8, 4, 2, 2, 2), (1, 4, 4, 4, 4)),
    "Conv depthwise": ("Conv<group = 4>(x, w)", (4, 1, 3, 3), (1, 4, 7, 7)),
    "ConvTranspose": ("ConvTranspose(x, w)", (4, 8, 2, 2), (1, 4, 5, 5)),
    "ConvTranspose in groups": ("ConvTranspose<group = 2>(x, w)", (4, 3, 2, 2), (1, 4, 5, 5)),
    "Gemm": ("Gemm<transB = 1>(x, w)", (8, 4), (2, 4)),
    "MatMul": ("MatMul(x, w)", (4, 8), (2, 3, 4)),
}


@pytest.mark.parametrize("kind", EXPORTED)
@pytest.mark.parametrize("name", ["int8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("granularity", [PER_CHANNEL, PER_TENSOR])
def test_row_24_a_float_export_is_quantized_in_the_graph(
    tmp_path: Path, kind: str, name: str, granularity: Any
) -> None:
    """Valid ONNX comes out, it reads back, and it computes what the float model does."""
    node, shape, x_shape = EXPORTED[kind]
    dims, free = ", ".join(map(str, x_shape)), ", ".join("ABCDE"[: len(x_shape)])
    graph = f"g (float[{dims}] x) => (float[{free}] y) {{ o = {node} y = Relu(o) }}"
    path = write_model(tmp_path / "m.onnx", graph, {"w": rand(*shape)}, opset=17)
    sample = {"x": rand(*x_shape)}
    variant = case(path, [sample]).scaled(recipe_for(name, weights=granularity))
    assert len(variant.scaled.quantized) == 1
    target = tmp_path / "q.onnx"
    save(lower(variant.graph.prepared, variant.scaled.quantized), target)
    onnx.checker.check_model(str(target), full_check=True)
    assert load(target).has_qdq
    got = run_exact(target, sample)["y"]
    limit = {"int8": 0.05, "fp8_e4m3": 0.1, "fp8_e5m2": 0.2}[name]
    assert 0 < rel_l2(got, run_exact(path, sample)["y"]) < limit


@EVERY_OP
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_row_27_per_channel_scales_below_opset_13(
    engines: Engines, tmp_path: Path, op: str, opset: int, engine: str
) -> None:
    """The opset is raised first, and what is written loads and runs."""
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = {"w": rand(*shape)}
    if op != "MatMul":
        weights["b"] = rand(shape[axis])
    path = write_model(tmp_path / "m.onnx", site_graph(op), weights, opset=opset)
    sample = {"x": rand(*SITE_OPS[op][2])}
    subject = case(path, [sample], FORMATS["int8"].onnx_opset)
    assert load(path).opset == opset
    model = subject.lowered(recipe_for("int8", weights=PER_CHANNEL, weight_range="reduced"))
    assert model.opset_imports[""] == 13
    axes = [n.attributes["axis"] for n in model.graph if "axis" in n.attributes]
    assert len(axes) >= 1
    got = engines.run(engine, model, sample)["y"]
    assert rel_l2(got, run_exact(path, sample)["y"]) < 0.1
