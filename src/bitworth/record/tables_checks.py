"""The table of checks: what was looked at beside the times, and how the sessions went."""

from __future__ import annotations

from collections.abc import Sequence

from bitworth.record.cells import NONE, Cell, Path, Table, at, columns, joined, line
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title
from bitworth.verdict import Comparison


def check_table(record: Record, i: int) -> Table:
    """The checks of cell ``i`` with their outcome, and how its sessions went."""
    derived = record.derived.cells[i]
    path = ("derived", "cells", i)
    rows: list[tuple[Cell, ...]] = []
    shared: list[tuple[str, str, str]] = []
    for n, verdict in enumerate(derived.verdicts):
        for k, gate in enumerate(verdict.gates):
            shared.append((gate.name, gate.state, gate.detail))
            found = _gate(record, (*path, "verdicts", n, "gates", k))
            rows.append((_timed_in(record, i, n), *found))
    for j, summary in enumerate(derived.variants):
        if summary.comparison is not None:
            here = (*path, "variants", j)
            rows += _variant_checks(record, here, summary.comparison, shared)
    notes = [_job_note(record, i, k) for k in range(len(record.facts.cells[i].jobs))]
    if not notes:
        notes = [line("Nothing was timed in this cell.")]
    titles = ("variant", "check", "outcome", "detail")
    return Table(cell_title(record, i), columns(*titles), tuple(rows), tuple(notes))


def _gate(record: Record, path: Path) -> tuple[Cell, Cell, Cell]:
    state = at(record, *path, "state")
    return at(record, *path, "name"), state, at(record, *path, "detail")


def _variant_checks(
    record: Record,
    path: Path,
    comparison: Comparison,
    shared: Sequence[tuple[str, str, str]],
) -> list[tuple[Cell, ...]]:
    """The variant's own checks: one row for each that did not pass, one for all that did."""
    name = at(record, *path, "variant")
    rows: list[tuple[Cell, ...]] = []
    passed: list[Cell] = []
    for k, gate in enumerate(comparison.gates):
        if (gate.name, gate.state, gate.detail) in shared:
            continue
        here = (*path, "comparison", "gates", k)
        if gate.state == "passed":
            passed.append(at(record, *here, "name"))
        else:
            rows.append((name, *_gate(record, here)))
    if passed:
        rows.append((name, joined(", ", passed), line("passed"), NONE))
    return rows


def _timed_in(record: Record, i: int, job: int) -> Cell:
    """Whom a job's own checks concern: every variant, or those that it timed."""
    if len(record.facts.cells[i].jobs) == 1:
        return line("every variant")
    path = ("facts", "cells", i, "jobs", job, "labels")
    count = len(record.facts.cells[i].jobs[job].labels)
    return joined(", ", [at(record, *path, n) for n in range(2, count)])


def _job_note(record: Record, i: int, k: int) -> Cell:
    path = ("facts", "cells", i, "jobs", k)
    job = record.facts.cells[i].jobs[k]
    labels = joined(", ", [at(record, *path, "labels", n) for n in range(len(job.labels))])
    return line(
        "Timed together: ", labels, ". ",
        at(record, *path, "sessions"), " sessions of at least ",
        at(record, *path, "minimum_rounds"), " rounds (seed ", at(record, *path, "seed"),
        "); a block is ", at(record, *path, "lead_in"), " discarded and ",
        at(record, *path, "iterations"), *_sample_note(record, i, k),
        at(record, *path, "call_ns"), ". Stopped by: ", at(record, *path, "stopped"), ".",
        *_looks_note(record, i),
    )  # fmt: skip


def _sample_note(record: Record, i: int, k: int) -> list[str | Cell]:
    """What one time of a job is."""
    if record.facts.cells[i].jobs[k].inner == 1:
        return [" timed calls; one call of the baseline took about "]
    inner = at(record, "facts", "cells", i, "jobs", k, "inner")
    if record.facts.cells[i].streams > 1:
        return [" times, each of ", inner, " calls in flight; the baseline's is about "]
    return [" times, each of ", inner, " calls; one call of the baseline took about "]


def _looks_note(record: Record, i: int) -> list[str | Cell]:
    """How a study until settled allows for having looked at its verdicts."""
    timing = ("derived", "timing")
    rate = next(
        (
            at(record, "derived", "cells", i, "variants", j, "comparison", "alpha")
            for j, summary in enumerate(record.derived.cells[i].variants)
            if summary.comparison is not None
        ),
        None,
    )
    if not record.derived.timing.until_settled or rate is None:
        return []
    return [
        " Verdicts were looked at only after numbers of sessions fixed beforehand, from ",
        at(record, *timing, "min_sessions"), " to ", at(record, *timing, "max_sessions"),
        "; every interval has an error rate of ", rate, " for all of these looks together to be "
        "wrong no more often than the one look of other studies.",
    ]  # fmt: skip
