"""The report on a record as sections of sentences and tables, for every format of text alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitworth.record.cells import Cell, Table, at, line
from bitworth.record.schema import Record
from bitworth.record.tables import (
    bound_table,
    cell_title,
    decision_lines,
    uncovered_table,
    verdict_table,
)
from bitworth.record.tables_checks import check_table
from bitworth.record.tables_clocks import cycle_table
from bitworth.record.tables_facts import (
    data_table,
    engine_table,
    environment_table,
    not_run_table,
    output_table,
    policy_table,
    recipe_table,
    revisit_table,
    site_table,
    subject_table,
)
from bitworth.record.tables_free_wins import free_win_table
from bitworth.record.tables_latency import latency_table
from bitworth.record.tables_profile import (
    conversion_table,
    group_table,
    kernel_table,
    outlook_table,
    split_table,
    unfused_table,
)


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        title: its heading.
        lines: sentences above the tables, one a list item.
        tables: tables that have rows.
        folded: tables that only some readers want, shown folded where that is possible.
        code: a command, shown as it is to be typed.
        picture: whether the picture of where the time goes stands above the tables.
    """

    title: str
    lines: tuple[Cell, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    code: Cell | None = None
    picture: bool = False


def title(record: Record) -> Cell:
    """The study's question and its answer in one sentence."""
    parts = [
        line("Is a narrower number format worth it for "),
        at(record, "facts", "subject", "name"),
        line("? Answer: "),
        at(record, "derived", "decision", "kind"),
    ]
    if record.derived.decision.variant is not None:
        parts += [line(" "), at(record, "derived", "decision", "variant")]
    return line(*parts)


def answer(record: Record) -> Cell:
    """The study's decision with its numbers."""
    return at(record, "derived", "decision", "sentence")


def sections(record: Record) -> tuple[Section, ...]:
    """The report below its title, answer and picture."""
    several = len(record.derived.cells) > 1
    decisions = tuple(line(cell, ": ", text) for cell, text in decision_lines(record))
    return (
        Section("Verdicts", decisions if several else (), _by_cell(record, verdict_table)),
        *_where_any("Free wins", _by_cell(record, free_win_table)),
        *_where_any("Absolute times", _by_cell(record, latency_table)),
        *_where_any("Clocks that differ", _by_cell(record, cycle_table)),
        Section("What a verdict means", _meanings(record)),
        Section(
            "How it was measured",
            (*_method(), *_fairness(record)),
            _filled(subject_table(record), data_table(record), policy_table(record)),
            _by_cell(record, output_table),
        ),
        Section("Checks", (), _by_cell(record, check_table, keep_notes=True)),
        Section("Recipes", (), _by_cell(record, recipe_table), _by_cell(record, site_table)),
        *_profile_sections(record),
        Section(
            "What could be gained at most",
            (),
            (
                *_by_cell(record, outlook_table),
                *_by_cell(record, bound_table),
                *_by_cell(record, uncovered_table),
            ),
        ),
        Section("Environment", (), (environment_table(record),), _by_cell(record, engine_table)),
        Section("Not run", (), _filled(not_run_table(record))),
        Section("Look again when", (), _filled(revisit_table(record))),
        Section("How to rerun", code=at(record, "facts", "command")),
    )


def pictured(record: Record) -> bool:
    """Whether there is a picture of where the time goes: two plans at least that compare."""
    return any(len(cell.splits) > 1 for cell in record.derived.cells)


def _profile_sections(record: Record) -> tuple[Section, ...]:
    """Where the time goes, of records that have profiles."""
    tables = _by_cell(record, split_table)
    if not tables:
        return ()
    return (
        Section(
            "Where the time goes, and why",
            _why(record),
            (*tables, *_by_cell(record, conversion_table)),
            (
                *_by_cell(record, group_table),
                *_by_cell(record, kernel_table),
                *_by_cell(record, unfused_table),
            ),
            picture=pictured(record),
        ),
    )


def _why(record: Record) -> tuple[Cell, ...]:
    """The sentences about each variant, one after another."""
    several = len(record.derived.cells) > 1
    lines = []
    for i, cell in enumerate(record.derived.cells):
        for j, found in enumerate(cell.reasons):
            path = ("derived", "cells", i, "reasons", j)
            told = [
                part
                for k in range(len(found.sentences))
                for part in (" ", at(record, *path, "sentences", k))
            ]
            where = (cell_title(record, i), ", ") if several else ()
            lines.append(line(*where, at(record, *path, "variant"), ":", *told))
    return tuple(lines)


def _where_any(title: str, tables: tuple[Table, ...]) -> tuple[Section, ...]:
    """A section of what not every record has."""
    return (Section(title, (), tables),) if tables else ()


def _by_cell(
    record: Record, make: Callable[[Record, int], Table], keep_notes: bool = False
) -> tuple[Table, ...]:
    tables = [make(record, i) for i in range(len(record.derived.cells))]
    return tuple(t for t in tables if t.rows or (keep_notes and t.notes))


def _filled(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def _meanings(record: Record) -> tuple[Cell, ...]:
    timing = ("derived", "timing")
    eps, delta, power = (at(record, *timing, name) for name in ("eps", "delta", "power"))
    return (
        line(
            "Speed-up is the baseline's time over the variant's, so above one is faster. Its "
            "interval spans the timing sessions; the half-width is what they reached."
        ),
        line("faster, slower: the whole interval lies beyond ±", eps, " of the baseline's time."),
        line("equivalent: the whole interval lies within ±", delta, "."),
        line(
            "not distinguishable: neither; the note below the table says which change would have "
            "been found, and how many sessions are still needed."
        ),
        line(
            "detects from: a change of this size or more would have got a verdict with a "
            "probability of ",
            power,
            ". more sessions to a verdict: if estimate and spread stay as they are. What the "
            "policy's limit on the speed-up takes is another number: the decision gives it.",
        ),
        line("void: a check failed, so there is no number; the note says which."),
        line(
            "A loss is counted from the baseline on the same held-out samples; above zero is "
            "worse. Relative L2 is the error against the fp32 reference."
        ),
        line(
            "measured: on the plan that was timed. emulated: computed without the engine, so for "
            "quality only. derived: follows from measured values."
        ),
        line(
            "ship: every criterion of the policy passes by the worse end of its interval. do not "
            "ship: every variant fails one. undecided: an interval crosses a limit, or evidence "
            "is missing."
        ),
    )


def _fairness(record: Record) -> tuple[Cell, ...]:
    """What was done to the baseline of each cell to make it a fair one."""
    return tuple(
        line(cell_title(record, i), ": ", at(record, "facts", "cells", i, "notes", k))
        for i, cell in enumerate(record.facts.cells)
        for k in range(len(cell.notes))
    )


def _method() -> tuple[Cell, ...]:
    return (
        line(
            "Every plan was built once and saved; each session loads those bytes in fresh worker "
            "processes, in random order, and interleaves their blocks in balanced rows."
        ),
        line(
            "The baseline runs twice under two names: that the two agree is a check. Quality was "
            "measured on the plan that was timed."
        ),
    )
