"""The README's figures are those of the committed record, and its commands exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bitworth.record.derive import derive
from bitworth.record.pictures import draw
from bitworth.record.render_html import render_html
from bitworth.record.render_markdown import render_markdown, render_result, time_picture
from bitworth.record.sections import pictured
from bitworth.record.store import read_record
from bitworth.study.config import check

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RECORDS = sorted(p for p in (ROOT / "studies").rglob("*.json"))


@pytest.mark.parametrize("mark", ["result", "result-amx"])
def test_the_result_comes_from_a_committed_record(mark: str) -> None:
    block = README.split(f"<!-- {mark}:begin -->\n")[1].split(f"<!-- {mark}:end -->")[0]
    svg = re.findall(r"\]\((studies/[^)]*\.svg)\)", block)[0]
    record = read_record((ROOT / svg).with_suffix(".json"))
    assert block == render_result(record, svg)


def test_committed_records_are_valid_and_rendered_text_is_current() -> None:
    for path in RECORDS:
        record = read_record(path)
        assert derive(record.facts).model_dump_json() == record.derived.model_dump_json()
        svg = path.with_suffix(".svg")
        assert path.with_suffix(".md").read_text() == render_markdown(record, svg.name)
        # Pictures depend on the drawing library's version; what they are drawn from does not.
        assert _undrawn(path.with_suffix(".html").read_text()) == _undrawn(
            render_html(record, draw(record))
        )
        assert all(c.engine in svg.read_text() for c in record.facts.cells)
        drawn = path.with_name(time_picture(svg.name))
        assert drawn.exists() == pictured(record)
        assert not drawn.exists() or "Where the time goes" in drawn.read_text()


def _undrawn(html: str) -> str:
    return re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)


def test_there_is_a_record_of_the_example() -> None:
    assert any("PP-OCRv6_rec_small" in path.parts for path in RECORDS)


def test_the_study_file_in_the_readme_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    config = check(tomllib.loads(text), Path("README.md"))
    assert [v.name for v in config.variant] == ["int8 conv (max)", "int8 conv (mse)"]


def test_every_command_in_the_readme_exists() -> None:
    from bitworth.cli.main import app

    known = {command.name for command in app.registered_commands}
    named = set(re.findall(r"^bitworth (\w+)", README, flags=re.MULTILINE))
    assert named
    assert named <= known
