"""Rows 13, 14, 24 and 27: what is read, raised to another operator set, and written again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitworth.lowering.onnx_qdq import lower
from bitworth.recipe import FORMATS, PER_CHANNEL, PER_TENSOR
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
