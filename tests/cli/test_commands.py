"""The commands as a user runs them, on the mock engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("command", ["", "study", "compare", "show", "rejudge", "export", "doctor"])
def test_help_says_what_it_is_for(bitworth: Callable[..., Any], command: str) -> None:
    outcome = bitworth(*([command] if command else []), "--help")
    assert outcome.code == 0
    assert "Usage: bitworth" in outcome.out
    assert len(outcome.out) > 300


def test_doctor_names_every_format_with_its_reason(bitworth: Callable[..., Any]) -> None:
    outcome = bitworth("doctor", "--json")
    reports = {r["engine"]: r for r in json.loads(outcome.out)}
    assert set(reports) == {"onnxruntime", "openvino"}
    for report in reports.values():
        assert report["problem"] == ""
        assert report["version"]
        states = {name: (state, reason) for name, state, reason in report["formats"]}
        assert states["int8"][0] == "native"
        assert states["fp8_e4m3"][0] == "emulated"
        assert all(reason for state, reason in states.values() if state != "native")
    table = bitworth("doctor")
    assert "openvino" in table.out
    assert "fp8_e4m3" in table.out


def test_study_show_export_without_a_study_file(
    bitworth: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    for name in ("c", "h"):
        np.savez(tmp_path / f"{name}.npz", x=RNG.standard_normal((8, 4)).astype(np.float32))
    args = ("--calibration", "c.npz", "--holdout", "h.npz", "--engine", "mock", "--budget", 0.01)
    outcome = bitworth("study", "tiny.onnx", *args, "--require", "ship")
    assert outcome.code == 3
    assert "--require ship is not met" in outcome.err
    assert "int8 all" in outcome.out
    assert "do not ship" in outcome.out  # the mock takes one time for all
    (path,) = (tmp_path / "studies").glob("tiny/*/*.json")
    record = json.loads(path.read_text())
    assert str(tmp_path) not in path.read_text()
    shown = bitworth("show", path)
    assert shown.code == 0
    assert shown.out.splitlines()[0] in outcome.out
    assert json.loads(bitworth("show", path, "--json").out)["id"] == record["id"]
    exported = bitworth("export", f"{path}:int8 all", "-o", "out.onnx")
    assert exported.code == 0
    model = onnx.load(tmp_path / "out.onnx")
    assert "QuantizeLinear" in {n.op_type for n in model.graph.node}
    missing = bitworth("export", f"{path}:int3", "-o", "no.onnx")
    assert missing.code == 2
    assert "no variant 'int3'" in missing.err
    assert not (tmp_path / "no.onnx").exists()
    # The exported model is judged by the same rules.
    compared = bitworth(
        "compare", "tiny.onnx", "out.onnx", "--holdout", "h.npz", "--engine", "mock",
        "--budget", 0.01, "--json",
    )  # fmt: skip
    assert compared.code == 0
    facts = json.loads(compared.out)["facts"]
    assert [v["source"] for v in facts["cells"][0]["variants"]] == ["precision", "file"]
    theirs = facts["cells"][0]["variants"][1]["quality"]["outputs"]["y"]["rel_l2"]
    ours = next(v for v in record["facts"]["cells"][0]["variants"] if v["name"] == "int8 all")
    assert theirs == ours["quality"]["outputs"]["y"]["rel_l2"]


def test_random_inputs_give_no_quality(bitworth: Callable[..., Any], tiny: Path) -> None:
    args = ("--random-inputs", "--shape", "x=2,4", "--engine", "mock", "--budget", 0.01)
    outcome = bitworth("study", tiny, *args, "--json")
    assert outcome.code == 0
    record = json.loads(outcome.out)
    assert record["facts"]["data"]["random"] is True
    assert record["facts"]["cells"][0]["shape"] == {"x": [2, 4]}
    sentence = record["derived"]["decision"]["sentence"]
    assert "no quality evidence" in sentence or sentence.startswith("do not ship")


STUDY = """
version = 1
[subject]
name = "tiny"
onnx = "tiny.onnx"
[data]
random_inputs = true
shapes = { x = [2, 4] }
[[cell]]
engine = "mock"
threads = 1
[[variant]]
name = "bf16"
format = "bf16"
[timing]
budget_minutes = 0.01
min_sessions = 2
"""


def test_until_settled_is_kept_in_the_record(
    bitworth: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    outcome = bitworth("study", "study.toml", "--until-settled", "--json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["facts"]["config"]["timing"]["until_settled"] is True
    assert record["derived"]["timing"]["until_settled"] is True
    (job,) = record["facts"]["cells"][0]["jobs"]
    ladder = (2, 3, 5, 7, 11, 17, 26, 39, 60)
    # How many sessions fit into the budget depends on the machine; the look follows from them.
    look = sum(count <= len(job["sessions"]) for count in ladder)
    assert look >= 1
    assert f"look {look} of 9 (after 2, 3, 5, 7, 11, 17, 26, 39, 60 sessions)" in job["stopped"]
