"""Folds per-channel constants behind an operation into its weight and bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import rewriter
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

from bitworth.subject.tensors import is_constant, static_shape, unused_name

_WITH_BIAS = ("Conv", "ConvTranspose")
_BATCH_NORM_RULES = (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)


def fuse(model: ir.Model) -> None:
    """Fold BatchNormalization into weights and bias additions into biases, in place.

    The order matters: a batch normalization behind a bias addition needs the bias folded first,
    and a bias addition behind a batch normalization needs that one folded first.
    """
    _drop_missing_inputs(model.graph)
    fuse_bias(model.graph)
    names = _names_by_output(model.graph)
    rewriter.rewrite(model, pattern_rewrite_rules=_BATCH_NORM_RULES)
    _restore_names(model.graph, names)
    fuse_bias(model.graph)


def fuse_bias(graph: ir.Graph) -> None:
    """Fold ``Add(conv, constant)`` into the conv's bias where the constant is one per channel.

    The conv's output must have no other consumer and be no output of the graph.
    """
    for node in tuple(graph):
        if node.domain or node.op_type not in _WITH_BIAS:
            continue
        add = _only_consumer(node.outputs[0])
        if add is None or add.domain or add.op_type != "Add" or add.graph is not graph:
            continue
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        constant = _per_channel(node, other)
        if constant is None or other is None or not _has_known_bias(node):
            continue
        _set_bias(graph, node, str(other.name), constant)
        output = add.outputs[0]
        name, was_output = output.name, output.is_graph_output()
        conv = node.outputs[0]
        conv.shape, conv.type = output.shape, output.type
        output.replace_all_uses_with(conv, replace_graph_outputs=was_output)
        graph.remove(add, safe=True)
        # The value keeps the name of the addition's output: graph outputs keep their names.
        output.name = None
        conv.name = name


def _set_bias(graph: ir.Graph, node: ir.Node, name: str, constant: NDArray[np.generic]) -> None:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        assert bias.const_value is not None
        constant = constant + bias.const_value.numpy()
    # The name of the constant it came from, with the operation's: that constant may serve others.
    name = unused_name(f"{name}/{node.name}.bias", graph)
    value = ir.Value(
        name=name,
        shape=ir.Shape(constant.shape),
        type=ir.TensorType(ir.DataType.from_numpy(constant.dtype)),
        const_value=ir.tensor(constant, name=name),
    )
    graph.register_initializer(value)
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, value)


def _per_channel(node: ir.Node, value: ir.Value | None) -> NDArray[np.generic] | None:
    """The constant as one number a channel, shape (channels,), or None where it is not that."""
    weight = node.inputs[1]
    if value is None or value.const_value is None or not is_constant(value):
        return None
    if weight is None or weight.shape is None or weight.dtype != value.dtype:
        return None
    rank = len(weight.shape)
    axis = 0 if node.op_type == "Conv" else 1
    channels = weight.shape[axis]
    if not isinstance(channels, int):
        return None
    if node.op_type == "ConvTranspose":
        channels *= node.attributes.get_int("group", 1) or 1
    shape = static_shape(value.const_value)
    if len(shape) > rank:
        return None
    shape = (1,) * (rank - len(shape)) + shape
    # A single number, or one a channel; anything else depends on the position.
    if shape[0] != 1 or any(d != 1 for d in shape[2:]) or shape[1] not in (1, channels):
        return None
    flat: NDArray[np.generic] = value.const_value.numpy().reshape(-1)
    return np.ascontiguousarray(np.broadcast_to(flat, (channels,)))


def _has_known_bias(node: ir.Node) -> bool:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    return is_constant(node.inputs[2])


def _only_consumer(value: ir.Value) -> ir.Node | None:
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    return next(iter(uses))[0]


def _drop_missing_inputs(graph: ir.Graph) -> None:
    """Drop empty optional inputs at the end: the batch normalization rules read them blindly."""
    for node in graph:
        used = len(node.inputs)
        while used and node.inputs[used - 1] is None:
            used -= 1
        if used != len(node.inputs):
            node.resize_inputs(used)


def _names_by_output(graph: ir.Graph) -> dict[str, tuple[str | None, dict[str, str]]]:
    """By the output's name of each batch normalization: name and metadata of what it follows."""
    names = {}
    for node in graph:
        if node.op_type == "BatchNormalization" and node.inputs[0] is not None:
            producer = node.inputs[0].producer()
            if producer is not None:
                entry = (producer.name, dict(producer.metadata_props))
                names[str(node.outputs[0].name)] = entry
    return names


def _restore_names(graph: ir.Graph, names: dict[str, tuple[str | None, dict[str, str]]]) -> None:
    # The rewriter makes a new node; the operation keeps the name that its owner knows.
    for node in graph:
        name, metadata = names.get(str(node.outputs[0].name), (None, {}))
        if node.op_type in (*_WITH_BIAS, "Gemm") and name is not None:
            node.name = name
            node.metadata_props.update(metadata)
