"""``diff``, ``due``, ``rerun`` and ``pr`` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Bitworth = Callable[..., Any]


def test_a_record_runs_again_and_says_what_changed(
    bitworth: Bitworth, record: Path, tiny: Path, tmp_path: Path
) -> None:
    done = bitworth("rerun", record, "--output", tmp_path / "again")
    assert done.code == 0, done.err
    assert "Against the older record:" in done.out
    (new,) = (tmp_path / "again").rglob("*.json")
    before, after = (json.loads(p.read_text())["facts"] for p in (record, new))
    assert before["config"] == after["config"]
    assert before["command"] == after["command"]
    found = json.loads(bitworth("diff", record, new, "--json").out)
    assert found["same_subject"]
    assert found["environment"] == []
    # The model that was studied, and no other one of its name.
    tiny.write_bytes(tiny.read_bytes() + b"\x2a\x00")
    done = bitworth("rerun", record, "--output", tmp_path / "third")
    assert done.code == 2
    assert "is not the model that was studied" in done.err
    assert done.err.count("\n") == 1
    tiny.unlink()
    done = bitworth("rerun", record)
    assert done.code == 2
    assert "is not there" in done.err


def test_a_diff_of_one_record_is_empty(bitworth: Bitworth, record: Path) -> None:
    done = bitworth("diff", record, record)
    assert done.code == 0
    assert "Every decision is what it was." in done.out


def test_a_record_is_due_when_its_condition_is_met(bitworth: Bitworth, record: Path) -> None:
    done = bitworth("due", record.parents[2])
    assert done.code == 0, done.out
    assert "0 of 1 records are due" in done.out
    tree = json.loads(record.read_text())
    tree["facts"]["revisit"] = ["onnxruntime.version > 1.0", "tensorrt.version > 11.4"]
    record.write_text(json.dumps(tree))
    done = bitworth("due", record.parents[2])
    assert done.code == 1
    assert "onnxruntime.version > 1.0 (onnxruntime.version is " in done.out
    assert "1 conditions cannot be checked" in done.out
    (told,) = json.loads(bitworth("due", record.parents[2], "--json").out)
    assert told["is_due"]
    assert [c["met"] for c in told["checked"]] == ["met", "unknown"]
    done = bitworth("due", record.parents[2] / "none")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_a_pull_request_from_draft_to_finished(
    bitworth: Bitworth, record: Path, tmp_path: Path
) -> None:
    body = bitworth("pr", "draft", record).out
    event = tmp_path / "event.json"

    def validated(body: object, draft: bool) -> Any:
        event.write_text(json.dumps({"pull_request": {"body": body, "draft": draft}}))
        return bitworth("pr", "validate", "--event", event)

    assert validated(body, True).code == 0
    done = validated(body, False)
    assert done.code == 1
    assert "Contributor Self-Review" in done.out
    assert validated(body.replace("- [ ]", "- [x]"), False).code == 0
    assert validated(None, False).code == 1


@pytest.mark.parametrize(
    ("content", "told"), [(b"{", "is no JSON"), (b"[]", "no pull_request"), (b"{}", "no pull_req")]
)
def test_an_event_that_is_none(
    bitworth: Bitworth, tmp_path: Path, content: bytes, told: str
) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(content)
    done = bitworth("pr", "validate", "--event", event)
    assert done.code == 2
    assert told in done.err
    assert done.err.count("\n") == 1
