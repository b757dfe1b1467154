"""A baseline's profile on a device that is not here, from that device's measured rates.

An estimate: products at the rate of the nearest measured shape, all else at the rate of the largest
copy, pointwise work right behind a product for free, as engines fuse it. What an engine does
between layers is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx_ir as ir

from bitworth.recipe import Site
from bitworth.record.device_profile import DeviceProfile
from bitworth.record.op_classes import POINTWISE, op_class
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.record.variant_bounds import WorkFact, product_ns

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def estimated_profile(
    model: ir.Model,
    sites: Sequence[Site],
    work: Mapping[str, WorkFact],
    shapes: Mapping[str, Sequence[int]],
    device: DeviceProfile,
    base: str,
) -> ProfileFacts:
    """One layer a node of the prepared graph, with its estimated time.

    Args:
        model: the prepared graph.
        sites: with products of two activations.
        work: by site's id.
        shapes: of every value that is known.
        device: rates of the other device.
        base: the format that the baseline computes in there.
    """
    by_node = {site.node: site for site in sites}
    places: dict[ir.Value, int] = {}
    layers: list[LayerFact] = []
    for node in model.graph:
        site = by_node.get(str(node.name))
        sources = [places[v] for v in node.inputs if v is not None and v in places]
        if site is not None and site.id in work:
            time = product_ns(work[site.id], base, device)
        elif _fused(node, layers, sources):
            time = 0.0
        else:
            time = _moved(node, shapes, _BYTES.get(base, 4)) / (device.memory_bandwidth() or 1.0)
        for value in node.outputs:
            places[value] = len(layers)
        layers.append(
            LayerFact(
                name=str(node.name), op=node.op_type, kernel="estimated", precision=base,
                time_ns=time, sites=(site.id,) if site is not None else (), format=base,
                inputs=tuple(dict.fromkeys(sources)),
            )
        )  # fmt: skip
    return ProfileFacts(plan_sha256=None, calls=None, plain_ns=None, layers=tuple(layers))


def _fused(node: ir.Node, layers: Sequence[LayerFact], sources: Sequence[int]) -> bool:
    """Whether a node is pointwise work on the result of a product, or of what is fused with one."""
    if op_class(node.op_type) != POINTWISE or not sources:
        return False
    before = layers[sources[0]]
    return bool(before.sites) or (before.time_ns == 0.0 and op_class(before.op) == POINTWISE)


def _moved(node: ir.Node, shapes: Mapping[str, Sequence[int]], width: int) -> int:
    """Bytes that a node reads and writes, as far as the shapes are known."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return width * sum(prod(shapes[str(v.name)]) for v in values if str(v.name) in shapes)
