"""Which values an engine wants under one scale: the inputs of one Add, the parts of one Concat."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from scipy.cluster.hierarchy import DisjointSet

# Their outputs hold numbers of their first input and no others.
_KEEPING = (
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "DepthToSpace",
    "SpaceToDepth", "Slice", "Split", "MaxPool",
)  # fmt: skip


def shared_groups(
    model: ir.Model, values: Collection[str], ops: Collection[str]
) -> tuple[frozenset[str], ...]:
    """Return the sets of values that have to share one scale, each of two or more.

    Inputs of one node whose operator is in ``ops`` share one, and so do values that become such an
    input, or come from one, through operators that keep numbers as they are (Reshape, Transpose,
    Slice, MaxPool and the like; Concat, where it is in ``ops``). Nodes that read one value have one
    scale together. Constants, and nodes in bodies of If, Loop and Scan, bind nothing.

    Args:
        model: the prepared graph.
        values: names of the values that are quantized: outputs of sites and activation inputs.
        ops: operators that want their inputs under one scale: "Add", "Concat", "Max" and the like.

    Returns:
        Disjoint sets, in the order in which their first value appears in the graph.
    """
    same: DisjointSet[ir.Value] = DisjointSet(model.graph.inputs)
    bound: list[ir.Value] = []
    for node in model.graph:
        inputs = [v for v in node.inputs if v is not None and not v.is_initializer()]
        for value in node.outputs:
            same.add(value)
        if node.domain:
            continue
        together: list[ir.Value] = []
        if node.op_type in ops:
            together = inputs
            bound += inputs
        if node.op_type in _KEEPING or (node.op_type == "Concat" and together):
            together = [*(together or inputs[:1]), *node.outputs]
        for value in together[1:]:
            same.merge(together[0], value)
    wanted = {same[value] for value in bound}
    members: dict[ir.Value, list[str]] = {}
    for value in same:
        if value.name in values and same[value] in wanted:
            members.setdefault(same[value], []).append(str(value.name))
    return tuple(frozenset(names) for names in members.values() if len(names) > 1)
