"""What every cell of a study shares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitworth.calibration.statistics import RangeStatistics
from bitworth.measurement.quality import MetricSpec
from bitworth.record.store import sha256
from bitworth.study.cell_stage import Judge
from bitworth.study.data_stage import StudyData
from bitworth.study.progress import Reporter
from bitworth.study.sections import StudyConfig
from bitworth.study.subjects import StudiedSubject
from bitworth.study.workspace import Workspace
from bitworth.verdict import Policy, TimingRules

if TYPE_CHECKING:
    from bitworth.study.lowered import Lowering


@dataclass(frozen=True)
class StudyContext:
    """Everything that is known before the first cell.

    Attributes:
        config: the study.
        folder: of the study file, to which its paths are relative.
        workspace: finished stages.
        reporter: progress.
        subject: the prepared model and its sites.
        lowering: lowers its variants.
        data: both splits.
        statistics: ranges of the observed values; empty when nothing is calibrated.
        judge: reference, metrics and held-out data.
        rules: constants of the verdict.
        policy: what a variant must reach.
    """

    config: StudyConfig
    folder: Path
    workspace: Workspace
    reporter: Reporter
    subject: StudiedSubject
    lowering: Lowering
    data: StudyData
    statistics: Mapping[str, RangeStatistics]
    judge: Judge
    rules: TimingRules
    policy: Policy

    @property
    def metrics(self) -> Mapping[str, MetricSpec]:
        """The study's metrics."""
        return self.judge.metrics


def timing_rules(config: StudyConfig) -> TimingRules:
    """The verdict's constants under ``[timing]``."""
    timing = config.timing
    return TimingRules(
        delta=timing.delta,
        precision=timing.precision,
        min_sessions=timing.min_sessions,
        max_sessions=timing.max_sessions,
        until_settled=timing.until_settled,
    )


def policy_of(config: StudyConfig) -> Policy:
    """The policy under ``[policy]``."""
    policy = config.policy
    return Policy(
        min_speedup=policy.min_speedup,
        max_loss=tuple(policy.max_loss.items()),
        max_rel_l2=policy.max_rel_l2,
        max_error_over_floor=policy.max_error_over_floor,
    )


def slug(text: str) -> str:
    """``text`` as a file name: lower case, other characters as single dashes."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-") or "unnamed"


def file_key(name: str) -> str:
    """A file name for ``name`` that no other name shares."""
    return f"{slug(name)}-{sha256(name.encode())[:6]}"
