"""The bound and the expectation of each variant beside what was measured of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from bitworth.record.device_profile import DeviceProfile
from bitworth.record.part import Part
from bitworth.record.profile_facts import ProfileFacts
from bitworth.record.variant_bounds import WorkFact, outlook
from bitworth.verdict import Comparison, sig6


class VariantOutlook(Part):
    """What a variant could give, and what it gave."""

    variant: str
    share_of_profile: float = Field(description="of the baseline's layer time, its sites'")
    ceiling_speedup: float = Field(description="at the least times that the device allows")
    ceiling_evidence: str = "derived"
    expected_speedup: float | None = Field(
        description="by products of the sites' own shapes, alone; None: none was measured"
    )
    expected_evidence: str = "estimated"
    reached_ratio: float | None = Field(
        description="of the time that could be saved at most, what was; None: not timed"
    )


def variant_outlook(
    variant: str,
    formats: Mapping[str, str],
    baseline: ProfileFacts,
    work: Mapping[str, WorkFact],
    device: DeviceProfile,
    comparison: Comparison | None,
    weight_only: Collection[str] = (),
) -> VariantOutlook | None:
    """The outlook of one variant; None where there is no profile or no quantized site.

    Args:
        variant: its name.
        formats: by id of each quantized site.
        baseline: the baseline's profile.
        work: by id of the site.
        device: measured rates of this device.
        comparison: of its time with the baseline's.
        weight_only: ids of the sites whose activations are left alone.
    """
    if not formats:
        return None
    found = outlook(
        baseline.layers, baseline.plain_ns, formats, work, device, weight_only=weight_only
    )
    if found is None:
        return None
    reached = None
    if comparison is not None and comparison.verdict != "void" and comparison.time_ratio:
        saved, most = 1 - comparison.time_ratio, 1 - 1 / found.ceiling
        reached = sig6(saved / most) if most > 0 else None
    return VariantOutlook(
        variant=variant,
        share_of_profile=sig6(found.share),
        ceiling_speedup=sig6(found.ceiling),
        expected_speedup=None if found.expected is None else sig6(found.expected),
        reached_ratio=reached,
    )


def beyond(entry: VariantOutlook, comparison: Comparison) -> bool:
    """Whether a measured speed-up lies beyond its ceiling with its whole interval."""
    high = comparison.time_ratio_high
    return high is not None and high > 0 and 1 / high > entry.ceiling_speedup


def measured_formats(
    sites: Sequence[tuple[str, str]], device: DeviceProfile, weight_only: Collection[str] = ()
) -> dict[str, str]:
    """Format by site, for a variant whose formats the device was measured in; else nothing.

    Args:
        sites: id and format of each quantized site.
        device: the device.
        weight_only: sites that compute in no format of theirs, which needs no measurement.
    """
    known = {p.format for p in device.products}
    return dict(sites) if all(f in known or i in weight_only for i, f in sites) else {}
