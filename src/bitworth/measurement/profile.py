"""A plan's own profile, and which sites each of its layers computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def site_times(mapped: Sequence[MappedLayer]) -> dict[str, float]:
    """Time of each site in ns; a layer that computes several shares its time among them."""
    times: dict[str, float] = {}
    for item in mapped:
        for site in item.sites:
            times[site] = times.get(site, 0.0) + item.layer.time_ns / len(item.sites)
    return times


def stored_form(mapped: Sequence[MappedLayer]) -> list[dict[str, Any]]:
    """Plain values, to be kept as JSON."""
    return [{**vars(item.layer), "sites": list(item.sites)} for item in mapped]


def restored(stored: Sequence[Mapping[str, Any]]) -> tuple[MappedLayer, ...]:
    """What ``stored_form`` took apart."""
    return tuple(
        MappedLayer(LayerTime(**{**layer, "origins": tuple(layer["origins"])}), tuple(sites))
        for layer, sites in (
            ({k: v for k, v in item.items() if k != "sites"}, item["sites"]) for item in stored
        )
    )


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
