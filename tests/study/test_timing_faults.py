"""Faults while a study times: through the record, they are void with a reason, and ship nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from bitworth.record.schema import Record
from bitworth.study.config import read_study_file
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study


def run(folder: Any) -> Record:
    request = StudyRequest(
        config=read_study_file(folder.study),
        folder=folder.root,
        output=folder.root / "studies",
        command="bitworth study study.toml",
    )
    return run_study(request, Reporter(Console(), quiet=True))[0]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # In a session the warm-up and each block run the clock twice: call 15 is in round 7. The
        # runs that judge quality are 12 in one process, so all of them come through.
        (
            {"faults": {"int8 all": "raise_run"}, "fault_after": 14},
            "session 0: round 7: raised: RuntimeError: scripted failure",
        ),
        ({"faults": {"int8 all": "alias"}}, "its runs overwrite the input x"),
        ({"faults": {"int8 all": "backwards"}}, "the clock went backwards in the lead-in"),
    ],
)
def test_a_fault_is_void_and_ships_nothing(folder: Any, script: Any, words: str) -> None:
    """The sick variant would be by far the fastest."""
    folder.write({**script, "ratios": {"int8 all": 0.5}}, min_sessions=2)
    record = run(folder)
    found = {s.variant: s.comparison for s in record.derived.cells[0].variants}
    sick, sound = found["int8 all"], found["int8 conv"]
    assert sick is not None
    assert sound is not None
    assert sick.verdict == "void"
    assert words in sick.reason
    assert sound.verdict in ("equivalent", "not distinguishable")
    assert record.derived.decision.variant != "int8 all"
    state = {c.name: c.state for c in record.derived.decision.candidates}
    assert state["int8 all"] != "pass"


@pytest.mark.parametrize("fault", ["alias", "backwards"])
def test_a_baseline_that_is_sick_leaves_no_verdict(folder: Any, fault: str) -> None:
    folder.write({"faults": {"baseline": fault}, "ratios": {"int8 all": 0.5}}, min_sessions=2)
    record = run(folder)
    for summary in record.derived.cells[0].variants:
        assert summary.comparison is None or summary.comparison.verdict == "void"
    assert record.derived.decision.kind != "ship"


def test_what_was_observed_is_in_the_record(folder: Any) -> None:
    folder.write(min_sessions=2)
    record = run(folder)
    for session in record.facts.cells[0].jobs[0].sessions:
        assert {*session.clocks, *session.not_observable} == {
            "steal_ratio", "others_ratio", "cpu_mhz",
        }  # fmt: skip
        for column in session.clocks.values():
            assert [len(row) for row in column] == [len(row) for row in session.order]
