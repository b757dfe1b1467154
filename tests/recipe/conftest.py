"""What an engine makes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
import pytest

#: Operators of onnxruntime that multiply 8-bit values, or floats by packed weights.
QUANTIZED_OPS = frozenset(
    ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
     "MatMulInteger", "ConvInteger", "MatMulNBits")
)  # fmt: skip
_COMPUTING = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")

Native = Callable[[str, onnx.ModelProto], bool]


@cache
def _core() -> ov.Core:
    return ov.Core()


def ort_ops(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Operators of the model that onnxruntime runs; nothing where it fails to."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        shapes = {i.name: [d if isinstance(d, int) else 4 for d in i.shape]
                  for i in session.get_inputs()}  # fmt: skip
        session.run(None, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    except Exception:  # onnxruntime raises many unrelated classes for a refused model
        return []
    optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
    return [n.op_type for n in optimized.graph.node]


def ov_primitives(model: onnx.ModelProto) -> list[tuple[str, str, str]]:
    """Layer type, kernel and precision of what OpenVINO computes products with."""
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    try:
        compiled = _core().compile_model(
            _core().read_model(model.SerializeToString()), "CPU", properties
        )
    except RuntimeError:
        return []
    keys = ("layerType", "primitiveType", "runtimePrecision")
    infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ordered_ops()]
    found = [tuple(str(info[k].astype(str)) for k in keys) for info in infos if keys[0] in info]
    return [(a, b, c) for a, b, c in found if a in _COMPUTING]


@pytest.fixture
def native(tmp_path: Path) -> Native:
    """Whether an engine computes a graph's one product in 8 bits, or with packed weights."""

    def ask(engine: str, model: onnx.ModelProto) -> bool:
        if engine == "onnxruntime":
            return bool(QUANTIZED_OPS & set(ort_ops(model, tmp_path)))
        found = ov_primitives(model)
        packed = not any(n.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
                         for n in model.graph.node)  # fmt: skip
        if packed:
            return bool(found) and all(c.lower() in ("i8", "u8", "i4", "u4") for _, _, c in found)
        return bool(found) and all(b.lower().endswith(("_i8", "_u8")) for _, b, _ in found)

    return ask
