"""What an engine's own profiler said about one plan."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from bitworth.record.part import Part


class LayerFact(Part):
    """One layer of a plan and the sites that it computes."""

    name: str
    op: str
    kernel: str
    precision: str = Field(description="element type, in the engine's words")
    time_ns: float = Field(description="in one call: the median over the profiled ones")
    sites: tuple[str, ...]
    format: str = Field(default="", description="that it computed in; empty: not told")
    calls: float = Field(default=1.0, description="how often it ran in one call of the plan")
    inputs: tuple[int, ...] = Field(
        default=(), description="places of the layers whose results it reads, in this profile"
    )


class ProfileFacts(Part):
    """The profile of one plan."""

    plan_sha256: str | None = Field(description="of the plan; None: an older record")
    calls: int | None = Field(description="profiled calls; None: an older record")
    plain_ns: float | None = Field(
        description="median time of a call that nothing profiled, in the same process; None: an "
        "older record"
    )
    layers: tuple[LayerFact, ...]
    failed: str = Field(default="", description="why there is none; empty: there is")


def site_times(layers: Iterable[LayerFact]) -> dict[str, float]:
    """Time of each site in ns; a layer that computes several shares its time among them."""
    found: dict[str, float] = {}
    for layer in layers:
        for site in layer.sites:
            found[site] = found.get(site, 0.0) + layer.time_ns / len(layer.sites)
    return found
