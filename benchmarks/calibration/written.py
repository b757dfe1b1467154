"""What a quantized model file holds."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def quantized_weights(path: Path) -> int:
    """How many weights the file holds quantized; it is loaded first, since only then it counts.

    A weight is a stored tensor of two dimensions at least that a DequantizeLinear reads.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(path).graph
    stored = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}
    read = {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    return len(stored & read)
