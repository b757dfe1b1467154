"""A recipe's scales on one engine, and the graphs that they are written into."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bitworth.calibration import RangeStatistics, ScaledSites, quantize_sites
from bitworth.calibration.merging import merged
from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.opsets import needed_opset
from bitworth.lowering.placement import output_value, residual_inputs
from bitworth.lowering.rescaling import ChannelFactors
from bitworth.lowering.scaling import QuantizedSite
from bitworth.lowering.sharing import shared_groups
from bitworth.recipe import Quantize, Recipe, Site
from bitworth.recipe.eligibility import excluded
from bitworth.recipe.rules import Preference, resolve
from bitworth.study.smoothing import smoothing
from bitworth.study.variant_graph import VariantGraph, at_opset, variant_graph
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import save

_NUMPY = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
Pairs = Sequence[tuple[Site, Quantize]]


@dataclass(frozen=True)
class LoweredVariant:
    """A variant's recipe on one engine, with its scales.

    Attributes:
        recipe: resolved; no ``auto`` is left.
        entries: the recipe's entry of each site that it names, by site id.
        graph: what the sites are quantized in, at the opset that their formats need.
        scaled: quantized, dead and left-out sites; those that an engine rule excludes are among
            the latter.
        scalings: values that sites read through a multiplication put there.
        factors: of the values whose channels were rescaled.
        everywhere: activation inputs that other operators than sites get quantized too.
    """

    recipe: Recipe
    entries: dict[str, Quantize]
    graph: VariantGraph
    scaled: ScaledSites
    scalings: tuple[str, ...]
    factors: tuple[ChannelFactors, ...]
    everywhere: tuple[str, ...]


def scale_variant(
    fair: PreparedModel,
    sites: Sequence[Site],
    recipe: Recipe,
    groups: Mapping[str, Sequence[Site]],
    statistics: Mapping[str, RangeStatistics],
    engine: str,
    preferred: Preference,
    ignore_rules: Collection[str] = (),
) -> LoweredVariant:
    """Scales of every site that the recipe quantizes; the last group that names a site wins.

    Args:
        fair: the prepared graph.
        sites: all its sites with weights.
        recipe: as the study says it.
        groups: the sites of each group.
        statistics: what calibration saw, by value.
        engine: whose rules hold; ``emulated`` for what none computes.
        preferred: what ``auto`` in the recipe resolves to, site by site.
        ignore_rules: ids of the engine's rules that leave no site out.

    Raises:
        UserError: an entry of ``keep_fp32`` names nothing, or the opset cannot be raised.
    """
    chosen = {
        site.id: (site, resolve(entry, preferred, site))
        for entry in recipe.quantize
        for site in groups[entry.group]
    }
    placed = tuple((site, _as_placed(fair, site, entry)) for site, entry in chosen.values())
    rules = excluded(engine, placed, ignore_rules)
    pairs = [pair for id_, pair in chosen.items() if id_ not in rules]
    moved = smoothing(fair, sites, pairs, statistics)
    amax = {name: found.amax for name, found in statistics.items()} or None
    graph = variant_graph(fair, sites, recipe, moved.scalings, moved.factors, amax)
    inside = [(graph.sites[site.id], entry) for site, entry in pairs]
    known = dict(moved.statistics)
    known |= {new: known[old] for new, old in graph.renamed if old in known}
    outputs = {site.id: _output(graph.prepared, site, entry) for site, entry in inside}
    # In front of a multiplication a value keeps its outlier channels: it is quantized behind it.
    outputs = {id_: None if name in moved.scalings else name for id_, name in outputs.items()}
    known |= _shared(graph.prepared, inside, outputs, known)
    scaled = quantize_sites(graph.prepared.model, inside, known, outputs)
    quantized = tuple(
        replace(q, compute=_compute(chosen[q.site.id][1], recipe.base)) for q in scaled.quantized
    )
    left_out = {**rules, **dict(scaled.left_out)}
    return LoweredVariant(
        recipe=replace(recipe, quantize=tuple(resolve(e, preferred) for e in recipe.quantize)),
        entries={id_: entry for id_, (_, entry) in chosen.items()},
        graph=at_opset(graph, max((needed_opset(q) for q in quantized), default=0)),
        scaled=ScaledSites(
            quantized, scaled.dead, tuple((i, left_out[i]) for i in chosen if i in left_out)
        ),
        scalings=moved.scalings,
        factors=moved.factors,
        everywhere=_everywhere(graph.prepared, inside, quantized),
    )


def write_lowered(variant: LoweredVariant, path: Path, emulated: bool) -> None:
    """Write the variant's graph: with Q/DQ nodes, or emulated in float.

    Raises:
        UserError: ONNX has no operators for the recipe, or the file cannot be written.
    """
    build = emulate if emulated else lower
    save(build(variant.graph.prepared, variant.scaled.quantized, variant.everywhere), path)


def _as_placed(prepared: PreparedModel, site: Site, entry: Quantize) -> Quantize:
    """The entry as it is lowered: an output that is a head stays in float, whatever it says."""
    if entry.scheme == "static" and _output(prepared, site, entry) is None:
        return replace(entry, placement="input_only")
    return entry


def _output(prepared: PreparedModel, site: Site, entry: Quantize) -> str | None:
    """The value at which the output of ``site`` is quantized, under its entry."""
    placement = entry.placement
    assert placement != "auto"
    if entry.scheme != "static":
        return None
    return output_value(prepared.model, site, placement, entry.fused)


def _shared(
    prepared: PreparedModel,
    inside: Pairs,
    outputs: Mapping[str, str | None],
    known: Mapping[str, RangeStatistics],
) -> dict[str, RangeStatistics]:
    """Merged statistics of values that are to have one scale, for entries that agree."""
    values: dict[tuple[str, ...], dict[str, Quantize]] = {}
    for site, entry in inside:
        ops = entry.shared or ()
        if entry.scheme != "static" or not ops:
            continue
        for name in (site.activation, site.second, outputs[site.id]):
            if name:
                values.setdefault(ops, {}).setdefault(name, entry)
    found: dict[str, RangeStatistics] = {}
    for ops, entries in values.items():
        for group in shared_groups(prepared.model, tuple(entries), ops):
            same = {replace(entries[name], group="") for name in group}
            if len(same) > 1:
                continue  # two formats or calibrators have no common scale
            one = merged([known[name] for name in sorted(group)])
            found |= dict.fromkeys(group, one)
    return found


def _everywhere(
    prepared: PreparedModel, inside: Pairs, quantized: Sequence[QuantizedSite]
) -> tuple[str, ...]:
    """Values of shortcuts that the additions of an integer recipe get quantized too."""
    ops = {
        site.id: entry.residual
        for site, entry in inside
        if entry.residual and entry.scheme == "static" and entry.format == "int8"
    }
    names: dict[str, None] = {}
    for each in dict.fromkeys(ops.values()):
        chosen = [q for q in quantized if ops.get(q.site.id) == each]
        names |= dict.fromkeys(residual_inputs(prepared.model, chosen, each))
    return tuple(names)


def _compute(entry: Quantize, base: str) -> str | None:
    """The float type that a site computes in, where it is not the graph's own."""
    graph = "fp16" if base == "fp16" else "fp32"
    wanted = base if entry.dequantize == "base" else entry.dequantize
    # Under bf16 the graph is in fp32, and the engine's hint converts all of it.
    if base == "bf16" and wanted == "bf16":
        return None
    return None if wanted == graph else _NUMPY[wanted]
