"""Reads out of a quantized model which tensors it quantizes, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Kind = Literal["activation", "weight", "bias"]

#: Through these a quantized weight may go on its way to the operation that uses it.
_CARRIERS = ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Cast")
#: What onnxruntime writes behind the name of a graph output that it quantizes.
_RENAMED_OUTPUT = "_QuantizeLinear_Input"


@dataclass(frozen=True)
class Quantized:
    """How a model quantizes one tensor.

    Attributes:
        name: of the tensor in the model: of an activation, the value that is quantized; of a
            weight, the initializer that holds it.
        kind: what it is.
        storage: element type of the quantized tensor, as ONNX spells it, lower case.
        scale: float64, one number or one a channel.
        zero_point: its distinct values, in order.
        axis: channel axis where there are several scales.
        uses: operators that read a weight, each with the value that it writes; empty for others.
    """

    name: str
    kind: Kind
    storage: str
    scale: NDArray[np.float64]
    zero_point: tuple[float, ...]
    axis: int | None
    uses: tuple[tuple[str, str], ...]


def quantized_tensors(model: onnx.ModelProto) -> list[Quantized]:
    """Every tensor that ``model`` quantizes, each scale of it once, in graph order.

    A weight may be stored in float with a QuantizeLinear behind it, or quantized.
    """
    constants = _constants(model)
    consumers = _consumers(model)
    producers = {output: node for node in model.graph.node for output in node.output}
    found: dict[tuple[str, bytes], Quantized] = {}
    for node in model.graph.node:
        for entry in _of_node(node, constants, consumers, producers):
            found.setdefault((entry.name, entry.scale.tobytes()), entry)
    return list(found.values())


def _of_node(
    node: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto],
    consumers: Mapping[str, list[onnx.NodeProto]],
    producers: Mapping[str, onnx.NodeProto],
) -> Iterator[Quantized]:
    source = node.input[0] if node.input else ""
    if node.op_type == "QuantizeLinear" and source not in constants:
        before = producers.get(source)
        if before is None or before.op_type != "DequantizeLinear":
            yield _entry(node, source.removesuffix(_RENAMED_OUTPUT), "activation", constants, ())
    elif node.op_type == "QuantizeLinear":
        for after in consumers.get(node.output[0], []):
            uses = tuple(_uses(after.output[0], consumers))
            yield _entry(node, source, "weight", constants, uses)
    elif node.op_type == "DequantizeLinear" and source in constants:
        bias = constants[source].data_type == onnx.TensorProto.INT32
        uses = tuple(_uses(node.output[0], consumers))
        yield _entry(node, source, "bias" if bias else "weight", constants, uses)


def _entry(
    node: onnx.NodeProto,
    name: str,
    kind: Kind,
    constants: Mapping[str, onnx.TensorProto],
    uses: tuple[tuple[str, str], ...],
) -> Quantized:
    scale = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
    zero: tuple[float, ...] = (0.0,)
    storage = "uint8"
    if len(node.input) > 2 and node.input[2]:
        tensor = constants[node.input[2]]
        storage = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        values = numpy_helper.to_array(tensor).astype(np.float64)
        zero = tuple(float(z) for z in np.unique(values))
    elif kind != "activation" and node.op_type == "DequantizeLinear":
        storage = onnx.TensorProto.DataType.Name(constants[node.input[0]].data_type).lower()
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    return Quantized(name, kind, storage, scale, zero, axis if scale.size > 1 else None, uses)


def _uses(value: str, consumers: Mapping[str, list[onnx.NodeProto]]) -> Iterator[tuple[str, str]]:
    for node in consumers.get(value, []):
        if node.op_type in _CARRIERS:
            yield from _uses(node.output[0], consumers)
        else:
            yield node.op_type, node.output[0]


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return known


def _consumers(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found
