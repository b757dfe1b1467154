"""A plan's own profile, and which sites each of its layers computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitworth.engines.base import LayerTime
from bitworth.recipe.site import Site


@dataclass(frozen=True)
class MappedLayer:
    """A layer's time with the ids of the sites that it computes; empty when none is known."""

    layer: LayerTime
    sites: tuple[str, ...]


def map_layers(
    layers: Sequence[LayerTime],
    sites: Sequence[Site],
    producers: Mapping[str, str],
    upstream: Mapping[str, Sequence[str]],
) -> tuple[MappedLayer, ...]:
    """Find the sites behind each layer.

    A fused layer is named after one of the nodes or values that it swallowed. A site belongs to it
    if its node is named, or if a named value is reached from the site's output through operations
    that have no weight of their own.

    Args:
        layers: a profile.
        sites: sites of the prepared graph.
        producers: value name to the name of the node that writes it.
        upstream: node name to the names of its input values.
    """
    by_node = {s.node: s.id for s in sites}
    mapped = []
    for layer in layers:
        found: list[str] = []
        for origin in layer.origins:
            node = origin if origin in upstream else producers.get(origin, "")
            if node in by_node:
                found.append(by_node[node])
        if not found and _computes_sites(layer):
            for origin in layer.origins:
                node = origin if origin in upstream else producers.get(origin, "")
                behind = _site_behind(node, by_node, producers, upstream)
                if behind is not None:
                    found.append(behind)
        mapped.append(MappedLayer(layer, tuple(dict.fromkeys(found))))
    return tuple(mapped)


def profile_fault(layers: Sequence[LayerTime]) -> str:
    """Why a profile cannot be used, in one sentence; empty if it can."""
    if not layers:
        return "the engine's profiler reports no layer"
    for layer in layers:
        if not math.isfinite(layer.time_ns) or layer.time_ns < 0:
            return f"the engine's profiler reports {layer.time_ns:g} ns for layer '{layer.name}'"
    if not sum(layer.time_ns for layer in layers):
        return f"the engine's profiler reports no time for any of {len(layers)} layers"
    return ""


def _computes_sites(layer: LayerTime) -> bool:
    op = layer.op.lower()
    return any(word in op for word in ("conv", "gemm", "matmul", "fullyconnected"))


def _site_behind(
    node: str,
    by_node: Mapping[str, str],
    producers: Mapping[str, str],
    upstream: Mapping[str, Sequence[str]],
) -> str | None:
    """The one site reached upwards from ``node``; None when there are none or several."""
    seen: set[str] = set()
    frontier = [node]
    found: list[str] = []
    while frontier and len(seen) < 32:
        current = frontier.pop()
        if not current or current in seen:
            continue
        seen.add(current)
        if current in by_node:
            found.append(by_node[current])
            continue
        frontier.extend(producers.get(value, "") for value in upstream.get(current, ()))
    # What the limit left unseen may hold another site.
    unseen = any(name and name not in seen for name in frontier)
    return found[0] if len(found) == 1 and not unseen else None
