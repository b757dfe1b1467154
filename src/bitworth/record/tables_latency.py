"""The table of absolute times: what one run saw, beside the ratios that are the result."""

from __future__ import annotations

from bitworth.record.cells import NONE, Cell, Path, Table, at, columns, line
from bitworth.record.latency import TAIL_QUANTILE
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title
from bitworth.verdict import QuantileInterval


def latency_table(record: Record, i: int) -> Table:
    """Median and tail of a call of every timed variant of cell ``i``, or its throughput."""
    facts, derived = record.facts.cells[i], record.derived.cells[i]
    path = ("derived", "cells", i, "latency")
    if facts.mode == "throughput":
        titles = ["variant", ">items a second (interval)", ">sessions"]
        rows = [_throughput(record, (*path, j)) for j in range(len(derived.latency))]
    else:
        tail = f">p{100 * (facts.quantile or TAIL_QUANTILE):.4g} (interval)"
        titles = ["variant", ">p50 (interval)", tail, ">sessions", ">times a session, at least"]
        rows = [
            (
                at(record, *path, j, "variant"),
                _interval(record, (*path, j, "p50"), found.p50),
                _interval(record, (*path, j, "tail"), found.tail),
                at(record, *path, j, "p50", "n"),
                at(record, *path, j, "p50", "samples"),
            )
            for j, found in enumerate(derived.latency)
        ]
    notes = _notes(record, i) if rows else ()
    return Table(cell_title(record, i), columns(*titles), tuple(rows), notes)


def _throughput(record: Record, path: Path) -> tuple[Cell, ...]:
    here = (*path, "throughput")
    low, high = (at(record, *here, f"items_per_s_{end}") for end in ("low", "high"))
    rate = line(at(record, *here, "items_per_s"), " (", low, " to ", high, ")")
    return at(record, *path, "variant"), rate, at(record, *here, "n")


def _interval(record: Record, path: Path, found: QuantileInterval | None) -> Cell:
    if found is None:
        return NONE
    low, high = at(record, *path, "low_ns"), at(record, *path, "high_ns")
    return line(at(record, *path, "value_ns"), " (", low, " to ", high, ")")


def _notes(record: Record, i: int) -> tuple[Cell, ...]:
    facts, found = record.facts.cells[i], record.derived.cells[i].latency
    notes = [
        line(
            "Absolute values of this run alone, with intervals over its sessions at a level of ",
            at(record, "derived", "quality_level"),
            ". Another run on another day sees others: what can be compared is the speed-up above.",
        )
    ]
    if facts.batch is not None and facts.batch > 1:
        batch = at(record, "facts", "cells", i, "batch")
        if facts.mode == "throughput":
            notes.append(line("An item is one sample; a call takes ", batch, " of them."))
        else:
            text = " samples; one sample's share of its time is as many times smaller."
            notes.append(line("A call takes ", batch, text))
    if facts.mode != "throughput" and any(job.inner > 1 for job in facts.jobs):
        inner = at(record, "facts", "cells", i, "jobs", 0, "inner")
        notes.append(line("Calls are so short that one time is the mean of ", inner, " in a row."))
    if facts.mode != "throughput" and any(row.tail is None for row in found):
        notes.append(
            line(
                "No tail is given where a session has too few calls for one to lie beyond it, or "
                "where calls are so short that several are timed at once; the tail mode takes "
                "enough of them, one by one."
            )
        )
    return tuple(notes)
