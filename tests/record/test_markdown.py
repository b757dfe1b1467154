from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bitworth.record.address import read, resolve, shown
from bitworth.record.render_markdown import escape, render_markdown
from bitworth.record.schema import Record

COMMENT = re.compile(r"<!-- bw:(\S+) -->")
NUMBER = re.compile(r"(?<![\w.])[-+±]?\d")


@pytest.fixture(
    params=["record", "partial_record", "hostile_record", "rival_record", "settled_record"]
)
def any_record(request: pytest.FixtureRequest) -> Record:
    found: Record = request.getfixturevalue(request.param)
    return found


def at_pointer(tree: Any, address: str) -> Any:
    """A JSON pointer in plain JSON, written apart from the code under test."""
    for token in address.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        tree = tree[int(token)] if isinstance(tree, list) else tree[token]
    return tree


def without_addressed(record: Record, text: str) -> str:
    """What is left of ``text`` without its addressed values; each must be what its address says."""
    rest, end = [], 0
    for comment in COMMENT.finditer(text):
        before = text[end : comment.start()]
        plain = shown(record, read(comment[1]))
        value = f"```sh\n{plain}\n```\n" if before.endswith("```\n") else escape(plain)
        assert before.endswith(value), (comment[1], value, before[-80:])
        rest.append(before[: len(before) - len(value)])
        end = comment.end()
    return "".join([*rest, text[end:]])


def test_every_number_has_an_address_that_gives_its_text(any_record: Record) -> None:
    rest = without_addressed(any_record, render_markdown(any_record, "speed.svg"))
    assert [line for line in rest.splitlines() if NUMBER.search(line)] == []


def test_every_address_is_a_pointer_into_the_json(any_record: Record) -> None:
    tree = any_record.model_dump(mode="json")
    addresses = COMMENT.findall(render_markdown(any_record, "speed.svg"))
    assert len(addresses) > 100
    for address in map(read, addresses):
        if address.endswith("~#"):
            at_pointer(tree, address.removesuffix("~#"))
            continue
        value, found = at_pointer(tree, address), resolve(any_record, address)
        if isinstance(value, list | dict):
            assert len(value) == int(shown(any_record, address))
        else:
            assert value == found


def test_swapped_ends_of_an_interval_would_be_seen(record: Record) -> None:
    row = next(
        line
        for line in render_markdown(record, "speed.svg").splitlines()
        if line.startswith("| int8 all") and "faster" in line
    )
    comparison = record.derived.cells[0].variants[1].comparison
    assert comparison is not None
    plain = COMMENT.sub("", row)
    found = re.search(r"([\d.]+)× \(([\d.]+) to ([\d.]+)\)", plain)
    assert found is not None
    value, low, high = map(float, found.groups())
    assert low < value < high
    assert comparison.time_ratio_high is not None
    assert low == round(1 / comparison.time_ratio_high, 3)


def test_tables_are_rectangular_and_pipes_are_escaped(any_record: Record) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", render_markdown(any_record, "speed.svg"), re.MULTILINE)
    assert len(blocks) >= 9
    for block in blocks:
        rows = [re.split(r"(?<!\\)\|", COMMENT.sub("", row)) for row in block.splitlines()]
        assert len({len(row) for row in rows}) == 1, block
        assert all(set(cell.strip()) <= {"-", ":"} and cell.strip() for cell in rows[1][1:-1])
        assert all(row[0] == "" and row[-1] == "" for row in rows)


def test_names_cannot_become_mark_up(hostile_record: Record) -> None:
    text = COMMENT.sub("", render_markdown(hostile_record, "speed.svg"))
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"(?<!\\)\[x(?<!\\)\]\(y\)", text)
    assert "-->" not in text


def test_text_says_what_did_not_run_and_why(record: Record) -> None:
    text = COMMENT.sub("", render_markdown(record, "speed.svg"))
    assert "| bf16 | not run | not run: its CPU provider has no bf16 mode |" in text
    assert "| int8 s8 | failed | failed: worker died of SIGSEGV |" in text
    assert "fp8 all is emulated" in text
    assert "int8 broken: void: quality: relative error 0.97" in text
    broken = [line for line in text.splitlines() if line.startswith("| int8 broken | void |")]
    assert len(broken) == 2
    assert all(line.startswith("| int8 broken | void | see below | – |") for line in broken)


