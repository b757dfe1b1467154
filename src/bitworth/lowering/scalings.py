"""Puts multiplications by one in front of sites, for factors that no operation before can take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bitworth.lowering.scope import Scope
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel


def scaled_name(value: str) -> str:
    """What sites read instead of ``value``, where it is multiplied for them."""
    return f"{value}/scaled"


def with_scalings(
    prepared: PreparedModel, sites: Iterable[Site], values: Sequence[str]
) -> PreparedModel:
    """Return the graph in which sites read each value through a multiplication by ones.

    One number for each channel, along the site's ``activation_axis``; so ``find_pairs`` finds a
    producer there that takes any factors. Other readers keep the value as it is. The graph computes
    what it did, bit for bit. Names stay; new are ``<value>/scaled`` and its node and constant.

    Args:
        prepared: the graph.
        sites: those with weights that may read a value.
        values: activations of sites, each once.

    Raises:
        ValueError: a value that no site reads, or that sites read along different axes.
    """
    model = prepared.model.clone()
    nodes = {str(node.name): node for node in model.graph}
    scope = Scope.of(model)
    readers: dict[str, list[Site]] = {name: [] for name in values}
    for site in sites:
        if site.activation in readers and site.weight:
            readers[site.activation].append(site)
    for name, reading in readers.items():
        shapes = {_ones_shape(site) for site in reading}
        if len(shapes) != 1:
            raise ValueError(f"value '{name}': no site reads it, or sites read it differently")
        site = reading[0]
        source = nodes[site.node].inputs[1 - site.weight_input]
        assert source is not None
        dtype = source.dtype or ir.DataType.FLOAT
        ones = np.ones(shapes.pop(), np.float32).astype(dtype.numpy())
        factor = scope.initializer(f"{name}/scaling", ir.Tensor(ones, dtype=dtype))
        node = scope.node("Mul", [source, factor], source, f"{name}/scaling")
        node.outputs[0].name = scope.name(scaled_name(name))
        _insert(model.graph, source, node)
        for each in reading:
            nodes[each.node].replace_input_with(1 - each.weight_input, node.outputs[0])
    return replace(prepared, model=model)


def _ones_shape(site: Site) -> tuple[int, ...]:
    """Shape of the factors, which broadcasts to the activation's."""
    if site.op_type in ("Conv", "ConvTranspose"):
        rank = len(site.weight_shape)
        return (1, site.in_channels * site.groups, *[1] * (rank - 2))
    return (site.in_channels, 1) if site.weight_input == 0 else (site.in_channels,)


def _insert(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    producer = value.producer()
    if producer is None:
        graph.insert_before(next(iter(graph)), node)
    else:
        graph.insert_after(producer, node)
