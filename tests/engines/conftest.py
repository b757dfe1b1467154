from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a model given as ONNX text, with initializers by name; the text's header is added."""

    def make(
        graph: str,
        weights: Mapping[str, NDArray[np.generic]] | None = None,
        name: str = "model.onnx",
    ) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{graph}')
        for key, array in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        for index, node in enumerate(model.graph.node):
            node.name = f"{node.op_type.lower()}_{index}"
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return make


@pytest.fixture
def small(write: Write) -> Path:
    """Two convolutions with their activation functions, and a matrix product."""
    random = np.random.default_rng(3)

    def weight(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) / 8).astype(np.float32)

    return write(
        """g (float[1, 8, 24, 24] x) => (float[1, 16, 24, 32] y) {
            a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w1, b1)
            b = Relu(a)
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(b, w2)
            d = HardSigmoid(c)
            y = MatMul(d, w3)
        }""",
        {
            "w1": weight(16, 8, 3, 3),
            "b1": weight(16),
            "w2": weight(16, 16, 3, 3),
            "w3": weight(24, 32),
        },
    )


@pytest.fixture
def small_x() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(4)
    return {"x": random.standard_normal((1, 8, 24, 24)).astype(np.float32)}


@pytest.fixture
def recogniser() -> Path:
    """The recogniser that rapidocr's wheel ships."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("rapidocr is not installed (pip install bitworth[example])")
    return Path(spec.submodule_search_locations[0]) / "models" / "PP-OCRv6_rec_small.onnx"


@pytest.fixture
def recogniser_x() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(5)
    return {"x": random.standard_normal((1, 3, 48, 64)).astype(np.float32)}
