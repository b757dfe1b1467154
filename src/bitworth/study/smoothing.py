"""SmoothQuant and equalization of one variant: which factors, where, and what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitworth.calibration import RangeStatistics
from bitworth.calibration.equalize import equalize_factors
from bitworth.calibration.merging import rescaled
from bitworth.calibration.smooth import smooth_factors
from bitworth.lowering.rescaling import ChannelFactors, value_factors
from bitworth.lowering.scalings import scaled_name, with_scalings
from bitworth.recipe import Quantize, Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.rescalable import Pair, find_pairs
from bitworth.subject.sites import find_sites

Entries = Sequence[tuple[Site, Quantize]]
Statistics = Mapping[str, RangeStatistics]


@dataclass(frozen=True)
class Smoothing:
    """What is moved from activations into weights.

    Attributes:
        scalings: values that sites read through a multiplication put there.
        factors: of the values whose channels are divided.
        statistics: of all observed values, as they are then.
    """

    scalings: tuple[str, ...]
    factors: tuple[ChannelFactors, ...]
    statistics: Statistics


def smoothing(
    fair: PreparedModel, sites: Sequence[Site], entries: Entries, statistics: Statistics
) -> Smoothing:
    """The factors that the entries ask for.

    Args:
        fair: the prepared graph.
        sites: all its sites with weights.
        entries: the sites that are quantized, each with its resolved entry.
        statistics: what calibration saw, by value.
    """
    if not any(entry.smooth is not None or entry.equalize for _, entry in entries):
        return Smoothing((), (), statistics)
    pairs = find_pairs(fair, sites)
    wanted = _unreached(pairs, sites, entries)
    scalings: tuple[str, ...] = ()
    if wanted:
        # Only those that get factors in the end: a multiplication by one would cost its time.
        graph, inside, known = _scaled(fair, sites, entries, statistics, wanted)
        factors = smooth_factors(graph, find_pairs(graph, find_sites(graph).sites), inside, known)
        divided = {f.value for f in factors}
        scalings = tuple(name for name in wanted if scaled_name(name) in divided)
    if scalings:
        fair, entries, statistics = _scaled(fair, sites, entries, statistics, scalings)
        pairs = find_pairs(fair, find_sites(fair).sites)
    found = smooth_factors(fair, pairs, entries, statistics)
    found += equalize_factors(fair, pairs, entries)
    changed = {
        name: rescaled(statistics[name], numbers)
        for name, numbers in value_factors(pairs, found).items()
        if name in statistics
    }
    return Smoothing(scalings, found, {**statistics, **changed})


def _unreached(pairs: Sequence[Pair], sites: Sequence[Site], entries: Entries) -> tuple[str, ...]:
    """Activations whose sites all ask for a multiplication, and alike, where no pair reaches."""
    reached = {id_ for pair in pairs for id_ in pair.consumers}
    asked = {site.id: entry for site, entry in entries if entry.smooth_insert}
    found: dict[str, set[tuple[float | None, int]]] = {}
    for site in sites:
        entry = asked.get(site.id) if site.id not in reached else None
        key = (entry.smooth if entry else None, site.activation_axis)
        found.setdefault(site.activation, set()).add(key)
    return tuple(
        name for name, keys in found.items() if len(keys) == 1 and next(iter(keys))[0] is not None
    )


def _scaled(
    fair: PreparedModel,
    sites: Sequence[Site],
    entries: Entries,
    statistics: Statistics,
    values: Sequence[str],
) -> tuple[PreparedModel, Entries, Statistics]:
    """The graph with multiplications, its entries, and the statistics of the values behind them."""
    graph = with_scalings(fair, sites, values)
    scan = find_sites(graph)
    by_id = {s.id: s for s in (*scan.sites, *scan.attention)}
    inside = [(by_id[site.id], entry) for site, entry in entries]
    behind = {scaled_name(name): statistics[name] for name in values}
    return graph, inside, {**statistics, **behind}
