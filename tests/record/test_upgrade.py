"""Records of every older schema version are read, keep their facts, and get what came later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.errors import UserError
from bitworth.record.derive import derive
from bitworth.record.schema import SCHEMA_VERSION, Record
from bitworth.record.store import (
    canonical,
    facts_sha256,
    is_sealed,
    read_record,
    read_tree,
    replace_derived,
)

Tree = dict[str, Any]


def to_6(tree: Tree) -> None:
    """Of ONNX models alone, with one limit for what is the same result."""
    del tree["facts"]["subject"]["kind"], tree["facts"]["subject"]["base"]
    for cell in tree["facts"]["cells"]:
        if cell["free_win_search"] is not None:
            del cell["free_win_search"]["same_result"]
    tree["facts_sha256"] = facts_sha256(tree["facts"])


def to_5(tree: Tree) -> None:
    """Without the hash of the facts, and the version of what a recipe's hash is of."""
    del tree["facts_sha256"]
    for cell in tree["facts"]["cells"]:
        for variant in cell["variants"]:
            del variant["recipe_identity"]


def to_4(tree: Tree) -> None:
    """Without the search for free wins, and options of variants."""
    for cell in tree["facts"]["cells"]:
        del cell["free_win_search"], cell["free_win_jobs"]
        for variant in cell["variants"]:
            del variant["options"]
        for job in cell["jobs"]:
            del job["items"]
    for cell in tree["derived"]["cells"]:
        del cell["free_wins"]


def to_3(tree: Tree) -> None:
    """With the baseline's profile alone, and nothing that follows from more."""
    for cell in tree["facts"]["cells"]:
        del cell["limits"], cell["work"]
        profiles = [variant.pop("profile") for variant in cell["variants"]]
        cell["profile"] = [
            {k: v for k, v in layer.items() if k not in ("format", "calls", "inputs")}
            for layer in (profiles[0] or {"layers": []})["layers"]
        ]
    for cell in tree["derived"]["cells"]:
        del cell["splits"], cell["conversions"], cell["reasons"], cell["outlooks"]


def to_2(tree: Tree) -> None:
    """With less to say of recipes."""
    for cell in tree["facts"]["cells"]:
        for variant in cell["variants"]:
            for name in ("opset", "scalings", "rescaled", "everywhere", "kept", "overflow"):
                del variant[name]


def to_1(tree: Tree) -> None:
    """Without the constants of the verdicts, clocks, modes and error rates."""
    tree["derived"]["rules_version"] = 1
    del tree["derived"]["timing"], tree["facts"]["timing"]["until_settled"]
    for cell in tree["facts"]["cells"]:
        del cell["streams"], cell["batch"], cell["quantile"]
        for job in cell["jobs"]:
            for session in job["sessions"]:
                del session["clocks"], session["not_observable"]
    for cell in tree["derived"]["cells"]:
        del cell["cycles"], cell["latency"]
        made = [c for verdict in cell["verdicts"] for c in verdict["comparisons"]]
        made += [v[name] for v in cell["variants"] for name in ("comparison", "against_best")]
        for comparison in (m for m in made if m is not None):
            del comparison["alpha"], comparison["widened_ratio"]


STEPS: dict[int, Callable[[Tree], None]] = {6: to_6, 5: to_5, 4: to_4, 3: to_3, 2: to_2, 1: to_1}


def older(record: Record, version: int) -> Tree:
    """The record as that version of the schema had it."""
    tree: Tree = json.loads(record.model_dump_json())
    for step in range(SCHEMA_VERSION - 1, version - 1, -1):
        STEPS[step](tree)
    tree["schema_version"] = version
    return tree


def stored(tree: Tree, folder: Path) -> Path:
    path = folder / "old.json"
    path.write_bytes(canonical(tree))
    return path


def test_there_is_a_step_for_every_version() -> None:
    assert set(STEPS) == set(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("version", sorted(STEPS))
@pytest.mark.parametrize("which", ["record", "rival_record", "partial_record"])
def test_an_older_record_is_read_and_judged_again(
    which: str, version: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    record: Record = request.getfixturevalue(which)
    tree = older(record, version)
    path = stored(tree, tmp_path)
    found = read_record(path)
    assert found.schema_version == SCHEMA_VERSION
    for cell, was in zip(found.facts.cells, record.facts.cells, strict=True):
        assert [j.sessions for j in cell.jobs] == [j.sessions for j in was.jobs]
        assert [v.quality for v in cell.variants] == [v.quality for v in was.variants]
    replace_derived(derive(found.facts), path)
    again = read_tree(path)
    assert again["schema_version"] == SCHEMA_VERSION
    # From now on its facts have a hash, which holds.
    assert again["facts_sha256"] == facts_sha256(again["facts"])
    assert is_sealed(again)
    assert read_record(path).facts == found.facts


@pytest.mark.parametrize("version", sorted(STEPS))
def test_what_is_of_no_older_version_is_refused_in_it(
    record: Record, version: int, tmp_path: Path
) -> None:
    """A key that no version has is refused, whatever the version says."""
    tree = older(record, version)
    tree["facts"]["verdict_by_hand"] = "faster"
    with pytest.raises(UserError, match="verdict_by_hand"):
        read_record(stored(tree, tmp_path))


def test_a_broken_hash_stays_broken(record: Record, tmp_path: Path) -> None:
    """Judging a record again gives no new hash to facts that were changed."""
    tree: Tree = json.loads(record.model_dump_json())
    tree["facts"]["environment"]["cores"] = 64
    path = stored(tree, tmp_path)
    assert not is_sealed(read_tree(path))
    replace_derived(derive(read_record(path).facts), path)
    assert not is_sealed(read_tree(path))
