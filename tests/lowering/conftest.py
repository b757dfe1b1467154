from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Prepare a model given as ONNX text, with initializers by name; the header is added."""

    def build(
        graph: str, weights: Mapping[str, NDArray[np.generic]] | None = None, opset: int = 19
    ) -> PreparedModel:
        ir_version = 8 if opset < 19 else 9
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


@pytest.fixture(params=["rec", "det"])
def ocr_model(request: pytest.FixtureRequest) -> Path:
    """The recogniser and the detector that rapidocr's wheel ships."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("rapidocr is not installed (pip install bitworth[example])")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return folder / f"PP-OCRv6_{request.param}_small.onnx"
