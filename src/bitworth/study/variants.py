"""From a variant's words to its lowered model: recipe, sites, scales, graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitworth.calibration import RangeStatistics, ScaledSites, quantize_sites
from bitworth.errors import UserError
from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.placement import output_value
from bitworth.lowering.scaling import TensorScale
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Calibrator, Quantize, Recipe, Site
from bitworth.recipe.groups import ALL, Group, members
from bitworth.recipe.rules import Preference, resolve
from bitworth.record.schema import QuantizedSiteFact, ScaleFact
from bitworth.study.config import GroupConfig, VariantConfig
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import save


@dataclass(frozen=True)
class LoweredVariant:
    """A variant's recipe on this engine, with its scales.

    Attributes:
        recipe: resolved; no ``auto`` is left.
        scaled: quantized, dead and left-out sites.
    """

    recipe: Recipe
    scaled: ScaledSites


def recipe_of(variant: VariantConfig, preferred: Preference) -> Recipe:
    """The variant's recipe, with the engine's preference where it says ``auto``."""
    if variant.format == "bf16":
        return Recipe(base="bf16")
    assert variant.format is not None
    return Recipe(
        base="fp32",
        quantize=tuple(
            resolve(
                Quantize(
                    group=group,
                    format=variant.format,
                    weights=PER_CHANNEL if variant.weights == "per_channel" else PER_TENSOR,
                    sign=variant.sign,
                    zero_point=variant.zero_point,
                    weight_range=variant.weight_range,
                    calibrator=Calibrator(variant.calibrator, variant.percentile),
                    placement=variant.placement,
                ),
                preferred,
            )
            for group in variant.groups
        ),
    )


def group_sites(
    groups: Sequence[GroupConfig],
    names: Sequence[str],
    sites: Sequence[Site],
    time_ns: Mapping[str, float],
) -> dict[str, tuple[Site, ...]]:
    """The sites of each named group.

    Raises:
        UserError: a group that matches no site, or a pattern of it.
    """
    known = {g.name: Group(g.name, g.names, g.op_types, g.top_share) for g in groups}
    known["all"] = known.get("all", ALL)
    try:
        return {name: members(known[name], sites, time_ns) for name in names}
    except ValueError as error:
        raise UserError(f"group: {error}") from None


def scale_variant(
    prepared: PreparedModel,
    recipe: Recipe,
    groups: Mapping[str, Sequence[Site]],
    statistics: Mapping[str, RangeStatistics],
) -> LoweredVariant:
    """Scales of every site that the recipe quantizes; the last group that names a site wins."""
    chosen: dict[str, tuple[Site, Quantize]] = {}
    for entry in recipe.quantize:
        for site in groups[entry.group]:
            chosen[site.id] = (site, entry)
    outputs = {}
    for id_, (site, entry) in chosen.items():
        placement = entry.placement
        assert placement != "auto"
        outputs[id_] = output_value(prepared.model, site, placement, entry.fused)
    scaled = quantize_sites(prepared.model, tuple(chosen.values()), statistics, outputs)
    return LoweredVariant(recipe, scaled)


def write_lowered(
    prepared: PreparedModel, variant: LoweredVariant, path: Path, emulated: bool
) -> None:
    """Write the variant's graph: with Q/DQ nodes, or emulated in float."""
    build = emulate if emulated else lower
    save(build(prepared, variant.scaled.quantized), path)


def site_facts(variant: LoweredVariant) -> tuple[QuantizedSiteFact, ...]:
    """The record's form of what was done to each site."""
    formats = {"int8": "int8", "uint8": "int8", "fp8_e4m3": "fp8_e4m3"}
    return tuple(
        QuantizedSiteFact(
            site=q.site.id,
            format=formats[q.weight.storage],
            weight_granularity="per_tensor" if q.weight.axis is None else "per_channel",
            weight_limit=q.weight.limit,
            activation=_scale_fact(q.activation),
            output_value=q.output_value,
            output=None if q.output is None else _scale_fact(q.output),
        )
        for q in variant.scaled.quantized
    )


def _scale_fact(scale: TensorScale) -> ScaleFact:
    # A float32 is a float64 exactly, so the record holds the scale bit for bit.
    return ScaleFact(storage=scale.storage, scale=float(scale.scale), zero_point=scale.zero_point)
