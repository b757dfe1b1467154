"""The table of what was tried to make the baseline fair."""

from __future__ import annotations

from bitworth.record.cells import NONE, Table, at, columns, line
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title, speedup


def free_win_table(record: Record, i: int) -> Table:
    """Every change to the baseline of cell ``i``: what it gave, and what became of it."""
    facts = ("facts", "cells", i, "free_win_search", "tries")
    path = ("derived", "cells", i, "free_wins")
    rows = []
    for k, found in enumerate(record.derived.cells[i].free_wins):
        comparison = found.comparison
        known = comparison is not None and comparison.verdict != "void"
        tried = record.facts.cells[i].free_win_search
        change = tried.tries[k].result_change if tried is not None else None
        rows.append(
            (
                at(record, *path, k, "name"),
                NONE if comparison is None else at(record, *path, k, "comparison", "verdict"),
                speedup(record, (*path, k, "comparison")) if known else NONE,
                NONE if found.call_time_ratio is None else at(record, *path, k, "call_time_ratio"),
                NONE if change is None else at(record, *facts, k, "result_change"),
                at(record, *path, k, "outcome"),
                at(record, *path, k, "reason"),
            )
        )
    titles = (
        "change", "verdict", ">speed-up of a sample (interval)", ">time of a call",
        ">change of the result", "outcome", "why",
    )  # fmt: skip
    notes = (
        line(
            "Each alone, against the baseline under the options that were given, in sessions of "
            "its own before any variant. What joined is timed again beside the variants: the row "
            "of the model as given."
        ),
    )
    title = line("Free wins: ", cell_title(record, i))
    return Table(title, columns(*titles), tuple(rows), notes if rows else ())
