"""What changed between two records, and what could explain it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from bitworth.record.difference import difference
from bitworth.record.render_difference import render
from bitworth.record.schema import Record

Make = Callable[..., Record]


def with_cell(record: Record, **changes: Any) -> Record:
    """The record with a changed first cell, its conclusions as they were."""
    cells = (record.facts.cells[0].model_copy(update=changes), *record.facts.cells[1:])
    return record.model_copy(update={"facts": record.facts.model_copy(update={"cells": cells})})


def with_ratio(record: Record, variant: str, factor: float, verdict: str) -> Record:
    """The record with another time of one variant in its first cell."""
    cell = record.derived.cells[0]
    rows = []
    for row in cell.variants:
        if row.variant == variant:
            made = row.comparison
            assert made is not None
            values = {
                name: getattr(made, name) * factor
                for name in ("time_ratio", "time_ratio_low", "time_ratio_high")
            }
            changed = {**vars(made), **values, "verdict": verdict}
            row = row.model_copy(update={"comparison": type(made)(**changed)})
        rows.append(row)
    cells = (cell.model_copy(update={"variants": tuple(rows)}), *record.derived.cells[1:])
    derived = record.derived.model_copy(update={"cells": cells})
    return record.model_copy(update={"derived": derived})


def text(old: Record, new: Record) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render(difference(old, new)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_record_does_not_differ_from_itself(record: Record) -> None:
    found = difference(record, record)
    assert (found.decisions, found.variants, found.environment) == ((), (), ())
    assert (found.only_old, found.only_new) == ((), ())
    assert found.same_subject
    assert found.same_policy
    told = text(record, record)
    assert "Every decision is what it was." in told
    assert "The environment is the same." in told


def test_a_difference_of_one_plan_in_one_environment_is_unexplained(record: Record) -> None:
    new = with_ratio(record, "int8 all", 1.5, "slower")
    (found,) = difference(record, new).variants
    assert (found.variant, found.beyond, found.explained) == ("int8 all", True, "nothing")
    assert found.new_verdict == "slower"
    assert "what differs was not recorded" in text(record, new)


def test_the_environment_alone_explains_a_difference_of_one_plan(record: Record) -> None:
    newer = with_cell(record, version="1.33.0")
    new = with_ratio(newer, "int8 all", 1.5, "slower")
    found = difference(record, new)
    (changed,) = found.variants
    assert changed.explained == "environment"
    (told,) = found.environment
    assert (told.what, told.new) == ("onnxruntime version", "1.33.0")
    assert "only the environment differs" in text(record, new)


def test_another_plan_explains_a_difference(record: Record) -> None:
    cell = record.facts.cells[0]
    variants = tuple(
        v.model_copy(update={"lowered_sha256": "0" * 64}) if v.name == "int8 all" else v
        for v in cell.variants
    )
    new = with_ratio(with_cell(record, variants=variants), "int8 all", 1.5, "slower")
    (changed,) = difference(record, new).variants
    assert changed.explained == "plan"


def test_intervals_that_meet_and_one_verdict_are_no_difference(record: Record) -> None:
    new = with_ratio(record, "int8 all", 1.001, "faster")
    assert difference(record, new).variants == ()


def test_decisions_cells_and_variants_that_came_and_went(make_record: Make) -> None:
    old = make_record(engines=("onnxruntime", "openvino"))
    new = make_record(engines=("onnxruntime",), with_bf16=True)
    found = difference(old, new)
    assert any(name.startswith("openvino") for name in found.only_old)
    assert all(change.old != change.new for change in found.decisions)


def test_another_model_and_policy_are_told(record: Record) -> None:
    facts = record.facts
    subject = facts.subject.model_copy(update={"sha256": "1" * 64})
    policy = type(facts.policy)(min_speedup=1.5)
    new = record.model_copy(
        update={"facts": facts.model_copy(update={"subject": subject, "policy": policy})}
    )
    found = difference(record, new)
    assert not found.same_subject
    assert not found.same_policy
    assert "The models differ" in text(record, new)


def test_cells_that_differ_in_threads_are_told_apart(make_record: Make) -> None:
    old = make_record(engines=("onnxruntime", "onnxruntime"))
    one = old.facts.cells[0].model_copy(update={"threads": 1})
    eight = old.facts.cells[1].model_copy(update={"threads": 8})
    old = old.model_copy(update={"facts": old.facts.model_copy(update={"cells": (one, eight)})})
    derived = old.derived.model_copy(update={"cells": (old.derived.cells[1],)})
    facts = old.facts.model_copy(update={"cells": (eight,)})
    new = with_ratio(
        old.model_copy(update={"facts": facts, "derived": derived}), "int8 all", 1.5, "slower"
    )
    found = difference(old, new)
    assert [c.what for c in found.environment] == []
    assert len(found.only_old) == 1
    assert found.only_old[0].endswith("1 threads")
    assert all(v.cell.endswith("8 threads") for v in found.variants)
    assert found.variants


def test_a_variants_own_options_explain_a_difference(record: Record) -> None:
    cell = record.facts.cells[0]
    variants = tuple(
        v.model_copy(update={"options": {"k": "v"}}) if v.name == "int8 all" else v
        for v in cell.variants
    )
    new = with_ratio(with_cell(record, variants=variants), "int8 all", 1.5, "slower")
    (changed,) = difference(record, new).variants
    assert changed.explained == "plan"
