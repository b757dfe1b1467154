"""Operations whose output channels can be divided by dividing their constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from bitworth.subject.channels import Channels, on_axis
from bitworth.subject.tensors import is_constant, static_shape

Kind = Literal["norm", "linear"]

# Index of scale and bias among the inputs, and whether they lie on axis 1 or on the last ones.
# com.microsoft is where onnxruntime's own operators are; its simplified normalization is in both.
_NORMS: dict[tuple[str, str], tuple[int, int | None, bool]] = {
    ("", "LayerNormalization"): (1, 2, False),
    ("", "RMSNormalization"): (1, None, False),
    ("", "SimplifiedLayerNormalization"): (1, None, False),
    ("com.microsoft", "SimplifiedLayerNormalization"): (1, None, False),
    ("com.microsoft", "SkipLayerNormalization"): (2, 3, False),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (2, None, False),
    ("", "BatchNormalization"): (1, 2, True),
    ("", "InstanceNormalization"): (1, 2, True),
    ("", "GroupNormalization"): (1, 2, True),
}


@dataclass(frozen=True, eq=False)
class Parameter:
    """A constant that takes the factors, at one of its uses.

    Attributes:
        node: name of the node that reads it.
        input: at which of the node's inputs.
        initializer: its name.
        channels: the channel of each of its elements, in a shape that broadcasts with its own.
    """

    node: str
    input: int
    initializer: str
    channels: Channels


@dataclass(frozen=True, eq=False)
class Producer:
    """An operation that writes channels.

    Attributes:
        kind: ``linear`` or ``norm``.
        value: its output.
        channels: of the output's elements.
        count: number of channels, at least 2.
        parameters: weight or scale first, then the bias.
    """

    kind: Kind
    value: ir.Value
    channels: Channels
    count: int
    parameters: tuple[Parameter, ...]


def producer(node: ir.Node) -> Producer | None:
    """Return what ``node`` is as a producer of channels, or None.

    ``norm``: normalizations with a constant scale, and ``Mul(x, constant)``, in which one written
    as several nodes ends. ``linear``: Conv, ConvTranspose, Gemm, MatMul with a constant weight that
    nothing else reads, so that it keeps its name.
    """
    if (node.domain, node.op_type) in _NORMS:
        return _norm(node)
    if node.domain:
        return None
    if node.op_type == "Mul":
        return _factor(node)
    if node.op_type in ("Conv", "ConvTranspose"):
        return _convolution(node)
    if node.op_type == "Gemm":
        return _gemm(node)
    return _matmul(node) if node.op_type == "MatMul" else None


def constant(node: ir.Node, index: int, channels: Channels) -> Parameter | None:
    """The constant float input ``index`` of ``node`` as a parameter, or None where it is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = _shape(value)
    if value is None or shape is None:
        return None
    try:
        size = int(np.prod(np.broadcast_shapes(shape, channels.shape)))
    except ValueError:
        return None
    # A constant along other axes than the channels' would have to grow to their product.
    if size > max(int(np.prod(shape)), channels.size):
        return None
    return Parameter(str(node.name), index, str(value.name), channels)


def sole_weight(node: ir.Node, index: int) -> bool:
    """Whether input ``index`` is a constant that this node alone reads, once."""
    value = node.inputs[index]
    return (
        is_constant(value)
        and value is not None
        and len(value.uses()) == 1
        and not value.is_graph_output()
    )


def _norm(node: ir.Node) -> Producer | None:
    scale, bias, second = _NORMS[node.domain, node.op_type]
    shape = _shape(node.inputs[scale] if scale < len(node.inputs) else None)
    if not shape:
        return None
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    channels = numbers
    if second:
        source = node.inputs[0]
        if source is None or source.shape is None or len(shape) != 1:
            return None
        channels = on_axis(numbers, 1 - len(source.shape))
    return _made("norm", node, channels, [(scale, numbers), (bias, numbers)])


def _factor(node: ir.Node) -> Producer | None:
    for index in (0, 1):
        shape = _shape(node.inputs[index])
        if shape and not is_constant(node.inputs[1 - index]):
            numbers = np.arange(int(np.prod(shape))).reshape(shape)
            return _made("norm", node, numbers, [(index, numbers)])
    return None


def _convolution(node: ir.Node) -> Producer | None:
    shape = _shape(node.inputs[1])
    if shape is None or not sole_weight(node, 1):
        return None
    groups = node.attributes.get_int("group", 1) or 1
    rank = len(shape)
    if node.op_type == "Conv":
        numbers = np.arange(shape[0])
        weight = on_axis(numbers, -rank)
    else:
        numbers = np.arange(shape[1] * groups)
        each = numbers.reshape(groups, shape[1]).repeat(shape[0] // groups, axis=0)
        weight = (
            on_axis(numbers, 1 - rank)
            if groups == 1
            else each.reshape((*each.shape, *[1] * (rank - 2)))
        )
    return _made("linear", node, on_axis(numbers, 1 - rank), [(1, weight), (2, numbers)])


def _gemm(node: ir.Node) -> Producer | None:
    shape = _shape(node.inputs[1])
    if shape is None or not sole_weight(node, 1):
        return None
    axis = -2 if node.attributes.get_int("transB", 0) else -1
    numbers = np.arange(shape[axis])
    return _made("linear", node, numbers, [(1, on_axis(numbers, axis)), (2, numbers)])


def _matmul(node: ir.Node) -> Producer | None:
    for index, axis in ((1, -1), (0, -2)):
        shape = _shape(node.inputs[index])
        other = node.inputs[1 - index]
        if shape is None or len(shape) < 2 or other is None or is_constant(other):
            continue
        # A vector has no axis that would stay behind the product's channels.
        if not sole_weight(node, index) or other.shape is None or len(other.shape) < 2:
            return None
        numbers = on_axis(np.arange(shape[axis]), axis)
        return _made("linear", node, numbers, [(index, numbers)])
    return None


def _made(
    kind: Kind, node: ir.Node, channels: Channels, constants: list[tuple[int | None, Channels]]
) -> Producer | None:
    parameters = []
    for index, numbers in constants:
        if index is None or index >= len(node.inputs) or node.inputs[index] is None:
            continue
        parameter = constant(node, index, numbers)
        if parameter is None:
            return None
        parameters.append(parameter)
    if channels.size < 2:
        return None
    return Producer(kind, node.outputs[0], channels, channels.size, tuple(parameters))


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Shape of a constant of floats, or None where it is no such thing."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    tensor = value.const_value
    return static_shape(tensor) if tensor.dtype.is_floating_point() else None
