"""The committed results follow from the committed sessions, and the documentation shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.timing import gpu
from benchmarks.timing.bank import Bank
from benchmarks.timing.modes import mode_results
from benchmarks.timing.real import real_report
from benchmarks.timing.report import (
    BEGIN,
    END,
    insert,
    limits,
    read_report,
    render_report,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
REPORTS = sorted(RESULTS.glob("*/timing.json"))
DOCUMENT = (ROOT / "docs" / "timing.md").read_text()


def rounded(value: Any) -> Any:
    """A tree whose numbers have six digits: the last ones differ between versions of numpy."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def tree(value: Any) -> Any:
    return rounded(TypeAdapter(type(value)).dump_python(value, mode="json"))


def test_there_are_results() -> None:
    assert REPORTS


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_the_figures_follow_from_the_sessions(path: Path) -> None:
    report = read_report(path)
    bank = path.parent / "bank"
    assert tree(real_report(bank, report.rules)) == tree(report.real)
    again = mode_results([result.mode for result in report.modes], bank, report.rules)
    assert [tree(result) for result in again] == [tree(result) for result in report.modes]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_every_limit_is_kept(path: Path) -> None:
    report = read_report(path)
    assert [text for text, kept in limits(report) if not kept] == []
    # As many trials as a claim about one in twenty needs.
    assert sum(s.tally.trials for s in report.real.identical.values()) >= 200
    assert all(tally.trials >= 100 for tally in report.real.truth.values())
    assert all(row.trials >= 1000 for row in report.synthetic.identical)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_no_session_of_a_bank_failed(path: Path) -> None:
    for file in sorted((path.parent / "bank").glob("*.jsonl.gz")):
        assert all(not session.failures for session in Bank(file).sessions), file.name


def test_the_documentation_shows_the_figures() -> None:
    shown = [
        path for path in REPORTS if insert(DOCUMENT, render_report(read_report(path))) == DOCUMENT
    ]
    assert shown
    assert DOCUMENT.index(BEGIN) < DOCUMENT.index(END)


def test_a_document_without_a_place_is_told() -> None:
    with pytest.raises(ValueError, match="no place"):
        insert("# Title", "| a |")


def test_the_capped_gpu_is_judged_again() -> None:
    path = RESULTS / "nvidia-h200" / "gpu.json"
    job = gpu.read(path)
    stored = json.loads(path.read_text())["derived"]
    assert json.loads(json.dumps(gpu.judged(job))) == stored
    assert gpu.result_line(job) in DOCUMENT.replace("\n", " ")
    assert gpu.clock_table(job) in DOCUMENT
