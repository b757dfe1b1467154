"""``lint``, ``report``, ``import`` and ``schema`` as a user runs them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Bitworth = Callable[..., Any]
ROOT = Path(__file__).parents[2]
CITED = ROOT / "studies" / "cited"
PUBLISHED = ROOT / "tests" / "lint" / "published"


def test_a_study_is_sound_as_it_was_written(bitworth: Bitworth, record: Path) -> None:
    done = bitworth("lint", record.parent)
    assert (done.code, done.out) == (0, "")
    assert done.err == "no findings in 3 files\n"


def test_a_report_is_written_replaced_and_sound(
    bitworth: Bitworth, record: Path, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Mine\n\nWords.\n")
    for _ in range(2):
        assert bitworth("report", record, "--into", readme).code == 0
        text = readme.read_text()
        assert text.startswith("# Mine\n\nWords.\n\n<!-- bitworth:begin studies/")
        assert text.count("bitworth:begin") == 1
        assert bitworth("lint", readme).code == 0
    printed = bitworth("report", record)
    assert printed.out.startswith("<!-- bitworth:begin ")
    readme.write_text(text.replace("<!-- bitworth:end -->", ""))
    done = bitworth("report", record, "--into", readme)
    assert done.code == 2
    assert "is not closed" in done.err
    assert done.err.count("\n") == 1


def test_findings_are_lines_and_exit_code_1(bitworth: Bitworth, record: Path) -> None:
    text = record.with_suffix(".md")
    shown = re.findall(r"(\S+)<!-- bw:/facts/environment/cores -->", text.read_text())[0]
    text.write_text(text.read_text().replace(f"{shown}<!-- bw:/facts/env", "77<!-- bw:/facts/env"))
    done = bitworth("lint", record.parent)
    assert done.code == 1
    assert re.match(rf"{re.escape(str(text))}:\d+: BW101 value-differs: ", done.out)
    told = json.loads(bitworth("lint", "--format", "json", text).out)
    assert told["files"] == 1
    assert told["findings"][0]["rule"] == "BW101"
    assert bitworth("lint", "--format", "github", text).out.startswith("::error file=")
    assert json.loads(bitworth("lint", "--format", "sarif", text).out)["version"] == "2.1.0"


def test_the_rules_are_listed(bitworth: Bitworth) -> None:
    done = bitworth("lint", "--rules")
    assert done.code == 0
    assert "BW103 number-unaddressed: " in done.out


def test_a_path_that_is_none_is_one_line(bitworth: Bitworth, tmp_path: Path) -> None:
    done = bitworth("lint", tmp_path / "none")
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_published_study_is_taken_in_when_it_is_sound(bitworth: Bitworth, tmp_path: Path) -> None:
    source = tmp_path / "theirs.json"
    shutil.copy(CITED / "timm_hrnet.json", source)
    done = bitworth("import", source, "-o", tmp_path / "cited")
    assert done.code == 0, done.err
    assert bitworth("lint", tmp_path / "cited").code == 0
    done = bitworth("import", PUBLISHED / "timm_hrnet.cited", "-o", tmp_path / "other")
    assert done.code == 1
    assert "BW205 range-uncovered" in done.out
    assert not (tmp_path / "other").exists()


def test_the_committed_schema_is_current(bitworth: Bitworth) -> None:
    done = bitworth("schema")
    assert done.code == 0
    assert done.out == (ROOT / "docs" / "record.schema.json").read_text()
