"""Finds float arithmetic on counts: shapes, positions and indices, which 16 bits cannot hold.

fp16 holds every whole number up to 2048, bf16 up to 256. A length of 3001, half of it, or the
angle of position 3001 in a rotary embedding is wrong in 16 bits, not just less exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from bitworth.lowering.float_types import NodeTypes, is_fp32

# What is done to counts between where they come from and where they are used.
_CHEAP = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Neg", "Abs", "Sqrt", "Exp", "Log", "Reciprocal",
    "Floor", "Ceil", "Round", "Min", "Max", "Clip", "Where", "Cast", "Unsqueeze", "Squeeze",
    "Reshape", "Flatten", "Transpose", "Expand", "Tile", "Concat", "Split", "Slice", "Gather",
    "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "CumSum", "MatMul", "Range", "Identity",
)  # fmt: skip
_ANGLES = ("Sin", "Cos")
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_WHOLE = (
    ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
    ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
)  # fmt: skip


def counting_nodes(model: ir.Model, types: Mapping[ir.Node, NodeTypes]) -> dict[ir.Node, str]:
    """Return the nodes that are to stay in fp32 since they compute counts, with the reason.

    A count is a whole number that became a float (Cast, Range), or an input of the graph, with
    nothing but constants and element-wise or rearranging operators behind it. It has to be exact
    where it becomes a whole number again, is compared, is the argument of Sin or Cos, or is read
    by an input that is fp32 in every graph (the scales of Resize, the limits of Range).
    """
    counts = {v for v in model.graph.inputs if is_fp32(v)}
    found: dict[ir.Node, str] = {}
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    for node in nodes:
        if _yields_counts(node, counts):
            counts.update(v for v in node.outputs if is_fp32(v))
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value in counts and _needs_exact(node, i, types[node], counts):
                _mark(value, counts, f"it computes a count that '{node.name}' needs exactly", found)
                if node.op_type in _ANGLES + _COMPARISONS:
                    found[node] = "it reads counts"
    return {node: found[node] for node in nodes if node in found}


def _yields_counts(node: ir.Node, counts: set[ir.Value]) -> bool:
    if node.domain or node.op_type not in _CHEAP:
        return False
    if node.op_type == "Range":
        return True
    if node.op_type == "Cast" and not _is_float(node.inputs[0]):
        return True
    floats = [v for v in node.inputs if v is not None and _is_float(v)]
    if node.op_type == "Gather":
        # A row of a constant table is a feature, not a count.
        return node.inputs[0] in counts
    return any(v in counts for v in floats) and all(v in counts or _constant(v) for v in floats)


def _needs_exact(node: ir.Node, index: int, types: NodeTypes, counts: set[ir.Value]) -> bool:
    if node.domain:
        return False
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int()) in _WHOLE
    if node.op_type in _ANGLES + _COMPARISONS:
        floats = [v for v in node.inputs if v is not None and _is_float(v)]
        return all(v in counts or _constant(v) for v in floats)
    # An input that is fp32 beside others that are not, or an operator that knows no 16-bit type.
    fixed = types.reason is None or node.op_type == "Range"
    return fixed and types.inputs[index] == "fp32"


def _mark(
    value: ir.Value | None, counts: set[ir.Value], reason: str, found: dict[ir.Node, str]
) -> None:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        node = current.producer() if current is not None and current in counts else None
        if node is not None and node not in found:
            found[node] = reason
            waiting.extend(node.inputs)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and (value.dtype is None or value.dtype.is_floating_point())


def _constant(value: ir.Value) -> bool:
    if value.const_value is not None and not value.is_graph_input():
        return True
    producer = value.producer()
    return producer is not None and producer.op_type in ("Constant", "ConstantOfShape")
