from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.record.address import clean, key_pointer, pointer, resolve, shown
from bitworth.record.schema import Record

CELL = ("derived", "cells", 0, "variants", 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("facts", "policy", "min_speedup"), "1.05"),
        (("facts", "policy", "max_loss", 0, 0), "line accuracy"),
        (("facts", "policy", "max_loss", 0, 1), "2 points"),
        (("facts", "timing", "eps"), "0.5%"),
        (("facts", "timing", "min_sessions"), "6"),
        (("derived", "timing", "alpha"), "3.5%"),
        (("derived", "timing", "power"), "80%"),
        (("derived", "timing", "until_settled"), "no"),
        ((*CELL, "comparison", "alpha"), "0.7%"),
        ((*CELL, "comparison", "widened_ratio"), "±0%"),
        (("facts", "subject", "sha256"), "0123456789ab"),
        (("facts", "subject", "sites"), "3"),
        (("facts", "environment", "memory_bytes"), "16.7 GB"),
        (("facts", "cells", 0, "jobs", 0, "call_ns"), "5.10 ms"),
        ((*CELL, "load_ns"), "41.0 ms"),
        ((*CELL, "peak_bytes"), "312 MB"),
        (("facts", "cells", 0, "jobs", 0, "sessions", 0, "others_ratio"), "unknown"),
        (("facts", "data", "random"), "no"),
        ((*CELL, "scores", "line accuracy"), "86.50%"),
        ((*CELL, "plan_bytes_ratio"), "0.27×"),
    ],
)
def test_text_has_its_unit(record: Record, path: tuple[str | int, ...], text: str) -> None:
    assert shown(record, pointer(*path)) == text


def test_speed_up_is_the_inverse_of_the_ratio(record: Record) -> None:
    comparison = record.derived.cells[0].variants[1].comparison
    assert comparison is not None
    assert comparison.time_ratio is not None
    address = pointer(*CELL, "comparison", "time_ratio")
    assert shown(record, address) == f"{1 / comparison.time_ratio:.3f}"


def test_the_detectable_effect_is_a_change_in_percent(record: Record) -> None:
    comparison = record.derived.cells[0].variants[1].comparison
    assert comparison is not None
    assert comparison.detectable_ratio is not None
    text = shown(record, pointer(*CELL, "comparison", "detectable_ratio"))
    assert text == f"±{(comparison.detectable_ratio - 1) * 100:.1f}%"


def test_loss_is_in_points_for_a_fraction(record: Record) -> None:
    loss = record.derived.cells[0].variants[1].losses[0]
    assert shown(record, pointer(*CELL, "losses", 0, "loss")) == f"{loss.loss * 100:+.2f}"


def test_a_key_has_an_address_of_its_own(record: Record) -> None:
    address = key_pointer(*CELL, "scores", "line accuracy")
    assert shown(record, address) == "line accuracy"
    with pytest.raises(LookupError):
        shown(record, key_pointer(*CELL, "scores", "no such metric"))


@pytest.mark.parametrize(
    "address", ["/facts/nothing", "/facts/cells/9", "/facts/cells/-1", "/facts/cells/01", "/facts"]
)
def test_nothing_at_an_address_is_an_error(record: Record, address: str) -> None:
    with pytest.raises(LookupError):
        shown(record, address)


@given(st.text())
def test_pointers_survive_any_key(key: str) -> None:
    record = Record.model_construct(facts={key: {"~1": 7}})  # type: ignore[arg-type]
    assert resolve(record, pointer("facts", key, "~1")) == 7
    assert resolve(record, key_pointer("facts", key)) == key


@given(st.text())
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)
