"""Finds values whose channels can be divided by positive numbers and multiplied back, for free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from bitworth.recipe.site import Site
from bitworth.subject.channels import Channels, channel_axis, on_axis, passed_on
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.producers import Kind, Parameter, Producer, constant, producer, sole_weight


@dataclass(frozen=True, eq=False)
class ScaledValue:
    """A value that is divided together with a pair's.

    Attributes:
        name: of the value.
        axis: axis that holds its channels, counted from the end (-1 the last); None where they are
            spread over several, as heads are.
        channels: the pair's channel of each element, in a shape that broadcasts to the value's.
    """

    name: str
    axis: int | None
    channels: Channels


@dataclass(frozen=True, eq=False)
class Pair:
    """An operation whose output channels can be divided, and the sites that read them.

    Attributes:
        value: name of the operation's output; no two pairs have the same.
        kind: ``linear`` for Conv, ConvTranspose, Gemm and MatMul; ``norm`` for a normalization or
            what ends one that is written as several nodes, ``Mul(x, constant)``.
        axis: axis of ``value`` that holds the channels, counted from the end; None where they are
            spread over several.
        channels: how many there are, at least 2.
        producer: name of the operation's node.
        site: id of the site that the operation is; empty for none.
        divided: constants to be divided; the first is the operation's weight or scale, the others
            are biases.
        multiplied: weights to be multiplied, one for each of ``consumers``.
        consumers: ids of the sites that read the channels, in topological order.
        values: all values that are divided, ``value`` first.
    """

    value: str
    kind: Kind
    axis: int | None
    channels: int
    producer: str
    site: str
    divided: tuple[Parameter, ...]
    multiplied: tuple[Parameter, ...]
    consumers: tuple[str, ...]
    values: tuple[ScaledValue, ...]


def find_pairs(prepared: PreparedModel, sites: Iterable[Site]) -> tuple[Pair, ...]:
    """Return the pairs of a graph, in topological order.

    Every use of the operation's output, through operators that leave the channels apart and commute
    with a positive factor (Relu and its kin, poolings, gates ``a * b``, constant additions,
    reshaping and transposing where every channel can be followed, the product with attention
    probabilities), ends as the activation of one of ``sites``. So a value that a residual
    connection, a graph output or the body of a loop reads is none. A site belongs to one pair: that
    of the operation closest in front of it. A weight that another node reads as well is in none.

    Args:
        prepared: the graph.
        sites: of this graph; products of two activations among them mean nothing here.
    """
    graph = prepared.model.graph
    order = {str(node.name): i for i, node in enumerate(graph)}
    by_node = {site.node: site for site in sites if site.weight}
    pairs: list[Pair] = []
    claimed: set[str] = set()
    for node in reversed(graph):
        made = producer(node)
        region = None if made is None else _follow(made, graph, by_node)
        if made is None or region is None or not region.consumers:
            continue
        consumers = sorted(region.consumers, key=lambda c: order[c[0].node])
        names = tuple(site.id for site, _ in consumers)
        if claimed.isdisjoint(names):
            claimed.update(names)
            own = by_node.get(str(node.name))
            pairs.append(
                Pair(
                    value=str(made.value.name),
                    kind=made.kind,
                    axis=channel_axis(made.channels),
                    channels=made.channels.size,
                    producer=str(node.name),
                    site="" if own is None else own.id,
                    divided=(*made.parameters, *region.added),
                    multiplied=tuple(weight for _, weight in consumers),
                    consumers=names,
                    values=tuple(region.values),
                )
            )
    return tuple(reversed(pairs))


@dataclass
class _Region:
    """What lies between a producer and its consumers."""

    values: list[ScaledValue] = field(default_factory=list)
    added: list[Parameter] = field(default_factory=list)
    consumers: list[tuple[Site, Parameter]] = field(default_factory=list)


def _follow(made: Producer, graph: ir.Graph, by_node: Mapping[str, Site]) -> _Region | None:
    """Follow the channels to the end of all their ways; None where one ends at no site."""
    region = _Region()
    waiting = [(made.value, made.channels)]
    seen: set[ir.Node] = set()
    for value, channels in waiting:
        if value.is_graph_output():
            return None
        region.values.append(ScaledValue(str(value.name), channel_axis(channels), channels))
        for node, index in value.uses():
            # Met again, its output would be divided twice, or once where it should be twice.
            if node.graph is not graph or node in seen:
                return None
            seen.add(node)
            site = by_node.get(str(node.name))
            weight = None if site is None else _weight(site, node, index, channels)
            if site is not None and weight is not None:
                region.consumers.append((site, weight))
                continue
            added = _added(node, index, channels)
            after = channels if added is not None else passed_on(node, index, channels)
            if after is None or after.size < 2:
                return None
            region.added += [] if added is None else [added]
            waiting.append((node.outputs[0], after))
    return region


def _added(node: ir.Node, index: int, channels: Channels) -> Parameter | None:
    """The constant that is added to the channels, or subtracted."""
    if node.domain or node.op_type not in ("Add", "Sub"):
        return None
    return constant(node, 1 - index, channels)


def _weight(site: Site, node: ir.Node, index: int, channels: Channels) -> Parameter | None:
    """The site's weight with the channel that each element multiplies, or None where it sums over
    other axes than the channels'.
    """
    rank, convolution = len(site.weight_shape), site.op_type in ("Conv", "ConvTranspose")
    axis = site.activation_axis - rank if convolution else site.activation_axis
    if index != 1 - site.weight_input or channel_axis(channels) != axis:
        return None
    numbers = channels.reshape(-1)
    if numbers.size != site.in_channels * site.groups or not sole_weight(node, site.weight_input):
        return None
    if site.op_type == "Conv" and site.groups > 1:
        # Output channel o reads the input channels of its own group.
        each = numbers.reshape(site.groups, -1).repeat(site.out_channels // site.groups, axis=0)
        table = each.reshape(*each.shape, *[1] * (rank - 2))
    else:
        table = on_axis(numbers, site.block_axis - rank)
    return Parameter(str(node.name), site.weight_input, site.weight, table)
