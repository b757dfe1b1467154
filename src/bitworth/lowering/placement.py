"""At which value a site's output is quantized, so that the engine can fuse what lies before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import onnx_ir as ir

from bitworth.lowering.regions import activation_after, bias_end
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
            _output_value(values, site, "before_activation"),
            _output_value(values, site, "after_activation"),
        ]
        for name in candidates:
            if name is not None and _is_float(values[name]):
                names[name] = None
    return tuple(names)


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
        if not consumers or any(n.domain or n.op_type not in _HEAD_OPS for n in consumers):
            return False
        for output in (o for n in consumers for o in n.outputs):
            if output not in seen and (output.consumers() or output.is_graph_output()):
                seen.add(output)
                waiting.append(output)
    return True


def _values(model: ir.Model) -> dict[str, ir.Value]:
    named = {str(v.name): v for v in model.graph.inputs}
    named.update((str(v.name), v) for node in model.graph for v in node.outputs)
    return named


def _is_float(value: ir.Value) -> bool:
    # Without shape inference a type can be unknown; a site's neighbours are float then.
    return value.dtype is None or value.dtype.is_floating_point()
