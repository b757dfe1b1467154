"""Where the time of a plan goes, from its own profile: by class of work, by group, by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import Field

from bitworth.record.op_classes import CLASSES, op_class
from bitworth.record.part import Part
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.verdict import sig6

Key = TypeVar("Key")

#: Kernels that are listed one by one; the others are summed.
KERNELS = 12
UNMAPPED = "no site"
REST = "all others"


class Share(Part):
    """A part of a profile's layers, and its share of their time."""

    name: str
    layers: int
    share_of_profile: float


class KernelShare(Share):
    """A share by kernel, in the format that it ran in."""

    format: str


class TimeSplit(Part):
    """Where the time of one variant's plan goes.

    Shares are of the time of all layers together. ``gap_ratio`` is what a call takes beyond them,
    over the call: what no layer accounts for. Below 0 the profiler itself cost that much.
    """

    variant: str
    evidence: str = "measured"
    layers: int
    layers_ns: float
    plain_ns: float | None
    gap_ratio: float | None
    coverage_ratio: float = Field(description="share of the layers' time that is mapped to sites")
    by_class: tuple[Share, ...]
    by_group: tuple[Share, ...] = Field(description="groups may overlap; the last has no site")
    by_kernel: tuple[KernelShare, ...]


def time_split(
    variant: str, profile: ProfileFacts, groups: Mapping[str, Sequence[str]]
) -> TimeSplit | None:
    """The split of a plan's profile; None where there is none."""
    total = sum(layer.time_ns for layer in profile.layers)
    if total <= 0:
        return None
    mapped = sum(layer.time_ns for layer in profile.layers if layer.sites)
    plain = profile.plain_ns
    return TimeSplit(
        variant=variant,
        layers=len(profile.layers),
        layers_ns=sig6(total),
        plain_ns=plain,
        gap_ratio=None if plain is None else sig6((plain - total) / plain),
        coverage_ratio=sig6(mapped / total),
        by_class=_by_class(profile.layers, total),
        by_group=_by_group(profile.layers, groups, total),
        by_kernel=_by_kernel(profile.layers, total),
    )


def _by_class(layers: Sequence[LayerFact], total: float) -> tuple[Share, ...]:
    found = _summed(layers, lambda layer: op_class(layer.op, layer.sites))
    return tuple(
        Share(name=name, layers=found[name][0], share_of_profile=sig6(found[name][1] / total))
        for name in CLASSES
        if name in found
    )


def _by_group(
    layers: Sequence[LayerFact], groups: Mapping[str, Sequence[str]], total: float
) -> tuple[Share, ...]:
    shares = []
    for name, members in sorted(groups.items()):
        ids = set(members)
        # A layer of several sites shares its time among them.
        parts = [
            (layer, sum(site in ids for site in layer.sites) / len(layer.sites))
            for layer in layers
            if ids & set(layer.sites)
        ]
        time = sum(layer.time_ns * part for layer, part in parts)
        shares.append(Share(name=name, layers=len(parts), share_of_profile=sig6(time / total)))
    free = [layer for layer in layers if not layer.sites]
    time = sum(layer.time_ns for layer in free)
    return (*shares, Share(name=UNMAPPED, layers=len(free), share_of_profile=sig6(time / total)))


def _by_kernel(layers: Sequence[LayerFact], total: float) -> tuple[KernelShare, ...]:
    found = _summed(layers, lambda layer: (_kernel(layer), layer.format))
    ordered = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))
    shares = [
        KernelShare(name=name, format=form, layers=count, share_of_profile=sig6(time / total))
        for (name, form), (count, time) in ordered[:KERNELS]
    ]
    if rest := ordered[KERNELS:]:
        shares.append(
            KernelShare(
                name=REST,
                format="",
                layers=sum(count for _, (count, _) in rest),
                share_of_profile=sig6(sum(time for _, (_, time) in rest) / total),
            )
        )
    return tuple(shares)


def _kernel(layer: LayerFact) -> str:
    return layer.op if layer.kernel in ("", layer.op) else f"{layer.op} ({layer.kernel})"


def _summed(
    layers: Iterable[LayerFact], key: Callable[[LayerFact], Key]
) -> dict[Key, tuple[int, float]]:
    found: dict[Key, tuple[int, float]] = {}
    for layer in layers:
        count, time = found.get(key(layer), (0, 0.0))
        found[key(layer)] = (count + 1, time + layer.time_ns)
    return found
