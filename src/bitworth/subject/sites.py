"""Finds what can be quantized in a prepared graph, and names it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx_ir as ir

from bitworth.recipe.site import Site
from bitworth.subject.attention import FUSED_ATTENTION, attention_sites, product_dtype
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.site_names import base_id
from bitworth.subject.tensors import is_constant, static_shape

_SITE_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_QUANTIZED_OPS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
# Operators that compute with a weight, and that no recipe covers.
_UNCOVERED_OPS = ("LSTM", "GRU", "RNN", "Einsum", "DeformConv", *_QUANTIZED_OPS)
_WEIGHT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Uncovered:
    """A node that computes products and is no site.

    Attributes:
        node: its name.
        op_type: its operator.
        reason: why it is left out.
    """

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class SiteScan:
    """What was found in a graph.

    Attributes:
        sites: in topological order; ids are unique.
        attention: products of two activations (MatMul) in topological order, with ids of their
            own; left alone unless asked for.
        uncovered: nodes that compute products, and that no recipe covers.
        already_quantized: whether the model came with quantized operators.
    """

    sites: tuple[Site, ...]
    attention: tuple[Site, ...]
    uncovered: tuple[Uncovered, ...]
    already_quantized: bool

    @property
    def attention_nodes(self) -> tuple[str, ...]:
        """Names of the nodes of ``attention``."""
        return tuple(site.node for site in self.attention)


def find_sites(prepared: PreparedModel) -> SiteScan:
    """Return the sites of ``prepared`` and what else computes products."""
    graph = prepared.model.graph
    sites: list[Site] = []
    products: list[ir.Node] = []
    uncovered: list[Uncovered] = []
    seen: Counter[str] = Counter()
    fixed = _fixed_values(graph)
    for node in graph:
        name = str(node.name)
        if _is_op(node, "MatMul") and not any(is_constant(v) for v in node.inputs):
            reason = _no_product(node, fixed)
            if reason:
                uncovered.append(Uncovered(name, node.op_type, reason))
            else:
                products.append(node)
        elif not node.domain and node.op_type in _SITE_OPS:
            found = _site(node)
            if isinstance(found, Site):
                seen[found.id] += 1
                number = seen[found.id]
                sites.append(found if number == 1 else _numbered(found, number))
            else:
                uncovered.append(Uncovered(name, node.op_type, found))
        elif reason := _not_covered(node):
            uncovered.append(Uncovered(name, node.op_type, reason))
        uncovered.extend(_inside(node))
    attention = attention_sites(graph, products)
    return SiteScan(tuple(sites), attention, tuple(uncovered), prepared.has_qdq)


def _fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """Values that no input of the model changes, though folding left them to be computed."""
    fixed: set[ir.Value] = set()
    for node in graph:
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(is_constant(v) or v in fixed for v in inputs):
            fixed.update(node.outputs)
    return fixed


def _no_product(node: ir.Node, fixed: set[ir.Value]) -> str | None:
    """Why a MatMul without a constant input is no product of two activations, if it is none."""
    if any(v in fixed for v in node.inputs):
        return "weight is computed at run time"
    if product_dtype(node) is None:
        kinds = {v.dtype.name.lower() for v in node.inputs if v is not None and v.dtype is not None}
        return f"multiplies {' by '.join(sorted(kinds))}"
    return None


def _site(node: ir.Node) -> Site | str:
    """The site that ``node`` is, or why it is none."""
    place = _weight_place(node)
    if isinstance(place, str):
        return place
    index, axis = place
    weight, activation = node.inputs[index], node.inputs[1 - index]
    assert weight is not None
    assert weight.const_value is not None
    if activation is None or is_constant(activation):
        return "both inputs are constant"
    dtype = weight.const_value.dtype
    if dtype not in _WEIGHT_TYPES:
        return f"weight is {dtype.name.lower()}"
    return Site(
        id=base_id(node, weight),
        node=str(node.name),
        op_type=node.op_type,
        weight=str(weight.name),
        weight_shape=static_shape(weight.const_value),
        weight_axis=axis,
        weight_input=index,
        activation=str(activation.name),
        output=str(node.outputs[0].name),
        groups=_int(node, "group", 1),
        dtype="float16" if dtype == ir.DataType.FLOAT16 else "float32",
        biased=len(node.inputs) > 2 and node.inputs[2] is not None,
        becomes_gemm=_becomes_gemm(node, index),
    )


def _becomes_gemm(node: ir.Node, weight_input: int) -> bool:
    """Whether a MatMul and an addition behind it can be one Gemm.

    As onnxruntime's MatMulAddFusion has it: of two dimensions whatever they are; of more when all
    are known and the constant is a vector, the product being reshaped around the Gemm.
    """
    value = node.outputs[0]
    uses = list(value.uses())
    if node.op_type != "MatMul" or weight_input != 1 or len(uses) != 1 or value.is_graph_output():
        return False
    (user, place) = uses[0]
    if not _is_op(user, "Add") or user.graph is not node.graph:
        return False
    weight, added = node.inputs[1], user.inputs[1 - place]
    activation = node.inputs[0]
    assert weight is not None
    if added is None or not is_constant(added) or activation is None or activation.shape is None:
        return False
    assert weight.const_value is not None
    assert added.const_value is not None
    shape, bias = static_shape(weight.const_value), static_shape(added.const_value)
    if len(shape) != 2 or not bias or bias[-1] != shape[1]:
        return False
    if len(activation.shape) == 2:
        return len(bias) == 1 or (len(bias) == 2 and bias[0] in (1, activation.shape[0]))
    return len(bias) == 1 and all(isinstance(d, int) for d in activation.shape)


def _weight_place(node: ir.Node) -> tuple[int, int] | str:
    """Index of the weight among the inputs and its output channel axis, or why there is none."""
    if node.op_type == "MatMul":
        index = 1 if is_constant(node.inputs[1]) else 0
        rank = _rank(node.inputs[index])
        if rank < 2:
            return "weight is a vector"
        return index, rank - 1 if index == 1 else rank - 2
    if not is_constant(node.inputs[1]):
        constant = node.op_type == "Gemm" and is_constant(node.inputs[0])
        return "weight is input A of a Gemm" if constant else "weight is computed at run time"
    if node.op_type == "Gemm":
        if _int(node, "transA", 0):
            return "the activation is transposed (transA = 1)"
        return 1, 0 if _int(node, "transB", 0) else 1
    return 1, 0 if node.op_type == "Conv" else 1


def _not_covered(node: ir.Node) -> str | None:
    """Why a node that computes products is no site; None for one that computes none."""
    if node.op_type in FUSED_ATTENTION and node.domain in ("", "com.microsoft"):
        return "a whole attention in one operator: its products cannot be quantized one by one"
    if not node.domain and node.op_type in _QUANTIZED_OPS:
        return "already quantized"
    if _is_op(node, "Einsum") and all(_is_float(v) for v in node.inputs) and len(node.inputs) > 1:
        return "operator is not covered"
    weights = [v for v in node.inputs if is_constant(v) and _rank(v) > 1 and _is_float(v)]
    if not weights:
        return None
    if not node.domain and node.op_type in _UNCOVERED_OPS:
        return "operator is not covered"
    # An engine's own operators (fused attention, packed weights) cannot be looked into.
    return f"operator of domain {node.domain}" if node.domain not in ("", "ai.onnx.ml") else None


def _inside(node: ir.Node) -> list[Uncovered]:
    found = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = [attribute.as_graph()]
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies = list(attribute.as_graphs())
        else:
            continue
        for body in bodies:
            for inner in ir.traversal.RecursiveGraphIterator(body):
                ops = (*_SITE_OPS, *_UNCOVERED_OPS)
                if (
                    not inner.domain
                    and inner.op_type in ops
                    and any(map(is_constant, inner.inputs))
                ):
                    reason = f"inside a body of {node.op_type} '{node.name}'"
                    found.append(Uncovered(str(inner.name), inner.op_type, reason))
    return found


def _numbered(site: Site, number: int) -> Site:
    fields = {**site.__dict__, "id": f"{site.id}#{number}"}
    return Site(**fields)


def _is_op(node: ir.Node, op_type: str) -> bool:
    return not node.domain and node.op_type == op_type


def _rank(value: ir.Value | None) -> int:
    if value is None or value.const_value is None:
        return 0
    return len(static_shape(value.const_value))


def _is_float(value: ir.Value | None) -> bool:
    dtype = None if value is None else value.dtype
    return dtype is not None and dtype.is_floating_point()


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes.get_int(name, default)
