"""Findings that a text says are meant so, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitworth.lint.finding import RULES, Finding

#: On the line of the finding or on the one above it.
_SILENCE = re.compile(r"<!-- bitworth:allow\b(.*?)-->")
_ASKED = re.compile(r"^\s*(BW\d{3})\s*:\s*(\S.*?)\s*$")


@dataclass(frozen=True)
class Silence:
    """A rule that is silenced at a line, and at the one below it."""

    line: int
    rule: str


def silences(path: Path, text: str) -> tuple[list[Silence], list[Finding]]:
    """What a text silences, and silences without a known rule or a reason."""
    found: list[Silence] = []
    faults: list[Finding] = []
    for number, line in enumerate(text.split("\n"), start=1):
        for asked in _SILENCE.finditer(line):
            told = _ASKED.match(asked[1])
            if told is None or told[1] not in RULES:
                text_ = "write <!-- bitworth:allow BW103: the reason -->"
                faults.append(Finding(str(path), number, "BW902", text_))
            else:
                found.append(Silence(number, told[1]))
    return found, faults


def without_silenced(
    path: Path, findings: Sequence[Finding], silenced: Sequence[Silence]
) -> list[Finding]:
    """The findings that are not silenced, and silences that silence nothing."""
    used: set[Silence] = set()
    left: list[Finding] = []
    for finding in findings:
        same = [s for s in silenced if s.rule == finding.rule]
        # The line's own first: the one above may have a finding of its own.
        match = next((s for s in same if s.line == finding.line), None) or next(
            (s for s in same if s.line + 1 == finding.line), None
        )
        if match is None:
            left.append(finding)
        else:
            used.add(match)
    unused = [s for s in silenced if s not in used]
    told = "silences {} where it is not broken; take it out"
    left += [Finding(str(path), s.line, "BW901", told.format(s.rule)) for s in unused]
    return left
