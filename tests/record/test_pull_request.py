"""A pull request's text: what a draft has, and what is missed."""

from __future__ import annotations

import re

import pytest

from bitworth.record.pull_request import PARTS, SELF_REVIEW, draft, missing
from bitworth.record.schema import Record


def finished(record: Record) -> str:
    return draft(record).replace("- [ ]", "- [x]")


@pytest.mark.parametrize("which", ["record", "partial_record", "rival_record", "hostile_record"])
def test_a_draft_has_every_section(which: str, request: pytest.FixtureRequest) -> None:
    record: Record = request.getfixturevalue(which)
    text = draft(record)
    assert missing(text, is_draft=True) == []
    (told,) = missing(text, is_draft=False)
    assert told == f"section '{SELF_REVIEW}' has 3 lines that are not ticked"
    assert missing(finished(record), is_draft=False) == []
    headings = re.findall(r"^(#+) (.*)$", text, flags=re.MULTILINE)
    assert [(len(m), h) for m, h in headings] == [(p.level, p.heading) for p in PARTS]


def test_a_draft_says_what_its_record_says(record: Record) -> None:
    text = draft(record)
    assert record.facts.command in text
    assert "<!-- bw:/derived/decision/sentence -->" in text
    for line in record.facts.not_run:
        assert line.reason in text


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.heading)
def test_every_section_is_missed(record: Record, part: object) -> None:
    heading = getattr(part, "heading")  # noqa: B009
    text = finished(record)
    assert f"section '{heading}' is missing" in missing(
        text.replace(f" {heading}\n", " Something else\n"), is_draft=False
    )


@pytest.mark.parametrize("content", ["", "<!-- to be written -->", "\n \n<!--\nmany\nlines\n-->"])
def test_comments_do_not_count(record: Record, content: str) -> None:
    text = finished(record)
    start = text.index("### Not Run\n") + len("### Not Run\n")
    end = text.index("### Remaining Gaps")
    emptied = f"{text[:start]}\n{content}\n\n{text[end:]}"
    assert missing(emptied, is_draft=False) == ["section 'Not Run' is empty"]


def test_headings_in_code_are_none(record: Record) -> None:
    text = finished(record).replace("## Background\n", "```\n## Background\n```\n", 1)
    assert "section 'Background' is missing" in missing(text, is_draft=False)


def test_without_a_ticked_category_the_change_has_none(record: Record) -> None:
    text = finished(record)
    start, end = text.index("### Change categories"), text.index("## Validation")
    unticked = text[:start] + text[start:end].replace("[x]", "[ ]") + text[end:]
    assert missing(unticked, is_draft=False) == ["section 'Change categories' has no ticked line"]


def test_an_empty_body_lacks_everything() -> None:
    assert len(missing("", is_draft=True)) == len(PARTS) - 1
    assert len(missing("", is_draft=False)) == len(PARTS)
