"""Puts quantization into a graph: which value, which consumers, once for each scale.

How a quantized weight and a quantized activation look is handed in (`Weaver`): as Q/DQ nodes for
engines, or as plain arithmetic for emulation. Where they go is decided here, for both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitworth.lowering.checks import check_sites
from bitworth.lowering.compute import Convert, by_cast, compute_in
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.scope import FLOAT_TYPES
from bitworth.lowering.scope import Scope as Scope
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel

# The first two return the nodes to insert, in order; the last one's output is the value to use. A
# weight may need no node: then the value stands alone.
Activation = Callable[[Scope, ir.Value, ActivationScale, str], list[ir.Node]]
Weight = Callable[[Scope, ir.Value, TensorScale], tuple[list[ir.Node], ir.Value]]


@dataclass(frozen=True)
class Weaver:
    """How quantized tensors are written.

    Attributes:
        activation: nodes that quantize and dequantize a value of the given float type.
        weight: nodes and value that stand for a quantized weight.
        convert: nodes that yield in another float type what ``activation`` or ``weight`` made; it
            is given that value and its scale.
    """

    activation: Activation
    weight: Weight
    convert: Convert = by_cast


def weave(
    prepared: PreparedModel,
    quantized: Sequence[QuantizedSite],
    weaver: Weaver,
    everywhere: Collection[str] = (),
) -> ir.Model:
    """Return a copy of the graph of ``prepared`` in which the given sites are quantized.

    A value that is a site's quantized output is replaced for all its consumers, those in bodies of
    If, Loop and Scan included. A value that is an activation input is replaced for the quantized
    sites that read it; others keep the float value, unless it is named in ``everywhere``: then it
    is replaced for all. Where a value is both, with one scale, one pair serves all; with two
    scales, the input is quantized again from the output's dequantized value, which is what the
    consumer really gets. A site that computes in another float type gets its quantized inputs in
    that type and casts of the others, and a cast stands behind it.

    Raises:
        UserError: a scale is not finite and positive in the type that it is stored in.
        ValueError: a site that the graph has not, one given twice, a scale that cannot be expressed
            (a limited or blocked activation, an output that the graph returns), or a name in
            ``everywhere`` that is no activation input with a static scale.
    """
    model = prepared.model.clone()
    scope = Scope.of(model)
    nodes = {str(n.name): n for n in model.graph}
    check_sites(quantized, nodes)
    # In the order of the graph, so that what consumers share stands before the first of them.
    order = {name: i for i, name in enumerate(nodes)}
    ordered = sorted(quantized, key=lambda q: order[q.site.node])
    woven: dict[ir.Value, ActivationScale] = {}
    _weave_weights(scope, ordered, nodes, weaver, woven)
    outputs = [*_outputs(quantized), *_everywhere(quantized, everywhere)]
    _weave_activations(scope, quantized, outputs, nodes, weaver, woven)
    compute_in(scope, ordered, nodes, weaver.convert, woven)
    return model


def activation_inputs(entry: QuantizedSite) -> list[tuple[int, str, ActivationScale]]:
    """Return index, value name and scale of each quantized activation input of a site."""
    site = entry.site
    first = 1 - site.weight_input if site.weight else 0
    inputs = [(first, site.activation, entry.activation), (1, site.second, entry.second)]
    return [(index, name, scale) for index, name, scale in inputs if scale is not None]


def _outputs(quantized: Sequence[QuantizedSite]) -> list[tuple[str, TensorScale, Site]]:
    return [
        (q.output_value, q.output, q.site)
        for q in quantized
        if q.output_value is not None and q.output is not None
    ]


def _everywhere(
    quantized: Sequence[QuantizedSite], names: Collection[str]
) -> list[tuple[str, TensorScale, Site]]:
    inputs = [(name, s, q.site) for q in quantized for _, name, s in activation_inputs(q)]
    found = [(n, s, site) for n, s, site in inputs if n in names and isinstance(s, TensorScale)]
    if missing := sorted(set(names) - {name for name, _, _ in found}):
        raise ValueError(f"value '{missing[0]}' is no activation input with a static scale")
    return found


def _weave_weights(
    scope: Scope,
    quantized: Sequence[QuantizedSite],
    nodes: dict[str, ir.Node],
    weaver: Weaver,
    woven: dict[ir.Value, ActivationScale],
) -> None:
    made: dict[tuple[str, object], ir.Value] = {}
    for entry in quantized:
        site, node = entry.site, nodes[entry.site.node]
        if entry.weight is None:
            continue
        key = (site.weight, scale_key(entry.weight))
        if key not in made:
            source = node.inputs[site.weight_input]
            assert source is not None
            new, made[key] = weaver.weight(scope, source, entry.weight)
            woven[made[key]] = entry.weight
            scope.graph.insert_before(node, new)
        node.replace_input_with(site.weight_input, made[key])
    scope.drop_unused(q.site.weight for q in quantized)


def _weave_activations(
    scope: Scope,
    quantized: Sequence[QuantizedSite],
    outputs: Sequence[tuple[str, TensorScale, Site]],
    nodes: dict[str, ir.Node],
    weaver: Weaver,
    woven: dict[ir.Value, ActivationScale],
) -> None:
    values = {str(v.name): v for v in scope.graph.inputs}
    values.update((str(v.name), v) for node in nodes.values() for v in node.outputs)
    current: dict[str, tuple[ir.Value, object]] = {}
    made: dict[tuple[str, object], ir.Value] = {}

    def insert(value: ir.Value, scale: ActivationScale, site: Site) -> ir.Value:
        # Without shape inference a type can be unknown; it is the one that the site works in.
        value.type = value.type or ir.TensorType(FLOAT_TYPES[site.dtype])
        if value.shape is None and site.op_type in ("Conv", "ConvTranspose"):
            value.shape = ir.Shape([None] * len(site.weight_shape))
        new = weaver.activation(scope, value, scale, str(value.name))
        _insert_behind(scope, value, new)
        woven[new[-1].outputs[0]] = scale
        return new[-1].outputs[0]

    for name, scale, site in outputs:
        key = scale_key(scale)
        if name in current:
            if current[name][1] != key:
                raise ValueError(f"value '{name}' is quantized for all its readers in two ways")
            continue
        value = values[name]
        if value.is_graph_output():
            raise ValueError(f"value '{name}' is an output of the graph; it stays in float")
        uses = tuple(value.uses())
        made[name, key] = insert(value, scale, site)
        for consumer, index in uses:
            consumer.replace_input_with(index, made[name, key])
        current[name] = (made[name, key], key)
    for entry in quantized:
        for index, name, wanted in activation_inputs(entry):
            key = scale_key(wanted)
            if (name, key) not in made:
                source = current.get(name, (values[name], None))[0]
                made[name, key] = insert(source, wanted, entry.site)
            nodes[entry.site.node].replace_input_with(index, made[name, key])


def _insert_behind(scope: Scope, value: ir.Value, new: Sequence[ir.Node]) -> None:
    producer = value.producer()
    if producer is None:
        scope.graph.insert_before(next(iter(scope.graph)), new)
    else:
        scope.graph.insert_after(producer, new)


def scale_key(scale: ActivationScale) -> object:
    """Return what two scales have in common exactly when they are the same."""
    if isinstance(scale, DynamicScale):
        return scale
    array = np.asarray(scale.scale, dtype=np.float32)
    return (
        scale.storage, array.shape, array.tobytes(), scale.zero_point, scale.axis, scale.limit,
        scale.block, scale.scale_storage, scale.tensor_scale,
    )  # fmt: skip
