from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import openvino
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
RunOptimized = Callable[..., tuple[list[NDArray[np.generic]], Counter[str]]]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Prepare a model given as ONNX text, with initializers by name; the header is added."""

    def build(
        graph: str, weights: Mapping[str, NDArray[np.generic]] | None = None, opset: int = 19
    ) -> PreparedModel:
        ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
        text = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>{graph}'
        model = onnx.parser.parse_model(text)
        for key, array in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        path: Path = tmp_path_factory.mktemp("model") / "model.onnx"
        onnx.save(model, path)
        return prepare(load(path), opset)

    return build


@pytest.fixture
def run() -> Run:
    """Run model bytes in onnxruntime with its optimizations off."""

    def execute(model: bytes, **inputs: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, inputs))

    return execute


@pytest.fixture
def run_optimized(tmp_path_factory: pytest.TempPathFactory) -> RunOptimized:
    """Run model bytes in onnxruntime with all its optimizations; the operators are counted too.

    Where it fuses a weight's DequantizeLinear into MatMulNBits, activations stay in float.
    """

    def execute(
        model: bytes, **inputs: NDArray[np.generic]
    ) -> tuple[list[NDArray[np.generic]], Counter[str]]:
        path = tmp_path_factory.mktemp("optimized") / "model.onnx"
        options = ort.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        options.optimized_model_filepath = str(path)
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        outputs = list(session.run(None, inputs))
        return outputs, Counter(n.op_type for n in onnx.load(path).graph.node)

    return execute


@pytest.fixture
def run_openvino() -> Run:
    """Run model bytes in OpenVINO, computing in fp32."""
    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

    def execute(model: bytes, **inputs: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        compiled = core.compile_model(core.read_model(model), "CPU", config)
        results = compiled(inputs)
        return [results[i] for i in range(len(compiled.outputs))]

    return execute


@pytest.fixture(params=["rec", "det"])
def ocr_model(request: pytest.FixtureRequest) -> Path:
    """The recogniser and the detector that rapidocr's wheel ships."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("rapidocr is not installed (pip install bitworth[example])")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return folder / f"PP-OCRv6_{request.param}_small.onnx"
