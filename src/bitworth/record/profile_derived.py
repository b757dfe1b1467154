"""What follows from the profiles of a cell: bounds, splits of the time, conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitworth.record.conversions import Conversions, conversions
from bitworth.record.profile_facts import LayerFact, ProfileFacts, site_times
from bitworth.record.schema import (
    CellFacts,
    Facts,
    GroupBound,
    UncoveredTime,
    VariantFacts,
)
from bitworth.record.time_split import TimeSplit, time_split
from bitworth.record.variant_outlook import (
    VariantOutlook,
    measured_formats,
    variant_outlook,
)
from bitworth.record.why import Why, why
from bitworth.verdict import Comparison, amdahl_ceiling, sig6


def own_profile(variant: VariantFacts | None) -> ProfileFacts | None:
    """The variant's profile; None where there is none, or where it is another plan's by its hash.

    Older records do not say which plan was profiled.
    """
    profile = None if variant is None else variant.profile
    if profile is None or profile.plan_sha256 is None:
        return profile
    plan = None if variant is None else variant.plan
    return profile if plan is not None and plan.sha256 == profile.plan_sha256 else None


def splits(cell: CellFacts) -> tuple[TimeSplit, ...]:
    """Where the time of every profiled plan goes."""
    found = (
        time_split(v.name, profile, cell.groups)
        for v in cell.variants
        if (profile := own_profile(v)) is not None
    )
    return tuple(split for split in found if split is not None)


def conversions_of(cell: CellFacts, baseline: ProfileFacts | None) -> tuple[Conversions, ...]:
    """The conversions of every profiled variant against the baseline's."""
    if baseline is None:
        return ()
    found = (
        conversions(v.name, baseline, profile, [entry.site for entry in v.sites])
        for v in cell.variants
        if (profile := own_profile(v)) is not None and profile is not baseline
    )
    return tuple(entry for entry in found if entry is not None)


def reasons(
    cell: CellFacts,
    baseline: ProfileFacts | None,
    found: Sequence[TimeSplit],
    converted: Sequence[Conversions],
    bounds: Sequence[VariantOutlook],
    comparisons: Mapping[str, Comparison | None],
) -> tuple[Why, ...]:
    """Why each profiled variant is as fast as it is.

    Args:
        cell: its facts.
        baseline: profile of the baseline.
        found, converted, bounds: splits, conversions and outlooks of the cell's variants.
        comparisons: of each variant's time with the baseline's, by name.
    """
    by_name = {split.variant: split for split in found}
    reachable = {bound.variant: bound.ceiling_speedup for bound in bounds}
    times = site_times(_layers(baseline))
    total = sum(layer.time_ns for layer in _layers(baseline))
    before = next(
        (by_name[v.name] for v in cell.variants if v.profile is baseline and v.name in by_name),
        None,
    )
    if before is None:
        return ()
    told = []
    for entry in converted:
        (variant,) = [v for v in cell.variants if v.name == entry.variant]
        quantized = [site.site for site in variant.sites]
        share = sum(times.get(site, 0.0) for site in quantized) / total
        ceiling = amdahl_ceiling(share, 0.0) if share < 1 else None
        text = why(
            entry.variant, comparisons.get(entry.variant), before, by_name[entry.variant], entry,
            ceiling, reachable.get(entry.variant), quantized,
        )  # fmt: skip
        if text is not None:
            told.append(text)
    return tuple(told)


def outlooks(
    cell: CellFacts,
    baseline: ProfileFacts | None,
    comparisons: Mapping[str, Comparison | None],
) -> tuple[VariantOutlook, ...]:
    """What each variant could give at most, and gave.

    Those that compute in formats that the device was not measured in have no limit.
    """
    if baseline is None or cell.limits is None:
        return ()
    found = []
    for variant in cell.variants:
        alone = {entry.site for entry in variant.sites if entry.activation is None}
        sites = [(entry.site, entry.format) for entry in variant.sites]
        formats = measured_formats(sites, cell.limits, alone)
        entry = variant_outlook(
            variant.name, formats, baseline, cell.work, cell.limits,
            comparisons.get(variant.name), alone,
        )  # fmt: skip
        if entry is not None:
            found.append(entry)
    return tuple(found)


def uncovered_times(facts: Facts, baseline: ProfileFacts | None) -> tuple[UncoveredTime, ...]:
    """What no recipe covers, with its time in the baseline's own profile."""
    layers = _layers(baseline)
    total = sum(layer.time_ns for layer in layers)
    found = []
    for node, what in facts.subject.uncovered:
        times = [m.time_ns for m in layers if m.name == node and not m.sites]
        share = sig6(sum(times) / total) if times and total > 0 else None
        found.append(UncoveredTime(node=node, what=what, share_of_profile=share))
    return tuple(found)


def group_bounds(
    cell: CellFacts, baseline: ProfileFacts | None
) -> tuple[float | None, tuple[GroupBound, ...]]:
    """Coverage of the baseline's own profile, and Amdahl's ceiling of each group from it.

    Only time that is mapped to sites counts for a group; all of the profile is the whole.
    """
    layers = _layers(baseline)
    total = sum(layer.time_ns for layer in layers)
    if total <= 0:
        return None, ()
    by_site = site_times(layers)
    mapped = sum(by_site.values())
    groups = {name: sum(by_site.get(i, 0.0) for i in ids) for name, ids in cell.groups.items()}
    bounds = []
    for name, time in sorted(groups.items()):
        share = min(time / total, 1.0)
        ceiling = sig6(amdahl_ceiling(share, 0.0)) if share < 1 else None
        bounds.append(GroupBound(group=name, share_of_profile=sig6(share), ceiling_speedup=ceiling))
    return sig6(mapped / total), tuple(bounds)


def _layers(profile: ProfileFacts | None) -> tuple[LayerFact, ...]:
    return () if profile is None else profile.layers
