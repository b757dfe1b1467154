from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.engines.base import EngineOptions, LoweredModel
from bitworth.engines.mock import ENGINE, ClockScript

Write = Callable[..., Path]
Scripted = Callable[[ClockScript], EngineOptions]
PlanOf = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a model given as ONNX text, with initializers by name; the text's header is added."""

    def make(
        graph: str, weights: Mapping[str, NDArray[np.generic]] | None = None, name: str = "m.onnx"
    ) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{graph}')
        for key, array in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return make


@pytest.fixture
def double(write: Write) -> Path:
    """y = x + x."""
    return write("g (float[N] x) => (float[N] y) { y = Add(x, x) }")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def scripted() -> Scripted:
    """The mock engine's options with a clock script."""
    return lambda script: EngineOptions(threads=1, extra={"script": script.dump()})


@pytest.fixture
def plan_of(double: Path, tmp_path: Path) -> PlanOf:
    """A saved plan of the mock engine under a label."""

    def make(label: str) -> Path:
        path = tmp_path / "plans" / label / "plan.bin"
        ENGINE.build(LoweredModel(double, label), EngineOptions(threads=1)).save(path)
        return path

    return make
