"""Variants that ran at another clock than the baseline: the ratio of time, and that of cycles."""

from __future__ import annotations

from bitworth.record.cells import NONE, Cell, Table, at, columns, line
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title, speedup
from bitworth.verdict import CycleRatio


def cycle_table(record: Record, i: int) -> Table:
    """The variants of cell ``i`` whose clock differed; without a row where none did."""
    rows = tuple(
        _row(record, i, k, found) for k, found in enumerate(record.derived.cells[i].cycles)
    )
    notes: tuple[Cell, ...] = ()
    if rows:
        notes = (
            line(
                "The speed-up in time is what a user of this device gets. That in cycles is what "
                "it would be at one clock, for work that scales with it: where a power cap lowers "
                "the clock of the plan that draws more power, it says how much the cap takes."
            ),
        )
    titles = (
        "variant", "clock", ">against the baseline's", ">speed-up in time (interval)",
        ">speed-up in cycles (interval)", ">sessions",
    )  # fmt: skip
    return Table(cell_title(record, i), columns(*titles), rows, notes)


def _row(record: Record, i: int, k: int, found: CycleRatio) -> tuple[Cell, ...]:
    path = ("derived", "cells", i, "cycles", k)
    value, low, high = (
        at(record, *path, name) for name in ("cycle_ratio", "cycle_ratio_high", "cycle_ratio_low")
    )
    time = NONE
    for j, summary in enumerate(record.derived.cells[i].variants):
        known = summary.comparison is not None and summary.comparison.verdict != "void"
        if summary.variant == found.variant and known:
            time = speedup(record, ("derived", "cells", i, "variants", j, "comparison"))
    return (
        at(record, *path, "variant"),
        at(record, *path, "clock"),
        at(record, *path, "clock_ratio"),
        time,
        line(value, "× (", low, " to ", high, ")"),
        at(record, *path, "n"),
    )
