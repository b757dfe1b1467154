"""``bitworth rejudge`` on records that the mock engine's studies wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bitworth.record.pictures import draw
from bitworth.record.render_html import render_html
from bitworth.record.render_markdown import render_markdown
from bitworth.record.store import read_record
from bitworth.study.defaults import default_study
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, tiny_writer: Callable[[Path], Path]) -> bytes:
    """The record of one small study."""
    folder = tmp_path_factory.mktemp("studied")
    made = default_study(
        tiny_writer(folder / "tiny.onnx"), calibration=None, holdout=None, random_inputs=True,
        shapes={"x": (2, 4)}, engines=("mock",), budget_minutes=0.01, max_rel_l2=None,
    )  # fmt: skip
    timing = made.timing.model_copy(update={"min_sessions": 2})
    request = StudyRequest(
        config=made.model_copy(update={"timing": timing}), folder=Path(),
        output=folder / "studies", command="bitworth study tiny.onnx",
    )  # fmt: skip
    _, paths = run_study(request, Reporter(Console(), quiet=True))
    return paths.record.read_bytes()


@pytest.fixture
def path(studied: bytes, tmp_path: Path) -> Path:
    """A record of an older Bitworth: it knew version 1 of the rules and another eps."""
    found = tmp_path / "studies" / "2026-01-01-000000-abcdef.json"
    found.parent.mkdir()
    tree = json.loads(studied)
    tree["derived"]["rules_version"] = 1
    tree["derived"]["timing"]["eps"] = 0.02
    found.write_text(json.dumps(tree, indent=1, sort_keys=True))
    return found


def test_it_shows_what_changes_and_writes_nothing(bitworth: Callable[..., Any], path: Path) -> None:
    files = {p: p.read_bytes() for p in path.parent.iterdir()}
    outcome = bitworth("rejudge", path)
    assert outcome.code == 0
    assert "rules: version 1 -> 2" in outcome.out
    assert "eps: 0.02 -> 0.005" in outcome.out
    assert {p: p.read_bytes() for p in path.parent.iterdir()} == files
    (told,) = json.loads(bitworth("rejudge", path, "--json").out)
    assert told["record"] == str(path)
    assert told["changed"] is True
    assert [rule["name"] for rule in told["rules"]] == ["eps"]


@pytest.mark.whole
def test_writing_replaces_the_conclusions_and_what_is_rendered(
    bitworth: Callable[..., Any], path: Path
) -> None:
    facts = json.loads(path.read_text())["facts"]
    for suffix in (".md", ".html", ".svg"):
        path.with_suffix(suffix).write_text("stale")
    outcome = bitworth("rejudge", path, "--write")
    assert outcome.code == 0
    assert f"written: {path}" in outcome.out
    assert json.loads(path.read_text())["facts"] == facts
    record = read_record(path)
    assert record.derived.timing.eps == 0.005
    svg = path.with_suffix(".svg")
    assert path.with_suffix(".md").read_text() == render_markdown(record, svg.name)
    assert path.with_suffix(".html").read_text() == render_html(record, draw(record))
    assert svg.read_text().startswith("<svg")
    again = bitworth("rejudge", path, path)
    assert again.code == 0
    assert "nothing changed" in again.out


def test_several_records_and_none_is_written_when_one_is_bad(
    bitworth: Callable[..., Any], path: Path
) -> None:
    newer = path.with_name("newer.json")
    tree = json.loads(path.read_text())
    newer.write_text(json.dumps({**tree, "schema_version": 99}))
    before = path.read_bytes()
    outcome = bitworth("rejudge", path, newer, "--write")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.strip().startswith("bitworth: ")
    assert "newer.json" in outcome.err
    assert "upgrade bitworth" in outcome.err
    assert path.read_bytes() == before
    other = path.with_name("other.json")
    other.write_bytes(before)
    outcome = bitworth("rejudge", path, other)
    assert outcome.code == 0
    assert outcome.out.count("rules: version 1 -> 2") == 2


def test_a_record_that_is_none(bitworth: Callable[..., Any], tmp_path: Path) -> None:
    outcome = bitworth("rejudge", tmp_path / "nothing.json")
    assert outcome.code == 2
    assert "no such record" in outcome.err
