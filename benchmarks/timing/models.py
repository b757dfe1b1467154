"""What the benchmark times: the OCR recogniser and a matrix product of about a millisecond."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.plans import build_plan
from bitworth.measurement.timing import TimedPlan, TimingTarget
from bitworth.measurement.workers import Worker

ENGINES = ("onnxruntime", "openvino")
#: Rows, inner size and columns of the product of about 1 ms on 2 cores with AVX2.
MATMUL_SIZE = (256, 384, 512)
#: The same, about 50 us: the unit of work of the injected truth.
UNIT_SIZE = (32, 192, 256)


@dataclass(frozen=True)
class Model:
    """A model file and one real input for it."""

    name: str
    write: Callable[[Path], Path]
    inputs: Callable[[], Arrays]


def _recogniser(folder: Path) -> Path:
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("rapidocr is not installed; pip install '.[example]'")
    return Path(spec.submodule_search_locations[0]) / "models" / "PP-OCRv6_rec_small.onnx"


def _line() -> Arrays:
    from examples.ocr.inputs import holdout

    inputs, _ = next(iter(holdout(1, 0)))
    return inputs


def _matmul(size: tuple[int, int, int]) -> Callable[[Path], Path]:
    rows, inner, columns = size

    def write(folder: Path) -> Path:
        weight = np.random.default_rng(0).standard_normal((inner, columns), dtype=np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
            [numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = folder / f"matmul-{rows}-{inner}-{columns}.onnx"
        onnx.save(model, path)
        return path

    return write


def _rows(size: tuple[int, int, int]) -> Callable[[], Arrays]:
    def make() -> Arrays:
        return {"x": np.random.default_rng(1).standard_normal(size[:2], dtype=np.float32)}

    return make


MODELS = {
    "recogniser": Model("recogniser", _recogniser, _line),
    "matmul": Model("matmul", _matmul(MATMUL_SIZE), _rows(MATMUL_SIZE)),
    "unit": Model("unit", _matmul(UNIT_SIZE), _rows(UNIT_SIZE)),
}


def prepare(model: str, engine: str, folder: Path, threads: int) -> tuple[TimingTarget, TimedPlan]:
    """Build the model's plan in ``folder``, unless it is there, and say how to time it."""
    options = EngineOptions(threads=threads)
    log = folder / f"{engine}.log"
    plan = folder / f"{model}-{engine}" / "plan"
    folder.mkdir(parents=True, exist_ok=True)
    if not plan.exists():
        plan.parent.mkdir(parents=True, exist_ok=True)
        source = MODELS[model].write(folder)
        with Worker("build", log) as worker:
            build_plan(worker, engine, source, model, "fp32", options, plan)
    target = TimingTarget(engine, options, MODELS[model].inputs(), log)
    return target, TimedPlan(model, plan, "fp32")
