"""Old records by today's rules: what is kept, what changes, and how that is told."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bitworth.errors import UserError
from bitworth.record.derive import RULES_VERSION, derive, rules_today
from bitworth.record.profile_facts import ProfileFacts
from bitworth.record.rejudge import Rejudgement, rejudge
from bitworth.record.render_rejudged import as_json, render
from bitworth.record.schema import SCHEMA_VERSION, Record, VariantSummary
from bitworth.record.store import read_record, replace_derived, write_record
from bitworth.record.upgrade import upgrade
from bitworth.verdict import Comparison, Gate, TimingRules

Tree = dict[str, Any]


def version_1(record: Record) -> Tree:
    """The record as Bitworth 0.1 wrote it: without what version 2 adds."""
    tree: Tree = json.loads(record.model_dump_json())
    tree["schema_version"] = tree["derived"]["rules_version"] = 1
    del tree["facts_sha256"]
    del tree["derived"]["timing"], tree["facts"]["timing"]["until_settled"]
    for cell in tree["facts"]["cells"]:
        del cell["streams"], cell["batch"], cell["quantile"]
        profiles = [variant.pop("profile") for variant in cell["variants"]]
        cell["profile"] = [
            {k: v for k, v in layer.items() if k not in ("format", "calls", "inputs")}
            for layer in (profiles[0] or {"layers": []})["layers"]
        ]
        for job in cell["jobs"]:
            for session in job["sessions"]:
                del session["clocks"], session["not_observable"]
    for cell in tree["derived"]["cells"]:
        del cell["cycles"], cell["latency"]
        del cell["splits"], cell["conversions"], cell["reasons"]
        made = [c for verdict in cell["verdicts"] for c in verdict["comparisons"]]
        made += [v[name] for v in cell["variants"] for name in ("comparison", "against_best")]
        for comparison in made:
            if comparison is not None:
                comparison.pop("alpha")
                comparison.pop("widened_ratio")
    return tree


def before_version_4(record: Record) -> Record:
    """The record with the profiles that it would have: layers of the baseline's, with less said."""
    cells = []
    for cell in record.facts.cells:
        first = cell.variants[0].profile
        layers = tuple(
            layer.model_copy(update={"format": "", "calls": 1.0, "inputs": ()})
            for layer in (first.layers if first is not None else ())
        )
        old = ProfileFacts(plan_sha256=None, calls=None, plain_ns=None, layers=layers)
        variants = tuple(
            v.model_copy(update={"profile": old if place == 0 and layers else None})
            for place, v in enumerate(cell.variants)
        )
        cells.append(cell.model_copy(update={"variants": variants}))
    facts = record.facts.model_copy(update={"cells": tuple(cells)})
    return record.model_copy(update={"facts": facts, "derived": derive(facts)})


def stored(tree: Tree, path: Path) -> Path:
    path.write_text(json.dumps(tree))
    return path


def edited(
    record: Record, variant: str, edit: Callable[[Comparison], Comparison], cell: int = 0
) -> Record:
    """The record with another comparison of one variant."""
    cells = list(record.derived.cells)

    def change(summary: VariantSummary) -> VariantSummary:
        if summary.variant != variant or summary.comparison is None:
            return summary
        return summary.model_copy(update={"comparison": edit(summary.comparison)})

    variants = tuple(map(change, cells[cell].variants))
    cells[cell] = cells[cell].model_copy(update={"variants": variants})
    return with_derived(record, cells=tuple(cells))


def with_derived(record: Record, **changes: Any) -> Record:
    derived = record.derived.model_copy(update=changes)
    return record.model_copy(update={"derived": derived})


