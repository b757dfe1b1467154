"""What could pay, before any variant is built: one profile of the baseline, and measured limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bitworth.errors import UserError
from bitworth.recipe import Site
from bitworth.record.device_profile import DeviceProfile
from bitworth.record.profile_facts import ProfileFacts
from bitworth.record.variant_bounds import Outlook, WorkFact, outlook
from bitworth.study.cell_run import CellRun
from bitworth.study.estimated_profile import estimated_profile
from bitworth.study.site_shapes import Shapes, shapes_at, work_at
from bitworth.study.subject_stage import Subject


@dataclass(frozen=True)
class Prospect:
    """What one group in one format could give.

    Attributes:
        group: its name.
        format: as recipes call it.
        sites: how many it has.
        outlook: share, ceiling and expectation.
        within_reach: whether the ceiling reaches the policy's speed-up.
    """

    group: str
    format: str
    sites: int
    outlook: Outlook
    within_reach: bool


@dataclass(frozen=True)
class Screen:
    """All groups of one cell in every format that its device has.

    Attributes:
        engine, version, device: what was profiled.
        profile: of the baseline; estimated where the rates are another device's.
        limits: the device's measured rates.
        evidence: of the ceilings: ``derived`` from this device's own profile, ``estimated`` where
            the rates are another device's.
        min_speedup: what the policy asks for.
        prospects: the best expected first.
    """

    engine: str
    version: str
    device: str
    profile: ProfileFacts
    limits: DeviceProfile
    evidence: Literal["derived", "estimated"]
    min_speedup: float
    prospects: tuple[Prospect, ...]


def onnx_subject(cell: CellRun) -> Subject:
    """The cell's subject.

    Raises:
        UserError: it is no ONNX model.
    """
    subject = cell.study.subject
    if not isinstance(subject, Subject):
        raise UserError(
            "screen: products of a PyTorch module are not measured on their own; export it with "
            "bitworth onnx, or study it: its profile bounds every variant"
        )
    return subject


def _own_profile(cell: CellRun) -> ProfileFacts:
    profile = cell.variants[0].profile if cell.variants else None
    if profile is None or not profile.layers:
        why = profile.failed if profile is not None else "the baseline does not run"
        raise UserError(f"engine {cell.config.engine}: no profile to screen ({why})")
    return profile


def _elsewhere(
    cell: CellRun,
    work: Mapping[str, WorkFact],
    shapes: Shapes,
    limits: DeviceProfile,
    base: str,
) -> ProfileFacts:
    subject = onnx_subject(cell)
    return estimated_profile(subject.fair.model, subject.every_site, work, shapes, limits, base)


def screen_cell(
    cell: CellRun, groups: Mapping[str, Sequence[Site]], limits: DeviceProfile
) -> Screen:
    """What each group could give in each format.

    Args:
        cell: prepared: its baseline is built and profiled.
        groups: sites by name of the group.
        limits: rates of this device, or of another one.

    Raises:
        UserError: the engine gave no profile; the limits name no product.
    """
    assert cell.engine is not None
    if not limits.products:
        raise UserError("the device profile holds no product: nothing limits any site")
    subject = onnx_subject(cell)
    shapes = shapes_at(subject.fair.model, cell.inputs)
    work = work_at(subject.every_site, shapes)
    here = (limits.engine, limits.device) == (cell.engine.engine, cell.engine.info["device"])
    base = limits.products[0].format
    profile = _own_profile(cell) if here else _elsewhere(cell, work, shapes, limits, base)
    least = cell.study.policy.min_speedup
    found = []
    for format_ in dict.fromkeys(p.format for p in limits.products):
        if format_ == base:
            continue
        for name, members in groups.items():
            view = outlook(
                profile.layers, profile.plain_ns, {s.id: format_ for s in members}, work, limits,
                base,
            )  # fmt: skip
            assert view is not None
            found.append(Prospect(name, format_, len(members), view, view.ceiling >= least))
    found.sort(key=lambda p: (-(p.outlook.expected or p.outlook.ceiling), p.sites))
    return Screen(
        engine=cell.engine.engine,
        version=cell.engine.info["version"],
        device=cell.engine.info["device"],
        profile=profile,
        limits=limits,
        evidence="derived" if here else "estimated",
        min_speedup=least,
        prospects=tuple(found),
    )
