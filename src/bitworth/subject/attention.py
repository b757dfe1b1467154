"""Finds the products of two activations, and which attention each is part of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import onnx_ir as ir

from bitworth.recipe.site import Site
from bitworth.subject.site_names import module_of

# What may stand between a product and the Softmax of its attention: scaling, masks, soft caps,
# casts, relative positions and changes of layout.
_BETWEEN = (
    "Add", "Sub", "Mul", "Div", "Where", "Clip", "Min", "Max", "Neg", "Tanh", "IsNaN", "Not",
    "Cast", "Identity", "Dropout", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten",
    "Expand", "Slice", "Pad", "Split", "Concat", "Gather", "GatherElements",
)  # fmt: skip
_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
#: Operators that hold a whole attention: its products cannot be quantized one by one.
FUSED_ATTENTION = (
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention", "PackedAttention",
    "PackedMultiHeadAttention", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention",
    "LongformerAttention", "SparseAttention", "PagedAttention",
)  # fmt: skip


def product_dtype(node: ir.Node) -> str | None:
    """The float type that a product computes in, or None where it is no type for a site.

    float32 where the types of both inputs are unknown.
    """
    known = {v.dtype for v in node.inputs if v is not None and v.dtype is not None}
    if not known:
        return "float32"
    return _DTYPES.get(known.pop()) if len(known) == 1 else None


def attention_sites(graph: ir.Graph, products: Sequence[ir.Node]) -> tuple[Site, ...]:
    """The sites that ``products``, MatMul nodes with two activations, are.

    Products that feed a Softmax and those that it feeds are one attention: one scope, called after
    the module that holds all of them, else after the first product's node. A product without a
    Softmax is called after its own node. A second attention of one name gets ``#2``.

    Args:
        graph: what holds the nodes.
        products: in topological order.
    """
    scopes = _scope_names(_attentions(graph, products))
    numbers: Counter[str] = Counter()
    sites = []
    for node in products:
        scope = scopes[node]
        numbers[scope] += 1
        sites.append(_site(node, scope, numbers[scope]))
    return tuple(sites)


def _site(node: ir.Node, scope: str, number: int) -> Site:
    first, second = node.inputs
    assert first is not None
    assert second is not None
    return Site(
        id=f"@matmul:{scope}/{number}",
        node=str(node.name),
        op_type=node.op_type,
        weight="",
        weight_shape=(),
        weight_axis=0,
        weight_input=1,
        activation=str(first.name),
        output=str(node.outputs[0].name),
        dtype=product_dtype(node) or "float32",
        second=str(second.name),
        scope=scope,
    )


def _attentions(graph: ir.Graph, products: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """The products, those of one attention together, in order of the first of each."""
    group_of = {node: [node] for node in products}
    for softmax in graph:
        if softmax.domain or softmax.op_type != "Softmax":
            continue
        before = _reached(softmax, group_of, forward=False)
        behind = _reached(softmax, group_of)
        # Fed by a product and feeding none, or the other way round, it is a gate or a head.
        around = {*before, *behind} if before and behind else set()
        merged = [n for n in products if any(n in group_of[a] for a in around)]
        for node in merged:
            group_of[node] = merged
    return [group_of[node] for node in products if group_of[node][0] is node]


def _reached(softmax: ir.Node, products: Container[ir.Node], forward: bool = True) -> list[ir.Node]:
    """The products before or behind a Softmax with nothing else between."""
    waiting, seen = [softmax], {softmax}
    found: list[ir.Node] = []
    while waiting:
        node = waiting.pop()
        near = _behind(node) if forward else _before(node)
        for other in near:
            if other in seen:
                continue
            seen.add(other)
            if other in products:
                found.append(other)
            elif not other.domain and other.op_type in _BETWEEN:
                waiting.append(other)
    return found


def _behind(node: ir.Node) -> list[ir.Node]:
    return [user for output in node.outputs for user in output.consumers()]


def _before(node: ir.Node) -> list[ir.Node]:
    producers = (v.producer() for v in node.inputs if v is not None)
    return [p for p in producers if p is not None]


def _scope_names(attentions: Sequence[Sequence[ir.Node]]) -> dict[ir.Node, str]:
    """The scope of each product; no two attentions share one."""
    counts: Counter[str] = Counter()
    taken: set[str] = set()
    names = {}
    for nodes in attentions:
        name = (_common_module(nodes) if len(nodes) > 1 else "") or str(nodes[0].name)
        unique = name
        while unique in taken or counts[name] == 0:
            counts[name] += 1
            unique = name if counts[name] == 1 else f"{name}#{counts[name]}"
        taken.add(unique)
        names.update(dict.fromkeys(nodes, unique))
    return names


def _common_module(nodes: Sequence[ir.Node]) -> str:
    paths = [(module_of(node) or "").split(".") for node in nodes]
    common = paths[0]
    for path in paths[1:]:
        same = (a == b for a, b in zip(common, path, strict=False))
        length = next((i for i, equal in enumerate(same) if not equal), min(len(common), len(path)))
        common = common[:length]
    return ".".join(common)
