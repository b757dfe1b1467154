"""Puts quantization into a graph: which value, which consumers, once for each scale.

How a quantized weight and a quantized activation look is handed in (`Weaver`): as Q/DQ nodes for
engines, or as plain arithmetic for emulation. Where they go is decided here, for both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bitworth.errors import UserError
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.recipe.formats import FORMATS
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel

_FORMAT_OF = {"int8": "int8", "uint8": "int8", "fp8_e4m3": "fp8_e4m3"}
# QuantizeLinear takes fp16 data from here on.
_FP16_OPSET = 19


@dataclass
class Scope:
    """The graph under work, and names that are free in it."""

    graph: ir.Graph
    taken: set[str] = field(default_factory=set)

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


# Both return the nodes to insert, in order; the last one's output is the value to use. A weight
# may need no node: then the value stands alone.
Activation = Callable[[Scope, ir.Value, TensorScale, str], list[ir.Node]]
Weight = Callable[[Scope, ir.Value, TensorScale], tuple[list[ir.Node], ir.Value]]


@dataclass(frozen=True)
class Weaver:
    """How quantized tensors are written.

    Attributes:
        activation: nodes that quantize and dequantize a value of the given float type.
        weight: nodes and value that stand for a quantized weight.
    """

    activation: Activation
    weight: Weight


def weave(prepared: PreparedModel, quantized: Sequence[QuantizedSite], weaver: Weaver) -> ir.Model:
    """Return a copy of the graph of ``prepared`` in which the given sites are quantized.

    A value that is a site's quantized output is replaced for all its consumers. A value that is an
    activation input is replaced for the quantized sites that read it; others keep the float value.
    Where a value is both, with one scale, one pair serves all; with two scales, the input is
    quantized again from the output's dequantized value, which is what the consumer really gets.

    Raises:
        UserError: the opset is too low for a format, or a scale is not finite and positive in the
            weight's type.
        ValueError: a site that the graph has not, one given twice, or a scale that cannot be
            expressed (per-channel or limited activation, an output that the graph returns).
    """
    model = prepared.model.clone()
    nodes = {str(n.name): n for n in model.graph}
    for entry in quantized:
        _check(entry, nodes, prepared)
    if len({q.site.node for q in quantized}) != len(quantized):
        raise ValueError("a site is given twice")
    scope = Scope(model.graph, _all_names(model))
    _weave_weights(scope, quantized, nodes, weaver)
    _weave_activations(scope, quantized, nodes, weaver)
    return model


def _weave_weights(
    scope: Scope, quantized: Sequence[QuantizedSite], nodes: dict[str, ir.Node], weaver: Weaver
) -> None:
    made: dict[tuple[str, object], ir.Value] = {}
    # In the order of the graph, so that a shared weight's node stands before its first consumer.
    order = {name: i for i, name in enumerate(nodes)}
    for entry in sorted(quantized, key=lambda q: order[q.site.node]):
        site, node = entry.site, nodes[entry.site.node]
        key = (site.weight, _key(entry.weight))
        if key not in made:
            source = node.inputs[site.weight_input]
            assert source is not None
            new, made[key] = weaver.weight(scope, source, entry.weight)
            scope.graph.insert_before(node, new)
        node.replace_input_with(site.weight_input, made[key])
    for name in dict.fromkeys(q.site.weight for q in quantized):
        value = scope.graph.initializers[name]
        if not value.uses() and not value.is_graph_output():
            del scope.graph.initializers[name]


def _weave_activations(
    scope: Scope, quantized: Sequence[QuantizedSite], nodes: dict[str, ir.Node], weaver: Weaver
) -> None:
    values = {str(v.name): v for v in scope.graph.inputs}
    values.update((str(v.name), v) for node in nodes.values() for v in node.outputs)
    current: dict[str, tuple[ir.Value, object]] = {}
    made: dict[tuple[str, object], ir.Value] = {}
    for entry in quantized:
        if entry.output_value is None or entry.output is None:
            continue
        name, key = entry.output_value, _key(entry.output)
        if name in current:
            if current[name][1] != key:
                raise ValueError(f"value '{name}' is the output of two sites, with two scales")
            continue
        value = values[name]
        if value.is_graph_output():
            raise ValueError(f"value '{name}' is an output of the graph; it stays in float")
        uses = tuple(value.uses())
        made[name, key] = _insert(scope, value, entry.output, weaver)
        for consumer, index in uses:
            consumer.replace_input_with(index, made[name, key])
        current[name] = (made[name, key], key)
    for entry in quantized:
        site, key = entry.site, _key(entry.activation)
        if (site.activation, key) not in made:
            source = current.get(site.activation, (values[site.activation], None))[0]
            made[site.activation, key] = _insert(scope, source, entry.activation, weaver)
        node = nodes[site.node]
        node.replace_input_with(1 - site.weight_input, made[site.activation, key])


def _insert(scope: Scope, value: ir.Value, scale: TensorScale, weaver: Weaver) -> ir.Value:
    new = weaver.activation(scope, value, scale, str(value.name))
    producer = value.producer()
    if producer is None:
        first = next(iter(scope.graph))
        scope.graph.insert_before(first, new)
    else:
        scope.graph.insert_after(producer, new)
    return new[-1].outputs[0]


def _check(entry: QuantizedSite, nodes: dict[str, ir.Node], prepared: PreparedModel) -> None:
    site = entry.site
    node = nodes.get(site.node)
    if node is None or node.op_type != site.op_type:
        raise ValueError(f"the graph has no {site.op_type} node '{site.node}' (site '{site.id}')")
    activations = [s for s in (entry.activation, entry.output) if s is not None]
    for scale in activations:
        if scale.axis is not None:
            raise ValueError(f"site '{site.id}': activations have one scale a tensor")
        if scale.limit is not None:
            raise ValueError(f"site '{site.id}': a limit is for weights only")
    for scale in (entry.weight, *activations):
        _check_scale(scale, site)
        name = _FORMAT_OF[scale.storage]
        needed = FORMATS[name].onnx_opset
        if site.dtype == "float16":
            needed = max(needed, _FP16_OPSET)
        if prepared.opset < needed:
            raise UserError(
                f"{prepared.source}: {name} in site '{site.id}' needs opset {needed}, the graph "
                f"has {prepared.opset}; prepare it for opset {needed}"
            )


def _check_scale(scale: TensorScale, site: Site) -> None:
    with np.errstate(over="ignore", under="ignore"):
        # Checked after the cast: a scale that is fine in fp32 can vanish in fp16.
        used = np.asarray(scale.scale).astype(site.dtype).astype(np.float64)
    if not (np.isfinite(used) & (used > 0)).all():
        raise UserError(
            f"site '{site.id}': a scale is not finite and positive in {site.dtype}; leave the site "
            "out"
        )


def _key(scale: TensorScale) -> object:
    array = np.asarray(scale.scale, dtype=np.float32)
    return (
        scale.storage, array.shape, array.tobytes(), scale.zero_point, scale.axis, scale.limit
    )  # fmt: skip


def _all_names(model: ir.Model) -> set[str]:
    names: set[str] = set()
    for graph in model.graphs():
        names.update(str(v.name) for v in graph.inputs)
        names.update(graph.initializers)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        names.add(str(node.name))
        names.update(str(v.name) for v in node.outputs)
    return names
