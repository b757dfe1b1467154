"""The graph under work: new nodes, new initializers, and names that are free for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

FLOAT_TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


@dataclass
class Scope:
    """The graph under work, and names that are free in it."""

    graph: ir.Graph
    taken: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: ir.Model) -> Scope:
        """The main graph of ``model``; names of its bodies count as taken."""
        return cls(model.graph, _all_names(model))

    def name(self, wanted: str) -> str:
        """Return ``wanted``, or it with a number behind it where it is taken."""
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    def initializer(self, wanted: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Register ``tensor`` under a free name."""
        name = self.name(wanted)
        tensor.name = name
        shape = ir.Shape([d for d in tensor.shape if isinstance(d, int)])
        value = ir.Value(
            name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        like: ir.Value,
        name: str,
        attributes: Sequence[ir.Attr] = (),
        dtype: ir.DataType | None = None,
    ) -> ir.Node:
        """Make a node with one output, shaped as ``like``; it is not yet in the graph."""
        node_name = self.name(f"{name}/{op_type}")
        output = ir.Value(
            name=self.name(f"{node_name}:0"),
            shape=like.shape,
            type=ir.TensorType(dtype) if dtype is not None else like.type,
        )
        return ir.Node("", op_type, inputs, attributes, outputs=[output], name=node_name)

    def cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        """Make a Cast of ``value``; it is not yet in the graph."""
        return self.node("Cast", [value], value, name, [ir.AttrInt64("to", dtype.value)], dtype)

    def drop_unused(self, initializers: Iterable[str]) -> None:
        """Remove those of the named initializers that nothing reads any more."""
        for name in dict.fromkeys(initializers):
            value = self.graph.initializers.get(name)
            if value is not None and not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]


def _all_names(model: ir.Model) -> set[str]:
    names: set[str] = set()
    for graph in model.graphs():
        names.update(str(v.name) for v in graph.inputs)
        names.update(graph.initializers)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        names.add(str(node.name))
        names.update(str(v.name) for v in node.outputs)
    return names
