from __future__ import annotations

import re

from bitworth.record.pictures import draw
from bitworth.record.render_html import render_html
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record
from bitworth.verdict import CycleRatio

TITLE = "Clocks that differ"


def with_cycles(record: Record) -> Record:
    """The record, its first compared variant at another clock."""
    cell = record.derived.cells[0]
    name = next(v.variant for v in cell.variants if v.comparison and v.comparison.time_ratio)
    cycles = CycleRatio(
        variant=name, baseline="baseline", clock="sm_mhz", cycle_ratio=0.8, cycle_ratio_low=0.75,
        cycle_ratio_high=0.85, clock_ratio=0.959, n=8,
    )  # fmt: skip
    cells = (cell.model_copy(update={"cycles": (cycles,)}), *record.derived.cells[1:])
    derived = record.derived.model_copy(update={"cells": cells})
    return record.model_copy(update={"derived": derived})


def test_cycles_stand_beside_time(record: Record) -> None:
    text = re.sub("<!--.*?-->", "", render_markdown(with_cycles(record), "picture.svg"))
    _, _, section = text.partition(TITLE)
    (row,) = [line for line in section.splitlines() if "sm_mhz" in line]
    assert "1.250× (1.176 to 1.333)" in row  # one over the ratio of cycles
    assert "0.959×" in row
    comparison = record.derived.cells[0].variants[1].comparison
    assert comparison is not None
    assert comparison.time_ratio is not None
    assert f"{1 / comparison.time_ratio:.3f}×" in row
    assert TITLE in render_html(with_cycles(record), draw(with_cycles(record)))


def test_a_record_without_them_says_nothing(record: Record) -> None:
    assert TITLE not in render_markdown(record, "picture.svg")
