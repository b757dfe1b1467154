from __future__ import annotations

import io

import pytest
from rich.console import Console

from bitworth.record.render_terminal import render
from bitworth.record.schema import Record
from bitworth.record.tables import decision_lines, verdict_table


def text_of(record: Record, width: int, **options: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, **options).print(render(record))  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_text_fits_the_screen(record: Record, width: int) -> None:
    lines = text_of(record, width).splitlines()
    assert max(map(len, lines)) <= width


def test_narrow_screen_cuts_no_value(record: Record) -> None:
    text = text_of(record, 80)
    for row in verdict_table(record, 0).rows:
        assert row[0].text in text
        for cell in row[1:]:
            if not cell.text.startswith(("not run", "failed")):
                assert cell.text in text


def test_wide_screen_shows_one_table_a_cell(record: Record) -> None:
    assert text_of(record, 300).count("\nint8 all ") == 2
    assert text_of(record, 80).count("\nint8 all ") > 2


def test_colour_is_not_the_only_carrier(record: Record) -> None:
    plain = text_of(record, 80, no_color=True)
    assert "\x1b[3" not in plain
    for word in ("faster", "slower", "not distinguishable", "void", "failed", "not run"):
        assert word in plain


def test_decisions_are_shown(record: Record, partial_record: Record) -> None:
    joined = " ".join(text_of(record, 80).split())
    assert [name.text for name, _ in decision_lines(record)] == [
        "onnxruntime 1.32.0, 2 threads",
        "openvino 2026.4.0, 2 threads",
    ]
    for sentence in (line.text for _, line in decision_lines(record)):
        assert sentence in joined
    assert record.derived.decision.sentence in joined
    assert "not timed" in text_of(partial_record, 80)


def test_record_cannot_write_escape_codes(hostile_record: Record) -> None:
    assert "\x1b" not in text_of(hostile_record, 80)
