"""What a variant's plan does beside its products: the conversions that did not fuse, and why.

A Quantize, Dequantize, Cast or Reformat that runs as a layer of its own costs time that the format
was to save. Against the baseline's profile it is told what appeared, between which layers it
stands, and which sites still compute in the baseline's format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from bitworth.record.op_classes import CONVERSION, op_class
from bitworth.record.part import Part
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.verdict import sig6

#: Conversions that are told one by one, the longest first.
TOLD = 8


class Conversion(Part):
    """A layer that converts, and what it stands between."""

    layer: str
    op: str
    share_of_profile: float
    producer: str = Field(description="operator and site in front of it; empty: an input")
    readers: tuple[str, ...] = Field(description="operators and sites behind it")
    why: str


class Conversions(Part):
    """The conversions of one variant against the baseline's.

    ``share_before`` and ``share_after`` are of the layers' time of either plan; ``share_added`` is
    the time of those that appeared less that of those that went, over the baseline's layers' time.
    """

    variant: str
    evidence: str = "derived"
    layers_before: int
    layers_after: int
    count_before: int
    count_after: int
    share_before: float
    share_after: float
    share_added: float
    told: tuple[Conversion, ...] = Field(description="that the baseline does not have; longest")
    untold: int = Field(description="further ones that the baseline does not have")
    unchanged: tuple[str, ...] = Field(
        description="quantized sites whose layer computes in the format that the baseline's has"
    )


def conversions(
    variant: str,
    baseline: ProfileFacts,
    profile: ProfileFacts,
    quantized: Sequence[str],
) -> Conversions | None:
    """The conversions of a variant; None without both profiles.

    Args:
        variant: its name.
        baseline, profile: of the two plans.
        quantized: ids of the variant's quantized sites.
    """
    before = sum(layer.time_ns for layer in baseline.layers)
    after = sum(layer.time_ns for layer in profile.layers)
    if before <= 0 or after <= 0:
        return None
    old = [layer for layer in baseline.layers if _converts(layer)]
    new = [layer for layer in profile.layers if _converts(layer)]
    known = {layer.name for layer in old}
    appeared = sorted(
        (layer for layer in new if layer.name not in known), key=lambda layer: -layer.time_ns
    )
    readers = _readers(profile.layers)
    places = {layer.name: place for place, layer in enumerate(profile.layers)}
    spent_old = sum(layer.time_ns for layer in old)
    spent_new = sum(layer.time_ns for layer in new)
    return Conversions(
        variant=variant,
        layers_before=len(baseline.layers),
        layers_after=len(profile.layers),
        count_before=len(old),
        count_after=len(new),
        share_before=sig6(spent_old / before),
        share_after=sig6(spent_new / after),
        share_added=sig6((spent_new - spent_old) / before),
        told=tuple(
            _told(layer, profile.layers, readers[places[layer.name]], after)
            for layer in appeared[:TOLD]
        ),
        untold=max(0, len(appeared) - TOLD),
        unchanged=_unchanged(baseline.layers, profile.layers, quantized),
    )


def _converts(layer: LayerFact) -> bool:
    return op_class(layer.op, layer.sites) == CONVERSION


def _readers(layers: Sequence[LayerFact]) -> Mapping[int, list[LayerFact]]:
    found: dict[int, list[LayerFact]] = {place: [] for place in range(len(layers))}
    for layer in layers:
        for place in layer.inputs:
            found[place].append(layer)
    return found


def _told(
    layer: LayerFact, layers: Sequence[LayerFact], readers: Sequence[LayerFact], total: float
) -> Conversion:
    producer = layers[layer.inputs[0]] if layer.inputs else None
    beside = [
        other
        for other in layers
        if producer is not None and layer.inputs[0] in other.inputs and other is not layer
    ]
    return Conversion(
        layer=layer.name,
        op=layer.op,
        share_of_profile=sig6(layer.time_ns / total),
        producer="" if producer is None else _named(producer),
        readers=tuple(dict.fromkeys(_named(r) for r in readers)),
        why=_why(layer, producer, beside, readers),
    )


def _why(
    layer: LayerFact,
    producer: LayerFact | None,
    beside: Sequence[LayerFact],
    readers: Sequence[LayerFact],
) -> str:
    """What kept it from fusing, as far as its neighbours tell."""
    op = layer.op.lower()
    if producer is None:
        return f"{layer.op} of an input of the model, or of what its engine does not tell"
    if "dequantize" in op:
        floats = [r for r in readers if not _converts(r) and r.format != "int8"]
        if floats:
            return f"{_listed(floats)} read in {floats[0].format or 'another format'}"
        if not readers:
            return "it is an output of the model"
        return f"the engine did not join it with {_listed(readers)}"
    if "quantize" in op:
        if producer.format == "int8" and not _converts(producer):
            return f"{_named(producer)} computes in 8 bits and writes {_element(producer)}"
        others = [o for o in beside if not _converts(o)]
        if others:
            return (
                f"output of {_named(producer)} that also feeds {_listed(others)} in "
                f"{others[0].format or 'another format'}"
            )
        return f"{_named(producer)} computes in {producer.format or 'another format'}"
    if "reorder" in op or "reformat" in op:
        return f"{_named(producer)} and {_listed(readers)} want other layouts"
    return f"{_named(producer)} writes another type than {_listed(readers)} read"


def _element(layer: LayerFact) -> str:
    return layer.precision or "floats"


def _listed(layers: Sequence[LayerFact]) -> str:
    names = list(dict.fromkeys(_named(layer) for layer in layers))
    if not names:
        return "an output of the model"
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _named(layer: LayerFact) -> str:
    return f"{layer.op} of {layer.sites[0]}" if layer.sites else layer.op


def _unchanged(
    before: Sequence[LayerFact], after: Sequence[LayerFact], quantized: Sequence[str]
) -> tuple[str, ...]:
    """Quantized sites whose layer's format is known, and is the baseline's."""
    was = {site: layer.format for layer in before for site in layer.sites}
    now = {site: layer.format for layer in after for site in layer.sites}
    return tuple(
        site for site in quantized if now.get(site) and now.get(site) == was.get(site, "fp32")
    )