def told(found: Rejudgement, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(render(found))
    return stream.getvalue()


def test_a_record_of_today_does_not_change(record: Record, rival_record: Record) -> None:
    for made in (record, rival_record):
        found = rejudge(made)
        assert not found.changed
        assert told(found) == "nothing changed\n"
        assert (found.rules, found.comparisons, found.decisions, found.others) == ((), (), (), ())


@pytest.mark.parametrize("which", ["record", "rival_record", "partial_record"])
def test_a_record_of_version_1_is_read_and_judged_by_todays_rules(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    today = before_version_4(request.getfixturevalue(which))
    old = read_record(stored(version_1(today), tmp_path / "old.json"))
    assert old.facts == today.facts
    assert old.derived.timing == today.facts.timing
    assert [c.variants for c in old.derived.cells] == [c.variants for c in today.derived.cells]
    found = rejudge(old)
    assert found.changed
    # Its hash is of what it says, without what a later version adds.
    assert found.new == today.model_copy(update={"facts_sha256": old.facts_sha256})
    assert found.comparisons == ()
    assert f"rules: version 1 -> {RULES_VERSION}" in told(found)
    assert "no decision changed" in told(found)


def test_an_upgrade_leaves_the_facts_and_its_argument_alone(record: Record) -> None:
    old = version_1(record)
    before = deepcopy(old)
    facts = upgrade(old)["facts"]
    assert old == before
    for cell, was in zip(facts.pop("cells"), before["facts"].pop("cells"), strict=True):
        # The profile is the baseline's now; all else is where it was.
        profile = cell["variants"][0].pop("profile")
        assert profile["layers"] == was.pop("profile")
        assert cell == was
    assert facts == before["facts"]
    assert upgrade({"schema_version": 7}) == {"schema_version": 7}


def test_a_verdict_that_changes_is_shown_with_its_check_and_decision(record: Record) -> None:
    """As before the warm-up gate widened: a failed check had voided a large effect."""

    def voided(comparison: Comparison) -> Comparison:
        gates = tuple(
            Gate(gate.name, "failed", "it warms up") if gate.name == "warmup" else gate
            for gate in comparison.gates
        )
        return replace(comparison, verdict="void", reason="warmup: it warms up", gates=gates)

    old = edited(record, "int8 all", voided)
    decision = replace(record.derived.decision, kind="ship", variant="int8 all", sentence="ship it")
    old = with_derived(old, decision=decision)
    found = rejudge(old)
    (change,) = found.comparisons
    assert (change.cell, change.which) == (0, "comparison")
    assert change.old is not None
    assert change.new is not None
    assert (change.old.verdict, change.new.verdict) == ("void", "faster")
    assert [(g.name, g.old, g.new) for g in change.gates] == [("warmup", ("failed",), ("passed",))]
    assert change.also == ("reason",)
    assert [d.cell for d in found.decisions] == [""]
    assert found.others == ()
    text = " ".join(told(found).split())
    assert "int8 all was void" in text
    assert "now faster 1.6" in text
    assert "warmup: failed -> passed" in text
    assert f"decision of the study: ship -> {record.derived.decision.kind}" in text
    assert "was: ship it" in text
    assert "comparisons: verdict and interval as before" in text


def test_constants_that_differ_are_named(record: Record) -> None:
    found = rejudge(with_derived(record, timing=TimingRules(eps=0.02, gate_alpha=0.05)))
    assert [(r.name, r.old, r.new) for r in found.rules] == [
        ("eps", 0.02, 0.005), ("gate_alpha", 0.05, 0.01),
    ]  # fmt: skip
    assert "eps: 0.02 -> 0.005" in told(found)
    assert found.comparisons == ()


def test_a_check_that_is_new_everywhere_is_told_once(record: Record) -> None:
    def without(comparison: Comparison) -> Comparison:
        gates = tuple(gate for gate in comparison.gates if gate.name != "interference")
        return replace(comparison, gates=gates)

    old = record
    for cell in range(2):
        for summary in record.derived.cells[cell].variants:
            old = edited(old, summary.variant, without, cell)
    text = told(rejudge(old))
    assert text.count("interference") == 1
    assert "interference: none -> not_observable" in text
    assert "10 comparisons: verdict and interval as before" in text


def test_what_else_changes_is_named_by_its_address(record: Record) -> None:
    found = rejudge(with_derived(record, quality_level=0.5, resolvable_loss={}))
    assert "/derived/quality_level" in found.others
    assert "/derived/resolvable_loss/line accuracy" in found.others
    assert "/derived/quality_level" in told(found)


def test_what_the_study_asked_for_is_kept(make_record: Callable[..., Record]) -> None:
    asked = {"precision": 0.05, "delta": 0.03, "until_settled": True, "budget_minutes": 3}
    facts = make_record(timing=asked, engines=("onnxruntime",)).facts
    expected = replace(TimingRules(), precision=0.05, delta=0.03, until_settled=True)
    assert rules_today(facts) == expected
    # The constants that the facts name were those of their day; they judge nothing.
    stale = facts.model_copy(update={"timing": TimingRules(eps=0.3, alpha=0.5)})
    assert derive(stale).model_dump_json() == derive(facts).model_dump_json()


def test_a_study_until_settled_has_wider_intervals(
    settled_record: Record, make_record: Callable[..., Record]
) -> None:
    plain = make_record(engines=("onnxruntime",))
    for ours, theirs in zip(
        settled_record.derived.cells[0].variants, plain.derived.cells[0].variants, strict=True
    ):
        if ours.comparison is None:
            continue
        assert theirs.comparison is not None
        assert ours.comparison.alpha < theirs.comparison.alpha / 2
        assert ours.comparison.half_width_ratio > theirs.comparison.half_width_ratio
        assert ours.comparison.detectable_ratio > theirs.comparison.detectable_ratio


@pytest.mark.parametrize("timing", [[], {"delta": -1}, {"precision": "much"}, {"min_sessions": 0}])
def test_a_config_that_was_spoilt_is_one_line(record: Record, timing: Any) -> None:
    facts = record.facts.model_copy(update={"config": {"timing": timing or 7}})
    with pytest.raises(UserError, match="/facts/config/timing") as caught:
        rejudge(record.model_copy(update={"facts": facts}))
    assert "\n" not in str(caught.value)


def test_as_json_says_the_same(record: Record) -> None:
    old = edited(record, "int8 wide", lambda c: replace(c, verdict="faster"), cell=1)
    found = rejudge(old)
    tree = json.loads(json.dumps(as_json(found)))
    (change,) = tree["comparisons"]
    assert (change["cell"], change["variant"]) == (1, "int8 wide")
    assert (change["old"]["verdict"], change["new"]["verdict"]) == ("faster", "slower")
    assert change["new"] == json.loads(json.dumps(asdict(found.comparisons[0].new)))
    assert tree["derived"] == found.new.derived.model_dump(mode="json")
    assert tree["rules_version"] == {"old": RULES_VERSION, "new": RULES_VERSION}


def test_narrow_screens_and_hostile_names(hostile_record: Record) -> None:
    name = next(v.variant for v in hostile_record.derived.cells[0].variants if v.comparison)
    found = rejudge(edited(hostile_record, name, lambda c: replace(c, verdict="slower")))
    text = told(found, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def facts_text(path: Path) -> str:
    text = path.read_text()
    return text[text.index('"facts"') : text.index('\n "id"')]


@pytest.mark.parametrize("bulky", [False, True])
def test_only_the_conclusions_are_replaced(
    record: Record, tmp_path: Path, bulky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of a version 1 file stay as they are, byte for byte, and so do its samples."""
    from bitworth.record import store

    if bulky:
        monkeypatch.setattr(store, "INLINE_SAMPLES_BYTES", 10_000)
    path = tmp_path / "a.json"
    written = write_record(record, path)
    assert len(written) == 1 + bulky
    tree = json.loads(path.read_text())
    for cell in tree["facts"]["cells"]:
        del cell["streams"], cell["batch"]  # as an older file that lacks them
    path.write_bytes(store._readable(tree))
    before, samples = facts_text(path), [p.read_bytes() for p in written[1:]]
    replace_derived(with_derived(record, rules_version=77).derived, path)
    assert facts_text(path) == before
    assert '"streams"' not in before
    assert [p.read_bytes() for p in written[1:]] == samples
    assert read_record(path) == with_derived(record, rules_version=77)


def test_an_old_record_is_written_in_todays_schema(record: Record, tmp_path: Path) -> None:
    path = stored(version_1(record), tmp_path / "old.json")
    old = read_record(path)
    replace_derived(derive(old.facts), path)
    again = read_record(path)
    assert again.facts == old.facts
    assert again.derived == derive(old.facts)
    assert json.loads(path.read_text())["schema_version"] == SCHEMA_VERSION