def cells_of(record: Record, variant: str) -> dict[str, str]:
    """The row of a variant in the first verdict table, by column."""
    lines = COMMENT.sub("", render_markdown(record, "speed.svg")).splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("| variant | verdict |"))
    row = next(line for line in lines[header:] if line.startswith(f"| {variant} |"))
    titles, values = (line.strip("| ").split(" | ") for line in (lines[header], row))
    return dict(zip(titles, values, strict=True))


def test_every_comparison_says_what_it_detects_and_what_it_still_needs(record: Record) -> None:
    by_name = {v.variant: v.comparison for v in record.derived.cells[0].variants}
    verdicts = set()
    for name in ("int8 all", "int8 MatMul", "int8 tail", "int8 wide"):
        comparison, shown_ = by_name[name], cells_of(record, name)
        assert comparison is not None
        verdicts.add(comparison.verdict)
        assert shown_["sessions"] == str(comparison.sessions) == "6"
        assert comparison.detectable_ratio is not None
        percent = float(shown_["detects from"].strip("±%"))
        assert percent == pytest.approx((comparison.detectable_ratio - 1) * 100, abs=0.051)
        more = shown_["more sessions to a verdict"]
        if comparison.more_sessions is None:
            assert more == "over 60 in all"
        else:
            assert more == str(comparison.more_sessions)
            assert (more == "0") == (comparison.verdict != "not distinguishable")
    assert len(verdicts) > 2
    broken = cells_of(record, "int8 broken")
    assert (broken["detects from"], broken["more sessions to a verdict"]) == ("–", "–")
    assert cells_of(record, "fp8 all")["sessions"] == "–"


def test_a_study_until_settled_says_how_it_looked(settled_record: Record, record: Record) -> None:
    text = COMMENT.sub("", render_markdown(settled_record, "speed.svg"))
    assert "Verdicts were looked at only after numbers of sessions fixed beforehand" in text
    comparison = settled_record.derived.cells[0].variants[1].comparison
    assert comparison is not None
    assert f"an error rate of {comparison.alpha * 100:.3g}%" in text
    assert "looked at" not in COMMENT.sub("", render_markdown(record, "speed.svg"))


def test_an_interval_that_was_widened_says_so(record: Record) -> None:
    cell = record.derived.cells[0]
    comparison = replace(cell.variants[1].comparison, widened_ratio=0.0321)
    variants = list(cell.variants)
    variants[1] = variants[1].model_copy(update={"comparison": comparison})
    cells = (cell.model_copy(update={"variants": tuple(variants)}), *record.derived.cells[1:])
    derived = record.derived.model_copy(update={"cells": cells})
    text = render_markdown(record.model_copy(update={"derived": derived}), "speed.svg")
    assert "int8 all: its interval is widened by ±3.2% on each side" in COMMENT.sub("", text)


def test_others_are_shown_against_the_best_free_win(rival_record: Record) -> None:
    text = COMMENT.sub("", render_markdown(rival_record, "speed.svg"))
    assert "against the best free win" in text
    assert "The best free win that passes is bf16." in text
    assert "Answer: undecided" in text or "Answer: ship bf16" in text


def test_baseline_comes_first(record: Record) -> None:
    lines = COMMENT.sub("", render_markdown(record, "speed.svg")).splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("| variant | verdict |"))
    assert lines[header + 2].startswith(f"| baseline | baseline |{5 * ' – |'} 90.50% |")


def test_rendering_twice_gives_the_same_text(any_record: Record) -> None:
    again = Record.model_validate_json(any_record.model_dump_json())
    assert render_markdown(any_record, "a.svg") == render_markdown(again, "a.svg")


def test_partial_record_says_that_nothing_was_timed(partial_record: Record) -> None:
    text = render_markdown(partial_record, "speed.svg")
    assert "not timed" in text
    assert "Nothing was timed in this cell." in text


def test_command_with_backticks_stays_in_its_block(record: Record) -> None:
    facts = record.facts.model_copy(update={"command": "bitworth study `a```b`"})
    text = render_markdown(record.model_copy(update={"facts": facts}), "speed.svg")
    assert "````sh\nbitworth study `a```b`\n````\n<!-- bw:/facts/command -->" in text
