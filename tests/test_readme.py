"""The README's figures are those of the committed record, and its commands exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from bitworth.record.cited_store import is_cited
from bitworth.record.readme_block import find_blocks
from bitworth.record.render_markdown import time_picture
from bitworth.record.sections import pictured
from bitworth.record.store import read_record
from bitworth.study.config import check

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RECORDS = sorted(p for p in (ROOT / "studies").rglob("*.json"))


def test_the_readme_shows_committed_records() -> None:
    """What stands in them is checked with every other text, in tests/lint."""
    blocks, faults = find_blocks(README)
    assert faults == []
    assert [b.whole for b in blocks] == [True, True]
    assert all((ROOT / b.record) in RECORDS for b in blocks)


def test_every_record_has_its_pictures() -> None:
    for path in RECORDS:
        if is_cited(path):
            continue
        record = read_record(path)
        svg = path.with_suffix(".svg")
        assert all(c.engine in svg.read_text() for c in record.facts.cells)
        drawn = path.with_name(time_picture(svg.name))
        assert drawn.exists() == pictured(record)
        assert not drawn.exists() or "Where the time goes" in drawn.read_text()


def test_there_is_a_record_of_the_example() -> None:
    assert any("PP-OCRv6_rec_small" in path.parts for path in RECORDS)


def test_the_study_file_in_the_readme_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    config = check(tomllib.loads(text), Path("README.md"))
    assert [v.name for v in config.variant] == ["int8 conv (max)", "int8 conv (mse)"]


def test_every_command_in_the_readme_exists() -> None:
    from bitworth.cli.main import app

    known = {c.name for c in (*app.registered_commands, *app.registered_groups)}
    named = set(re.findall(r"^bitworth (\w+)", README, flags=re.MULTILINE))
    assert named
    assert named <= known
