"""Rules over a study that others published: its claims follow from its own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bitworth.errors import UserError
from bitworth.lint.finding import Finding
from bitworth.record.cited_claims import claim_faults
from bitworth.record.cited_store import read_cited

#: Rule by what a claim breaks.
_RULES: Mapping[str, str] = {
    "bound": "BW201", "share": "BW202", "places": "BW203", "unit": "BW203", "graph": "BW204",
    "range": "BW205", "unnamed": "BW205", "arithmetic": "BW206", "unknown": "BW207",
}  # fmt: skip


def lint_cited(path: Path) -> list[Finding]:
    """Everything that is wrong with the cited study at ``path``."""
    try:
        study = read_cited(path)
    except UserError as error:
        return [Finding(str(path), 1, "BW001", str(error))]
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [
        Finding(
            str(path), _line(lines, fault.where), _RULES[fault.rule],
            f"{fault.where}: {fault.message}",
        )
        for fault in claim_faults(study)
    ]  # fmt: skip
    if path.stem != study.id:
        text = f"its id is {study.id}; name the file {study.id}.json"
        found.append(Finding(str(path), 1, "BW008", text))
    return found


def _line(lines: list[str], where: str) -> int:
    """The line that names a claim, or the row of a number."""
    names = where.split("/")
    name = names[1] if len(names) == 3 else where
    wanted = f'"name": "{name}"'
    start = 0
    if len(names) == 3:
        table = f'"name": "{names[0]}"'
        start = next((n for n, line in enumerate(lines) if table in line), 0)
    return next((n for n in range(start, len(lines)) if wanted in lines[n]), 0) + 1
