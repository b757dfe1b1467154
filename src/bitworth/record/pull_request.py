"""The parts of a pull request's text: what a draft has, and what a finished one must have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bitworth.record.cells import Table, at, line
from bitworth.record.fences import closes, opens
from bitworth.record.names import AS_GIVEN, BASELINE
from bitworth.record.render_markdown import (
    markdown_cell,
    markdown_code,
    markdown_items,
    markdown_table,
    narrow,
)
from bitworth.record.schema import Record
from bitworth.record.sections import answer, title
from bitworth.record.tables import decision_lines, verdict_table
from bitworth.record.tables_facts import (
    engine_table,
    environment_table,
    not_run_table,
    policy_table,
    recipe_table,
    revisit_table,
    subject_table,
)

SELF_REVIEW = "Contributor Self-Review"


@dataclass(frozen=True)
class Part:
    """A section: its heading with the marks of its level; ``text``: whether it must have its own.

    One that only holds others need not.
    """

    heading: str
    level: int
    text: bool = True


PARTS = (
    Part("Background", 2),
    Part("Exit Criteria", 2),
    Part("Implementation", 2),
    Part("Change categories", 3),
    Part("Validation", 2, text=False),
    Part("Commands and Results", 3),
    Part("Hardware, Environment, and Revisions", 3),
    Part("Not Run", 3),
    Part("Remaining Gaps", 3),
    Part(SELF_REVIEW, 2),
    Part("Notes For Future Readers", 2),
    Part("Risk level", 3),
)
_CATEGORIES = (
    "a study's record and its text", "a recipe or a plan that ships", "code", "documentation",
)  # fmt: skip
_REVIEW = (
    "I read every number above where its record has it.",
    "`bitworth lint` has no findings on what this changes.",
    "What was not run is listed above.",
)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_UNTICKED = re.compile(r"^\s*[-*+] \[ \]", re.MULTILINE)
_TICKED = re.compile(r"^\s*[-*+] \[[xX]\]", re.MULTILINE)


def draft(record: Record) -> str:
    """The text of a pull request that brings in a record; values have their addresses."""
    several = range(len(record.facts.cells))
    ships = record.derived.decision.kind == "ship"
    texts = {
        "Background": f"{markdown_cell(title(record))}\n\n{_table(subject_table(record))}",
        "Exit Criteria": _table(policy_table(record)),
        "Implementation": "\n\n".join(_table(recipe_table(record, i)) for i in several),
        "Change categories": "\n".join(
            f"- [{'x' if k == 0 or (k == 1 and ships) else ' '}] {name}"
            for k, name in enumerate(_CATEGORIES)
        ),
        "Validation": "",
        "Commands and Results": "\n\n".join(
            [
                markdown_code(at(record, "facts", "command")),
                markdown_cell(answer(record)),
                *(markdown_table(narrow(verdict_table(record, i))) for i in several),
            ]
        ),
        "Hardware, Environment, and Revisions": "\n\n".join(
            [
                _table(environment_table(record)),
                *(_table(engine_table(record, i)) for i in several),
                f"Record {markdown_cell(at(record, 'id'))}, facts "
                f"{markdown_cell(at(record, 'facts_sha256'))}.",
            ]
        ),
        "Not Run": _table(not_run_table(record)),
        "Remaining Gaps": _gaps(record),
        SELF_REVIEW: "\n".join(f"- [ ] {line_}" for line_ in _REVIEW),
        "Notes For Future Readers": f"Look again when:\n\n{_table(revisit_table(record))}",
        "Risk level": _risk(record),
    }
    return (
        "\n\n".join(
            f"{'#' * part.level} {part.heading}" + (f"\n\n{texts[part.heading]}")
            if texts[part.heading]
            else f"{'#' * part.level} {part.heading}"
            for part in PARTS
        )
        + "\n"
    )


def missing(body: str, is_draft: bool) -> list[str]:
    """What a pull request's text lacks, a line each; comments do not count.

    Args:
        body: the text.
        is_draft: a draft needs no self-review.
    """
    found = _sections(body)
    told = []
    for part in PARTS:
        if part.heading == SELF_REVIEW and is_draft:
            continue
        text = found.get(part.heading.lower())
        if text is None:
            told.append(f"section '{part.heading}' is missing")
        elif part.text and not text.strip():
            told.append(f"section '{part.heading}' is empty")
        elif part.heading == SELF_REVIEW and _UNTICKED.search(text):
            count = len(_UNTICKED.findall(text))
            told.append(f"section '{part.heading}' has {count} lines that are not ticked")
        elif part.heading in (SELF_REVIEW, "Change categories") and not _TICKED.search(text):
            told.append(f"section '{part.heading}' has no ticked line")
    return told


def _sections(body: str) -> dict[str, str]:
    """The own text of each section by its heading, without comments and code's headings."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    fence = ""
    for row in _COMMENT.sub("", body).replace("\r\n", "\n").split("\n"):
        if fence:
            fence = "" if closes(row, fence) else fence
            current.append(row)
            continue
        fence = opens(row)
        heading = None if fence else _HEADING.match(row)
        if heading:
            # Of two with one heading both count.
            current = found.setdefault(heading[2].strip().lower(), [])
        else:
            current.append(row)
    return {name: "\n".join(rows) for name, rows in found.items()}


def _table(table: Table) -> str:
    return markdown_table(table) if table.rows or table.notes else "None."


def _gaps(record: Record) -> str:
    """What would settle each cell's decision, and what no recipe covers."""
    lines = [
        line(name, ": ", at(record, "derived", "cells", i, "decision", "settle", k))
        for i, (name, _) in enumerate(decision_lines(record))
        for k in range(len(record.derived.cells[i].decision.settle))
    ]
    lines += [
        line(
            at(record, "facts", "subject", "uncovered", k, 0), " is in no recipe: ",
            at(record, "facts", "subject", "uncovered", k, 1),
        )
        for k in range(len(record.facts.subject.uncovered))
    ]  # fmt: skip
    return markdown_items(tuple(lines)) if lines else "None: every cell is decided."


def _risk(record: Record) -> str:
    if record.derived.decision.kind == "ship":
        name = markdown_cell(at(record, "derived", "decision", "variant"))
        return f"Medium: {name} would replace what runs now; the baseline's plan is the way back."
    names = {v.name for c in record.facts.cells for v in c.variants} - {BASELINE, AS_GIVEN}
    tried = "No variant was tried" if not names else "No variant ships"
    return f"Low: {tried}; this adds a record and its text."
