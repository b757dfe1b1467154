from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.errors import UserError
from bitworth.record import store
from bitworth.record.derive import derive
from bitworth.record.schema import Facts, Record
from bitworth.record.store import read_record, write_record


@pytest.fixture
def bulky(record: Record, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(store, "INLINE_SAMPLES_BYTES", 10_000)
    return record


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_record(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.stem in text or path.suffix == ".gz"
    return text


def edited(record: Record, path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    write_record(record, path)
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))
    return path


def test_small_record_is_one_file(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert write_record(record, path) == (path,)
    assert read_record(path) == record


def test_writing_what_was_read_gives_the_same_bytes(record: Record, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    write_record(record, first)
    write_record(read_record(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_bulky_samples_lie_beside_the_record(bulky: Record, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    written = write_record(bulky, path)
    assert [p.suffix for p in written] == [".json", ".gz"]
    assert b'samples_ns": []' in path.read_bytes()
    assert read_record(path) == bulky
    before = [p.read_bytes() for p in written]
    assert [p.read_bytes() for p in write_record(bulky, path)] == before


def test_corrupted_samples_are_refused(bulky: Record, tmp_path: Path) -> None:
    path, beside = write_record(bulky, tmp_path / "a.json")
    packed = bytearray(beside.read_bytes())
    packed[len(packed) // 2] ^= 1
    beside.write_bytes(bytes(packed))
    assert "do not match" in refusal(path)
    beside.unlink()
    assert "missing" in refusal(path)


def test_samples_of_another_folder_are_refused(bulky: Record, tmp_path: Path) -> None:
    def move(tree: dict[str, Any]) -> None:
        tree["samples_file"] = "../" + tree["samples_file"]

    inner = tmp_path / "inner"
    path = edited(bulky, inner / "a.json", move)
    for beside in inner.glob("*.gz"):
        beside.rename(tmp_path / beside.name)
    assert "missing" in refusal(path)


def test_newer_schema_is_refused(record: Record, tmp_path: Path) -> None:
    path = edited(record, tmp_path / "a.json", lambda tree: tree.update(schema_version=99))
    assert "newer" in refusal(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_truncated_record_is_refused(record: Record, tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.json"
    write_record(record, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "not a record" in refusal(path)


@pytest.mark.parametrize("text", ["[]", "7", "{}", '"x"', "\udcff"])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "not a record" in refusal(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    assert "no such record" in refusal(tmp_path / "nothing.json")
    folder = tmp_path / "folder.json"
    folder.mkdir()
    assert "not a record" in refusal(folder)


def test_unknown_and_wrong_keys_are_named(record: Record, tmp_path: Path) -> None:
    path = edited(record, tmp_path / "a.json", lambda tree: tree["facts"].update(extra=1))
    assert "facts.extra" in refusal(path)
    path = edited(record, tmp_path / "b.json", lambda tree: tree["facts"]["data"].update(seed="x"))
    assert "facts.data.seed" in refusal(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_json_lacks_are_refused(record: Record, tmp_path: Path, number: str) -> None:
    path = tmp_path / "a.json"
    write_record(record, path)
    text = path.read_text()
    assert '"eps": 0.005' in text
    path.write_text(text.replace('"eps": 0.005', f'"eps": {number}'))
    refusal(path)


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    assert "not a record" in refusal(path)


def test_granularity_survives_the_file(record: Record, tmp_path: Path) -> None:
    write_record(record, tmp_path / "a.json")
    read = read_record(tmp_path / "a.json")
    assert read.facts.cells[0].variants[1].recipe == record.facts.cells[0].variants[1].recipe


def test_folder_that_cannot_be_written_is_one_line(record: Record, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_record(record, blocked / "a.json")


def test_recomputing_gives_the_same_bytes(record: Record) -> None:
    assert derive(record.facts).model_dump_json() == record.derived.model_dump_json()


def test_recomputing_after_json_gives_the_same_bytes(record: Record) -> None:
    facts = Facts.model_validate_json(record.facts.model_dump_json())
    assert derive(facts).model_dump_json() == record.derived.model_dump_json()


def test_recomputing_what_was_stored_gives_the_same_bytes(record: Record, tmp_path: Path) -> None:
    write_record(record, tmp_path / "a.json")
    read = read_record(tmp_path / "a.json")
    assert derive(read.facts).model_dump_json() == read.derived.model_dump_json()
    assert derive(read.facts) == record.derived
