"""Bounds of the committed records hold, and the document says what they came to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.bound.report import DOCUMENT, Row, apart, insert, records, render, rows

ROWS = rows(records())


def test_there_are_bounds_on_both_engines() -> None:
    assert {"onnxruntime", "openvino"} <= {row.engine for row in ROWS}


def test_no_measured_speedup_lies_beyond_its_bound() -> None:
    assert [row for row in ROWS if row.beyond] == []


def test_the_document_says_what_the_records_hold() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert insert(text, render(ROWS)) == text


def test_expectations_are_compared_where_there_are_some() -> None:
    row = Row("m", "e", "c", "v", 2.0, 1.2, 0.9, 1.0, 1.1, False)
    rows_ = [row, replace(row, expected=0.9), replace(row, expected=None)]
    assert apart(rows_) == pytest.approx(0.15)
    assert apart([replace(row, expected=None)]) is None


def test_a_document_without_a_place_is_told() -> None:
    with pytest.raises(ValueError, match="no place"):
        insert("# Title", "table")
