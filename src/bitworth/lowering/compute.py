"""Sites that compute in another float type than their graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from bitworth.lowering.scaling import ActivationScale, QuantizedSite
from bitworth.lowering.scope import FLOAT_TYPES, Scope

# Nodes that yield a quantized value in another float type; the last one's output is that value.
Convert = Callable[[Scope, ir.Value, ActivationScale, ir.DataType, str], list[ir.Node]]


def by_cast(
    scope: Scope, value: ir.Value, scale: ActivationScale, dtype: ir.DataType, name: str
) -> list[ir.Node]:
    """Return a Cast, whatever the scale."""
    del scale
    return [scope.cast(value, dtype, name)]


def compute_in(
    scope: Scope,
    quantized: Sequence[QuantizedSite],
    nodes: dict[str, ir.Node],
    convert: Convert,
    woven: dict[ir.Value, ActivationScale],
) -> None:
    """Give the sites that ask for it another float type to compute in, in place.

    Quantized inputs come in that type from ``convert``; other inputs, biases too, are cast; a cast
    back stands behind the operation, under the name of the value that it wrote.

    Args:
        scope: the graph.
        quantized: the sites, in the order of the graph.
        nodes: their nodes, by name.
        convert: how a quantized input yields another type.
        woven: the quantized values, with their scales.
    """
    made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    replaced: dict[ir.Value, None] = {}
    for entry in quantized:
        if entry.compute is None or entry.compute == entry.site.dtype:
            continue
        dtype, node = FLOAT_TYPES[entry.compute], nodes[entry.site.node]
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if (value, dtype) not in made:
                name = str(value.name)
                if value in woven:
                    new = convert(scope, value, woven[value], dtype, name)
                    replaced[value] = None
                else:
                    new = [scope.cast(value, dtype, name)]
                scope.graph.insert_before(node, new)
                made[value, dtype] = new[-1].outputs[0]
            node.replace_input_with(index, made[value, dtype])
        _cast_back(scope, node, FLOAT_TYPES[entry.site.dtype], dtype)
    for value in replaced:
        _drop_unread(scope, value)


def _cast_back(scope: Scope, node: ir.Node, base: ir.DataType, dtype: ir.DataType) -> None:
    result = node.outputs[0]
    name = str(result.name)
    back = scope.cast(result, base, name)
    outside = back.outputs[0]
    for consumer, index in tuple(result.uses()):
        if consumer is not back:
            consumer.replace_input_with(index, outside)
    for index, value in enumerate(scope.graph.outputs):
        if value is result:
            scope.graph.outputs[index] = outside
    # Whoever asks for the value by its name gets it in the type that it had.
    result.name = scope.name(f"{name}/{dtype.name.lower()}")
    outside.name = name
    result.type = ir.TensorType(dtype)
    scope.graph.insert_after(node, back)


def _drop_unread(scope: Scope, value: ir.Value) -> None:
    """Remove the node behind ``value`` if all who read it now read a converted one."""
    producer = value.producer()
    if value.uses() or producer is None:
        scope.drop_unused([str(value.name)] if producer is None else [])
        return
    inputs = [v for v in producer.inputs if v is not None]
    scope.graph.remove(producer, safe=True)
    for read in inputs:
        _drop_unread(scope, read)
