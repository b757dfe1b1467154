"""From a variant's words to its recipe and the sites of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitworth.errors import UserError
from bitworth.recipe import PER_CHANNEL, PER_ROW, PER_TENSOR, Calibrator, Quantize, Recipe, Site
from bitworth.recipe.consistency import (
    INT4_BLOCK,
    natural_activations,
    natural_scheme,
    natural_weights,
)
from bitworth.recipe.granularity import Granularity, PerBlock
from bitworth.recipe.groups import ALL, Group, members
from bitworth.recipe.recipe import Placement, Scheme
from bitworth.recipe.rules import Preference, resolve
from bitworth.study.sections import GroupConfig, VariantConfig

#: Formats that are the precision of a whole model.
BASES = ("fp32", "bf16", "fp16")
_SCHEMES: Mapping[str, Scheme] = {
    "dynamic": "dynamic", "dynamic_per_row": "dynamic", "none": "weight_only",
}  # fmt: skip


def recipe_of(variant: VariantConfig, preferred: Preference | None = None) -> Recipe:
    """The variant's recipe, with the engine's preference, if given, where it says ``auto``.

    Of a variant that names a precision, or has a format that quantizes.
    """
    assert variant.format is not None
    if variant.format in BASES:
        return Recipe(base=variant.format, keep_fp32=variant.keep_fp32)
    entries = [_entry(variant, group) for group in variant.groups]
    if preferred is not None:
        entries = [resolve(entry, preferred) for entry in entries]
    return Recipe(base=variant.base, quantize=tuple(entries), keep_fp32=variant.keep_fp32)


def _entry(variant: VariantConfig, group: str) -> Quantize:
    assert variant.format is not None
    natural = natural_scheme(variant.format)
    scheme = natural if variant.activations is None else _SCHEMES.get(variant.activations, "static")
    placement: Placement = variant.placement
    # Only a static scale, known beforehand, can stand at an output too; and one for each channel
    # is for the operation that reads it.
    if scheme != "static" or variant.activations == "per_channel":
        placement = "input_only" if placement == "auto" else placement
    told: Mapping[str | None, Granularity] = {
        "per_channel": PER_CHANNEL, "dynamic_per_row": PER_ROW,
    }  # fmt: skip
    activations = told.get(variant.activations, natural_activations(variant.format))
    return Quantize(
        group=group,
        format=variant.format,
        weights=_weights(variant),
        activations=activations,
        scheme=scheme,
        sign=variant.sign,
        zero_point=variant.zero_point,
        weight_range=variant.weight_range,
        calibrator=Calibrator(variant.calibrator, variant.percentile),
        placement=placement,
        shared=variant.shared,
        residual=variant.residual,
        smooth=variant.smooth_quant,
        smooth_insert=variant.smooth_insert,
        equalize=variant.equalize,
        dequantize=variant.dequantize,
    )


def _weights(variant: VariantConfig) -> Granularity:
    assert variant.format is not None
    if variant.weights == "per_tensor":
        return PER_TENSOR
    if variant.weights == "per_channel":
        return PER_CHANNEL
    if variant.weights == "block" or variant.block is not None:
        return PerBlock(variant.block or INT4_BLOCK)
    return natural_weights(variant.format)


def group_sites(
    groups: Sequence[GroupConfig],
    names: Sequence[str],
    sites: Sequence[Site],
    time_ns: Mapping[str, float],
    attention: Sequence[Site] = (),
) -> dict[str, tuple[Site, ...]]:
    """The sites of each named group.

    Raises:
        UserError: a group that matches no site, or a condition of it.
    """
    known = {g.name: Group(**g.model_dump()) for g in groups}
    known["all"] = known.get("all", ALL)
    try:
        return {name: members(known[name], sites, time_ns, attention) for name in names}
    except ValueError as error:
        raise UserError(f"group: {error}") from None
