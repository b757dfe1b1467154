"""At which value a site's output is quantized, so that the engine can fuse what lies before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import onnx_ir as ir

from bitworth.lowering.regions import activation_after, bias_end
from bitworth.lowering.scaling import ActivationScale, QuantizedSite, TensorScale
from bitworth.lowering.weave import activation_inputs, scale_key
from bitworth.recipe.site import Site

ResolvedPlacement = Literal["before_activation", "after_activation", "input_only"]

# Between a value and a graph output these leave a classifier's or detector's head: rounding its
# scores costs accuracy, and nothing behind them would run faster for it.
_HEAD_OPS = (
    "Softmax", "LogSoftmax", "Sigmoid", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten",
    "Identity", "Cast", "ArgMax", "TopK", "Slice",
)  # fmt: skip


def output_value(
    model: ir.Model,
    site: Site,
    placement: ResolvedPlacement,
    fused: Collection[str] | None = None,
) -> str | None:
    """Return the value at which the output of ``site`` is quantized, or None for nowhere.

    ``before_activation``: the operation's own output. ``after_activation``: behind a bias addition
    and one activation function, also one written as several nodes, where each value in between has
    no other use; else the output, with its bias. ``fused`` names the kinds of activation function
    that the engine fuses (see ``regions.Activation``), None for all; in front of any other kind
    the output is quantized as for ``before_activation``. ``input_only``: None.
    None as well for a value that is an output of the graph, or that only becomes one (through
    Softmax, Reshape and the like): a head stays in float.

    Raises:
        KeyError: the model has no such site.
    """
    return _output_value(_values(model), site, placement, fused)


def observed_values(model: ir.Model, sites: Iterable[Site]) -> tuple[str, ...]:
    """Return all values that any recipe may quantize: what calibration observes in its one pass.

    The activation inputs of the sites and their outputs under every placement; float tensors only,
    each once, in the order of the sites.
    """
    values = _values(model)
    names: dict[str, None] = {}
    for site in sites:
        candidates = [
            site.activation,
            site.second or None,
            _output_value(values, site, "before_activation"),
            _output_value(values, site, "after_activation"),
        ]
        for name in candidates:
            if name is not None and _is_float(values[name]):
                names[name] = None
    return tuple(names)


def residual_inputs(
    model: ir.Model, quantized: Sequence[QuantizedSite], ops: Collection[str] = ("Add",)
) -> tuple[str, ...]:
    """Return the activation inputs that are to be quantized for all that read them.

    Those that a node with an operator in ``ops`` reads as well, where all else that this node
    computes with is quantized too: the shortcut around a block of sites. An engine that adds in 8
    bits then finds every input of the addition quantized and, where the next block begins, its sum.
    Values with one static scale only, that no site has as its output and the graph does not return.

    Args:
        model: the prepared graph.
        quantized: the sites with their scales, as they are lowered.
        ops: the operators.

    Returns:
        Names in the order of the sites, which ``lower`` takes as ``everywhere``.
    """
    scales: dict[str, list[ActivationScale]] = {}
    for entry in quantized:
        for _, name, scale in activation_inputs(entry):
            scales.setdefault(name, []).append(scale)
    outputs = {q.output_value for q in quantized}
    values = _values(model)

    def is_added(name: str) -> bool:
        value = values[name]
        return not value.is_graph_output() and any(
            node.op_type in ops
            and not node.domain
            and node.graph is model.graph
            and all(v is None or v.name in outputs or v.name in scales for v in node.inputs)
            for node in value.consumers()
        )

    return tuple(
        name
        for name, found in scales.items()
        if name not in outputs
        and len({scale_key(scale) for scale in found}) == 1
        and isinstance(found[0], TensorScale)
        and is_added(name)
    )


def _output_value(
    values: dict[str, ir.Value],
    site: Site,
    placement: ResolvedPlacement,
    fused: Collection[str] | None = None,
) -> str | None:
    if placement == "input_only":
        return None
    value = values[site.output]
    if placement == "after_activation":
        biased = bias_end(value)
        function = activation_after(biased)
        if function is None:
            value = biased
        elif fused is None or function.kind in fused:
            value = function.end
    return None if _is_head(value) else value.name


def _is_head(value: ir.Value) -> bool:
    """Whether ``value`` reaches graph outputs only, through nothing but a head's operators."""
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        consumers = list(current.consumers())
        if current.is_graph_output():
            continue
        if not consumers or not all(_is_head_node(n, current) for n in consumers):
            return False
        for output in (o for n in consumers for o in n.outputs):
            if output not in seen and (output.consumers() or output.is_graph_output()):
                seen.add(output)
                waiting.append(output)
    return True


def _is_head_node(node: ir.Node, read: ir.Value) -> bool:
    # What a body of If, Loop or Scan yields goes on outside of it.
    return not node.domain and node.op_type in _HEAD_OPS and node.graph is read.graph


def _values(model: ir.Model) -> dict[str, ir.Value]:
    named = {str(v.name): v for v in model.graph.inputs}
    named.update((str(v.name), v) for node in model.graph for v in node.outputs)
    return named


def _is_float(value: ir.Value) -> bool:
    # Without shape inference a type can be unknown; a site's neighbours are float then.
    return value.dtype is None or value.dtype.is_floating_point()
