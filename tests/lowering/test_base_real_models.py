from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import openvino
import pytest
from numpy.typing import NDArray

from bitworth.calibration import observe, quantize_sites
from bitworth.lowering.base_precision import Converted, to_base
from bitworth.lowering.float_types import Base
from bitworth.lowering.onnx_qdq import lower
from bitworth.recipe import PER_CHANNEL, Quantize
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare, raised
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites
from tests.float_graphs import Arrays, rand

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
LOW = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def _openvino(model: bytes, inputs: Arrays) -> list[NDArray[np.generic]]:
    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    results = compiled(dict(inputs))
    return [results[o] for o in compiled.outputs]


def _dtypes(model: ir.Model) -> dict[str, ir.DataType | None]:
    values: dict[str, ir.DataType | None] = {}
    for graph in model.graphs():
        values.update((str(v.name), v.dtype) for v in graph.inputs)
        values.update((str(v.name), v.dtype) for v in graph.initializers.values())
        values.update((str(v.name), v.dtype) for n in graph for v in n.outputs)
    return values


def _nodes(converted: Converted) -> dict[str, ir.Node]:
    model = converted.model.model
    return {str(n.name): n for n in ir.traversal.RecursiveGraphIterator(model.graph)}


def _casts(converted: Converted) -> int:
    return sum(n.op_type == "Cast" for n in _nodes(converted).values())


@pytest.mark.parametrize("base", ["fp16", "bf16"])
def test_what_sites_hang_on_is_the_same(ocr_model: Path, base: Base) -> None:
    prepared = prepare(load(ocr_model), 22)
    converted = to_base(prepared, base)
    assert converted.kept == ()
    assert _casts(converted) == 2
    renamed, nodes = dict(converted.renamed), _nodes(converted)
    read = set()
    for site in find_sites(prepared).sites:
        node = nodes[site.node]
        weight, activation = (node.inputs[i] for i in (site.weight_input, 1 - site.weight_input))
        assert weight is not None
        assert activation is not None
        assert (weight.name, weight.dtype) == (site.weight, LOW[base])
        assert renamed.get(str(activation.name), activation.name) == site.activation
        assert renamed.get(str(node.outputs[0].name), node.outputs[0].name) == site.output
        read.add(renamed.get(str(activation.name)))
    # Of all the values that sites read, only the input of the graph has another name.
    assert read == {None, "x"}
    if base == "fp16":
        before, after = find_sites(prepared), find_sites(converted.model)
        assert [s.id for s in after.sites] == [s.id for s in before.sites]
        assert [s.node for s in after.attention] == [s.node for s in before.attention]
        assert {s.dtype for s in after.sites} == {"float16"}


def test_the_real_models_run_in_both_engines(ocr_model: Path, run: Run) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 19)
    want = run(serialize(prepared.model), x=x)[0]
    data = serialize(to_base(prepared, "fp16").model.model)
    for y in (run(data, x=x)[0], _openvino(data, {"x": x})[0]):
        error = np.linalg.norm(y - want) / np.linalg.norm(want)
        assert error < 0.05
        assert error > 0


def test_bf16_on_a_cpu(ocr_model: Path, run: Run) -> None:
    """OpenVINO computes a bf16 graph; onnxruntime has no kernels for it, and says so."""
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 22)
    data = serialize(to_base(prepared, "bf16").model.model)
    want = run(serialize(prepared.model), x=x)[0]
    y = _openvino(data, {"x": x})[0]
    assert 0 < np.linalg.norm(y - want) / np.linalg.norm(want) < 0.3
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        run(data, x=x)


