"""The picture of where the time goes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from bitworth.record.derive import derive
from bitworth.record.op_classes import CLASSES
from bitworth.record.plot_split import time_ratios, time_split_chart, time_split_svg
from bitworth.record.schema import Record
from bitworth.record.sections import pictured


def bars(record: Record, panel: int) -> dict[str, list[tuple[float, float, str]]]:
    """By plan the parts of its bar."""
    chart = time_split_chart(record).to_dict(validate=False)
    data = chart["vconcat"][panel]["layer"][0]["data"]
    rows = data["values"] if "values" in data else chart["datasets"][data["name"]]
    found: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows:
        found.setdefault(row["plan"], []).append((row["start"], row["end"], row["work"]))
    return found


def test_a_bar_is_as_long_as_the_measured_time(record: Record) -> None:
    for panel, cell in enumerate(record.derived.cells):
        ratios = time_ratios(cell)
        found = bars(record, panel)
        assert set(found) == set(ratios)
        for plan, parts in found.items():
            assert parts[0][0] == 0
            assert parts[-1][1] == pytest.approx(ratios[plan])
            for before, after in pairwise(parts):
                assert before[1] == after[0]
            order = [CLASSES.index(work) for _, _, work in parts]
            assert order == sorted(order)


def test_a_plan_without_a_time_has_no_bar_and_is_named(record: Record) -> None:
    cell = record.derived.cells[0]
    void = {v.variant for v in cell.variants if v.comparison and v.comparison.verdict == "void"}
    assert void
    assert not void & set(time_ratios(cell))
    svg = time_split_svg(record)
    assert all(name in svg for name in void)
    assert "not drawn, without a time" in svg


def test_names_cannot_write_into_the_picture(hostile_record: Record) -> None:
    svg = time_split_svg(hostile_record)
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert len(re.findall("</svg>", svg)) == 1


def test_the_same_record_gives_the_same_picture(record: Record) -> None:
    assert time_split_svg(record) == time_split_svg(record)


def test_a_single_profile_compares_with_nothing(record: Record) -> None:
    cells = []
    for cell in record.facts.cells:
        variants = tuple(
            v if v.name == "baseline" else v.model_copy(update={"profile": None})
            for v in cell.variants
        )
        cells.append(cell.model_copy(update={"variants": variants}))
    facts = record.facts.model_copy(update={"cells": tuple(cells)})
    alone = record.model_copy(update={"facts": facts, "derived": derive(facts)})
    assert pictured(record)
    assert not pictured(alone)
