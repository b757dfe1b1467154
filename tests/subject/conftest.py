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

Write = Callable[..., Path]
Run = Callable[..., list[NDArray[np.generic]]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a model given as ONNX text, with initializers by name; the text's header is added."""

    def make(
        graph: str,
        weights: Mapping[str, NDArray[np.generic]] | None = None,
        opset: int = 17,
        name: str = "model.onnx",
        domains: str = "",
    ) -> Path:
        ir_version = 8 if opset < 19 else 9
        header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]>'
        model = onnx.parser.parse_model(header + graph)
        for key, array in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return make


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


def ocr_input(path: Path) -> NDArray[np.float32]:
    shape = (1, 3, 48, 96) if "rec" in path.name else (1, 3, 96, 96)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture
def ocr_x(ocr_model: Path) -> NDArray[np.float32]:
    return ocr_input(ocr_model)
