"""The graph that a variant's sites are quantized in: rescaled, in its base precision, raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bitworth.lowering.base_precision import to_base
from bitworth.lowering.rescaling import ChannelFactors, rescale
from bitworth.lowering.scalings import with_scalings
from bitworth.recipe import Recipe, Site
from bitworth.subject.prepare import PreparedModel, raised
from bitworth.subject.sites import find_sites


@dataclass(frozen=True)
class VariantGraph:
    """A graph between the prepared one and the lowered one.

    Attributes:
        prepared: the graph.
        sites: its sites by id, products of two activations included; ids are those of the prepared
            graph.
        kept: nodes that stayed in fp32 under a 16-bit base, and why.
        overflow: tensors that the base cannot hold as they are.
        renamed: (new name, name in the prepared graph) of values that conversion put beside others,
            whose ranges are the same.
    """

    prepared: PreparedModel
    sites: Mapping[str, Site]
    kept: tuple[tuple[str, str], ...] = ()
    overflow: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def variant_graph(
    fair: PreparedModel,
    sites: Sequence[Site],
    recipe: Recipe,
    scalings: Sequence[str],
    factors: Sequence[ChannelFactors],
    amax: Mapping[str, float] | None,
) -> VariantGraph:
    """The graph for ``recipe``: channels rescaled, then converted to fp16 where that is the base.

    Args:
        fair: the prepared graph.
        sites: its sites with weights.
        recipe: the variant's.
        scalings: values that sites are to read through a multiplication of their own.
        factors: of the values whose channels are rescaled.
        amax: largest magnitude of values by name; what exceeds fp16 stays in fp32.

    Raises:
        UserError: an entry of ``keep_fp32`` that names nothing.
    """
    prepared = fair
    if scalings:
        prepared = with_scalings(fair, sites, scalings)
        sites = find_sites(prepared).sites
    if factors:
        prepared = rescale(prepared, sites, factors)
    # bf16 is a hint to the engine, which converts; fp16 is in the graph's own types.
    if recipe.base != "fp16":
        return VariantGraph(prepared, _by_id(prepared))
    converted = to_base(prepared, "fp16", recipe.keep_fp32, amax)
    found = _by_id(converted.model)
    return VariantGraph(
        converted.model, found, converted.kept, converted.overflow, converted.renamed
    )


def at_opset(graph: VariantGraph, opset: int) -> VariantGraph:
    """``graph`` raised to ``opset``, or itself where it is there.

    Raises:
        UserError: a converter fails.
    """
    if graph.prepared.opset >= opset:
        return graph
    return replace(graph, prepared=raised(graph.prepared, opset))


def _by_id(prepared: PreparedModel) -> dict[str, Site]:
    scan = find_sites(prepared)
    return {s.id: s for s in (*scan.sites, *scan.attention)}
