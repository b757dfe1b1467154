"""Which records should be looked at again on this machine, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitworth.errors import UserError
from bitworth.record.conditions import Checked, check_condition, condition_name
from bitworth.record.derive import RULES_VERSION
from bitworth.record.schema import Record
from bitworth.record.store import is_record, read_record
from bitworth.study.doctor import EngineReport
from bitworth.study.outputs import PARTIAL


@dataclass(frozen=True)
class Due:
    """A record with its conditions, as they are here.

    Attributes:
        path: its file.
        subject: what was studied.
        decision: its answer.
        checked: its conditions.
        stale: why it is due whatever its conditions say; empty: it is not.
    """

    path: Path
    subject: str
    decision: str
    checked: tuple[Checked, ...]
    stale: str = ""

    @property
    def is_due(self) -> bool:
        """Whether anything asks for another look."""
        return bool(self.stale) or any(c.met == "met" for c in self.checked)


def known_here(reports: Sequence[EngineReport]) -> dict[str, str]:
    """What conditions can ask of this machine, by name."""
    known: dict[str, str] = {}
    for report in reports:
        if report.problem:
            continue
        known[f"{report.engine}.version"] = report.version
        known[f"{report.engine}.device"] = report.device
        for name, state, _ in report.formats:
            known[f"{report.engine}.format.{condition_name(name)}"] = state
        if "isa" in report.details:
            known["cpu.isa"] = report.details["isa"]
    return known


def due_records(folder: Path, known: Mapping[str, str]) -> list[Due]:
    """Every record under ``folder`` with its conditions; of a subject on a machine the newest.

    Raises:
        UserError: the folder is not there, or a record in it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one that holds records")
    newest: dict[Path, tuple[Path, Record]] = {}
    for path in sorted(folder.rglob("*.json")):
        if path.name.endswith(PARTIAL) or not is_record(path):
            continue
        record = read_record(path)
        held = newest.get(path.parent)
        if held is None or held[1].facts.created < record.facts.created:
            newest[path.parent] = (path, record)
    return [_due(path, record, known) for path, record in newest.values()]


def _due(path: Path, record: Record, known: Mapping[str, str]) -> Due:
    decision = record.derived.decision
    stale = ""
    if record.derived.rules_version < RULES_VERSION:
        stale = "judged by older rules: run 'bitworth rejudge --write'"
    return Due(
        path=path,
        subject=record.facts.subject.name,
        decision=f"{decision.kind} {decision.variant}" if decision.variant else decision.kind,
        checked=tuple(check_condition(c, known) for c in record.facts.revisit),
        stale=stale,
    )
