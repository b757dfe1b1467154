"""Where a 16-bit graph reads a value in another float type than it is written in."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitworth.lowering.base_plan import BasePlan, bodies
from bitworth.lowering.float_types import Wanted, is_fp32


@dataclass(frozen=True)
class Read:
    """One reader: an input of a node, or an output of a graph.

    Attributes:
        by: the node or the graph.
        index: of the input or output.
        wanted: the float type that it is to be read in.
    """

    by: ir.Node | ir.Graph
    index: int
    wanted: Wanted


@dataclass(frozen=True)
class FloatValue:
    """An fp32 value of the original graph.

    Attributes:
        value: the value.
        graph: where it lives.
        written: the float type that it has in the 16-bit graph; ``fp32`` for a constant, which
            can be had in both.
        constant: whether it is an initializer or written by a Constant node.
        reads: its readers, in the order of the graph.
    """

    value: ir.Value
    graph: ir.Graph
    written: Wanted
    constant: bool
    reads: tuple[Read, ...]

    def read_as(self, wanted: Wanted) -> tuple[Read, ...]:
        """Readers that want this type."""
        return tuple(r for r in self.reads if r.wanted == wanted)


def float_values(model: ir.Model, plan: BasePlan) -> list[FloatValue]:
    """Return every fp32 value of ``model`` and of its bodies: inputs, constants, node outputs."""
    found: list[tuple[ir.Value, ir.Graph, Wanted, bool]] = []
    reads: dict[ir.Value, list[Read]] = {}

    def visit(graph: ir.Graph, border: Wanted) -> None:
        found.extend((v, graph, border, False) for v in graph.inputs)
        found.extend((v, graph, "fp32", True) for v in graph.initializers.values())
        for node in graph:
            types = plan.nodes[node]
            for i, value in enumerate(node.inputs):
                if value is not None and types.inputs[i] is not None:
                    reads.setdefault(value, []).append(Read(node, i, types.inputs[i] or "any"))
            for body in bodies(node):
                visit(body, "fp32" if body in plan.kept_bodies else "base")
            constant = node.op_type == "Constant" and "sparse_value" not in node.attributes
            found.extend(
                (v, graph, "fp32" if constant else types.outputs[i] or "fp32", constant)
                for i, v in enumerate(node.outputs)
            )
        for i, value in enumerate(graph.outputs):
            reads.setdefault(value, []).append(Read(graph, i, border))

    visit(model.graph, "fp32")
    return [
        FloatValue(v, graph, written, constant, tuple(reads.get(v, ())))
        for v, graph, written, constant in found
        if is_fp32(v)
    ]


def redirect(reads: tuple[Read, ...], value: ir.Value) -> None:
    """Let ``reads`` read ``value``."""
    for read in reads:
        if isinstance(read.by, ir.Node):
            read.by.replace_input_with(read.index, value)
        else:
            read.by.outputs[read.index] = value


def insert(entry: FloatValue, nodes: list[ir.Node]) -> None:
    """Put ``nodes`` right behind what writes the value, or first in its graph."""
    producer = entry.value.producer()
    if producer is not None:
        entry.graph.insert_after(producer, nodes)
    elif len(entry.graph):
        entry.graph.insert_before(entry.graph[0], nodes)
    else:
        entry.graph.extend(nodes)


def cast(value: ir.Value, to: ir.DataType, name: str, node_name: str) -> ir.Node:
    """Return a Cast of ``value`` that writes ``name``; it is not yet in a graph."""
    output = ir.Value(name=name, shape=value.shape, type=ir.TensorType(to))
    return ir.Node(
        "", "Cast", [value], [ir.AttrInt64("to", to.value)], outputs=[output], name=node_name
    )


def constant_of(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of an initializer or of what a Constant node writes.

    Raises:
        ValueError: the value has none.
    """
    if value.const_value is not None:
        return value.const_value
    producer = value.producer()
    for attribute in (producer.attributes if producer is not None else {}).values():
        if attribute.name == "value":
            return attribute.as_tensor()
        if attribute.name == "value_float":
            return ir.tensor(attribute.as_float(), ir.DataType.FLOAT)
        if attribute.name == "value_floats":
            return ir.tensor(list(attribute.as_floats()), ir.DataType.FLOAT)
    raise ValueError(f"'{value.name}' is no constant")