def test_bytes_are_the_same_in_every_process(ocr_model: Path) -> None:
    code = (
        "import hashlib\n"
        "from bitworth.subject.onnx_model import load\n"
        "from bitworth.subject.prepare import prepare\n"
        "from bitworth.subject.saving import serialize\n"
        "from bitworth.lowering.base_precision import to_base\n"
        f"p = prepare(load({str(ocr_model)!r}), 19)\n"
        "c = to_base(p, 'fp16', ('Sigmoid', 'Conv.1*'))\n"
        "print(hashlib.sha256(serialize(c.model.model)).hexdigest(), c.kept, c.overflow)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, text=True, check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_onnxruntime_optimizes_a_converted_graph_without_changing_it(
    ocr_model: Path, run: Run
) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    data = serialize(to_base(prepare(load(ocr_model), 19), "fp16").model.model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    y, want = session.run(None, {"x": x})[0], run(data, x=x)[0]
    assert np.linalg.norm(y - want) / np.linalg.norm(want) < 0.02


ENTRY = Quantize(
    "all", "int8", weights=PER_CHANNEL, sign="s8", zero_point="symmetric", weight_range="full",
    placement="before_activation",
)  # fmt: skip


def _int8(prepared: PreparedModel, converted: Converted, inputs: Arrays) -> ir.Model:
    """int8 with ranges seen in the fp32 graph, under the names of the converted one."""
    sites = find_sites(converted.model).sites
    origin = dict(converted.renamed)
    names = {s.activation: origin.get(s.activation, s.activation) for s in sites}
    seen = observe(prepared.model, tuple(dict.fromkeys(names.values())), [inputs], threads=1)
    statistics = {new: seen.statistics[old] for new, old in names.items()}
    scaled = quantize_sites(
        converted.model.model, [(s, ENTRY) for s in sites], statistics, {s.id: None for s in sites}
    )
    assert scaled.left_out == ()
    return lower(converted.model, scaled.quantized)


def _check_against_fp32(prepared: PreparedModel, data: bytes, inputs: Arrays, run: Run) -> None:
    """The error is that of int8 in this engine: the base adds little to the recipe's in fp32."""
    plain = serialize(_int8(prepared, Converted(prepared, (), (), ()), inputs))
    want = run(serialize(prepared.model), **inputs)[0]

    def error(y: NDArray[np.generic]) -> float:
        assert (y.dtype, y.shape) == (want.dtype, want.shape)
        return float(np.linalg.norm(y - want) / np.linalg.norm(want))

    def onnxruntime(model: bytes) -> NDArray[np.generic]:
        return run(model, **inputs)[0]

    def openvino_(model: bytes) -> NDArray[np.generic]:
        return _openvino(model, inputs)[0]

    for engine in (onnxruntime, openvino_):
        assert 0 < error(engine(data)) < 1.5 * error(engine(plain))


SMALL = {
    "Conv": (
        "g (float[1, 4, 6, 6] x) => (float[A, B, C, D] y)"
        "{ a = Conv(x, w) \n r = Relu(a) \n y = Conv(r, v, b) }",
        {"w": rand(8, 4, 3, 3), "v": rand(4, 8, 1, 1), "b": rand(4)},
        {"x": rand(1, 4, 6, 6)},
    ),
    "MatMul and Gemm": (
        "g (float[2, 8] x) => (float[2, 4] y)"
        "{ a = MatMul(x, w) \n s = Softmax(a) \n y = Gemm<transB = 1>(s, v, b) }",
        {"w": rand(8, 8), "v": rand(4, 8), "b": rand(4)},
        {"x": rand(2, 8)},
    ),
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("keep", [(), ("Softmax", "Relu")])
@pytest.mark.parametrize("opset", [19, 21])
def test_int8_on_a_converted_graph(
    make: Make, run: Run, kind: str, keep: tuple[str, ...], opset: int
) -> None:
    graph, weights, inputs = SMALL[kind]
    prepared = make(graph, weights, opset)
    ops = {n.op_type for n in prepared.model.graph}
    converted = to_base(prepared, "fp16", tuple(k for k in keep if k in ops))
    data = serialize(_int8(prepared, converted, inputs))
    onnx.checker.check_model(data, full_check=True)
    _check_against_fp32(prepared, data, inputs, run)


def test_int8_on_a_converted_real_model(ocr_model: Path, run: Run) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    prepared = prepare(load(ocr_model), 19)
    converted = to_base(prepared, "fp16")
    data = serialize(_int8(prepared, converted, inputs))
    onnx.checker.check_model(data, full_check=True)
    _check_against_fp32(prepared, data, inputs, run)


@pytest.mark.parametrize("opset", [19, 21])
def test_a_converted_graph_can_be_raised(ocr_model: Path, run: Run, opset: int) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    converted = to_base(prepare(load(ocr_model), 13), "fp16").model
    after = raised(converted, opset)
    data = serialize(after.model)
    onnx.checker.check_model(data, full_check=True)
    assert find_sites(after) == find_sites(converted)
    want = run(serialize(converted.model), x=x)[0]
    assert np.allclose(run(data, x=x)[0], want, atol=1e-2)
