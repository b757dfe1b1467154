"""Decides which nodes of a graph compute in a 16-bit base precision, and which stay in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from bitworth.errors import UserError
from bitworth.lowering.base_weights import largest
from bitworth.lowering.counts import counting_nodes
from bitworth.lowering.float_types import Base, NodeTypes, has_fp32, node_types, unchanged
from bitworth.recipe.formats import FORMATS

# The same numbers elsewhere: what is too large before is too large behind.
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")


@dataclass(frozen=True)
class BasePlan:
    """The float types of a whole graph.

    Attributes:
        nodes: what each node reads and writes, in bodies too.
        kept_bodies: bodies that stay in fp32 with the node around them.
        kept: (node name, reason) of each node that stays in fp32, in the graph's order.
        overflow: (value name, text) of each value that is too large for the base precision.
    """

    nodes: Mapping[ir.Node, NodeTypes]
    kept_bodies: frozenset[ir.Graph]
    kept: tuple[tuple[str, str], ...]
    overflow: tuple[tuple[str, str], ...]


def plan_base(
    model: ir.Model,
    base: Base,
    keep_fp32: Sequence[str],
    amax: Mapping[str, float],
    source: str,
    any_opset: bool = False,
) -> BasePlan:
    """Return the plan of ``model``, whose values have their types.

    Args:
        model: the graph; it is not changed.
        base: the 16-bit type.
        keep_fp32: operators, or patterns on node names, whose nodes stay in fp32.
        amax: largest magnitude seen, by name of a value.
        source: the model's name for messages.
        any_opset: see ``node_types``.

    Raises:
        UserError: an entry of ``keep_fp32`` that matches no node, or an opset without the type.
        ValueError: ``amax`` names a value that the graph has not.
    """
    opsets = model.opset_imports
    if not any_opset and opsets[""] < FORMATS[base].onnx_opset:
        raise UserError(
            f"{source}: {base} needs opset {FORMATS[base].onnx_opset}, the graph has "
            f"{opsets['']}; prepare it for opset {FORMATS[base].onnx_opset}"
        )
    everything = list(ir.traversal.RecursiveGraphIterator(model.graph))
    natural = {n: node_types(n, opsets, base, any_opset) for n in everything}
    reasons = _asked_for(everything, keep_fp32, source)
    too_large = _too_large(model, base, amax)
    for value, text in too_large.items():
        for node in _around(value, model):
            reasons.setdefault(node, f"value '{value.name}' {text}")
    for node, reason in counting_nodes(model, natural).items():
        reasons.setdefault(node, reason)
    nodes: dict[ir.Node, NodeTypes] = {}
    kept: list[tuple[str, str]] = []
    kept_bodies: set[ir.Graph] = set()

    def visit(graph: ir.Graph, around: str | None) -> None:
        for node in graph:
            reason = around or reasons.get(node)
            types = natural[node] if reason is None else unchanged(node, reason)
            nodes[node] = types
            if types.reason is not None and has_fp32(node):
                kept.append((str(node.name), types.reason))
            for body in bodies(node):
                if types.reason is not None:
                    kept_bodies.add(body)
                inside = f"inside '{node.name}', which stays in fp32"
                visit(body, around or (inside if types.reason is not None else None))

    visit(model.graph, None)
    overflow = tuple((str(v.name), text) for v, text in too_large.items())
    return BasePlan(nodes, frozenset(kept_bodies), tuple(kept), overflow)


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the bodies of ``node``: branches of If, the body of Loop and Scan."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _asked_for(
    nodes: Sequence[ir.Node], keep_fp32: Sequence[str], source: str
) -> dict[ir.Node, str]:
    reasons: dict[ir.Node, str] = {}
    for entry in keep_fp32:
        matched = [n for n in nodes if n.op_type == entry or fnmatchcase(str(n.name), entry)]
        if not matched:
            raise UserError(
                f"{source}: keep_fp32 entry '{entry}' matches no node; give an operator of the "
                "model or a pattern on its node names"
            )
        for node in matched:
            reasons.setdefault(node, f"keep_fp32 '{entry}'")
    return reasons


def _too_large(model: ir.Model, base: Base, amax: Mapping[str, float]) -> dict[ir.Value, str]:
    values = {str(v.name): v for v in _values(model)}
    if unknown := sorted(set(amax) - set(values)):
        raise ValueError(f"the graph has no value '{unknown[0]}'")
    limit = largest(base)
    # Written so that a NaN, whose size nobody knows, is too large.
    within = {values[name] for name, m in amax.items() if m <= limit}
    found = {
        value: f"reaches {amax[name]:.6g}, beyond {limit:g}"
        for name, value in values.items()
        if name in amax and value not in within
    }
    waiting = list(found)
    while waiting:
        value = waiting.pop()
        for other in _moved(value):
            if other not in found and other not in within:
                found[other] = f"holds the numbers of '{value.name}', some beyond {limit:g}"
                waiting.append(other)
    return {v: found[v] for v in values.values() if v in found}


def _moved(value: ir.Value) -> Iterator[ir.Value]:
    """Values that hold the same numbers, one step away."""
    for node, index in value.uses():
        if not node.domain and node.op_type in _MOVES and index == 0:
            yield node.outputs[0]
    producer = value.producer()
    if producer is not None and not producer.domain and producer.op_type in _MOVES:
        source = producer.inputs[0]
        if source is not None and source.const_value is None:
            yield source


def _around(value: ir.Value, model: ir.Model) -> Iterator[ir.Node]:
    """The nodes that write or read ``value``, and the one whose body takes or returns it."""
    producer = value.producer()
    if producer is not None:
        yield producer
    yield from value.consumers()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for body in bodies(node):
            if value in body.inputs or value in body.outputs:
                yield node


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
