"""What lint does with a path: a record, a text, or a tree of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bitworth.errors import UserError
from bitworth.lint.cited_rules import lint_cited
from bitworth.lint.finding import Finding
from bitworth.lint.record_rules import lint_record
from bitworth.lint.silence import silences, without_silenced
from bitworth.lint.text_rules import lint_current, lint_rows, lint_values
from bitworth.lint.text_values import Part, html_parts, markdown_parts
from bitworth.record.address import shown
from bitworth.record.cited_store import is_cited, read_cited
from bitworth.record.pictures import Pictures
from bitworth.record.readme_block import Block, find_blocks, render_block, without_code
from bitworth.record.render_cited import cited_value, render_cited
from bitworth.record.render_html import render_html
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record
from bitworth.record.store import is_record, read_record

#: Folders that hold no text of the project.
_SKIPPED = (".git", ".venv", "node_modules", "__pycache__", ".bitworth")
_TEXTS = (".md", ".html")
#: The name of a study's record: one that was cut off is still one.
_STUDY = re.compile(r"\d{4}-\d\d-\d\d-\d{6}-[0-9a-f]{6}(?:\.partial)?")
#: What tells rendered text that has an address, and none in words about addresses.
_ADDRESSED = re.compile(r"<!-- bw:/\S+ -->|<[a-z]+[^<>]* data-bw=\"/")


def lint_paths(paths: Sequence[Path]) -> tuple[list[Finding], int]:
    """Everything that is wrong under ``paths``, in order, and how many files were checked.

    Raises:
        UserError: a path that is not there, or no file that lint knows.
    """
    found: list[Finding] = []
    count = 0
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        files = list(_files(path)) if path.is_dir() else [path]
        if not path.is_dir() and path.suffix not in (".json", *_TEXTS):
            raise UserError(f"{path}: lint reads records (.json) and texts (.md, .html)")
        for file in files:
            checked = _lint(file, named=not path.is_dir())
            if checked is not None:
                count += 1
                found += checked
    return sorted(dict.fromkeys(found)), count


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in _SKIPPED:
                yield from _files(path)
        elif path.suffix in (".json", *_TEXTS):
            yield path


def _lint(path: Path, named: bool) -> list[Finding] | None:
    """What is wrong with a file; None for one that is not lint's: another program's JSON."""
    if path.suffix == ".json":
        if is_cited(path):
            return lint_cited(path)
        ours = named or is_record(path) or _STUDY.fullmatch(path.stem)
        return lint_record(path) if ours else None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [Finding(str(path), 1, "BW001", f"cannot be read as text ({error})")]
    prose = without_code(text) if path.suffix == ".md" else text
    silenced, faults = silences(path, prose)
    return sorted([*without_silenced(path, _lint_text(path, text), silenced), *faults])


def _lint_text(path: Path, text: str) -> list[Finding]:
    html = path.suffix == ".html"
    beside = path.with_suffix(".json")
    if _ADDRESSED.search(text) and is_record(beside):
        return _lint_rendered(path, text, beside, html)
    if _ADDRESSED.search(text) and is_cited(beside):
        return _lint_cited(path, text, beside)
    if html:
        return [_recordless(path, text)] if _ADDRESSED.search(text) else []
    inside, faults = find_blocks(text)
    found = [Finding(str(path), line, "BW107", told) for line, told in faults]
    outside = without_code(_without(text, inside))
    if _ADDRESSED.search(outside):
        found.append(_recordless(path, outside))
    for block in inside:
        found += _lint_block(path, block)
    return found


def _lint_rendered(path: Path, text: str, beside: Path, html: bool) -> list[Finding]:
    """A text that lies beside its record is all rendered from it."""
    try:
        record = read_record(beside)
    except UserError as error:
        return [Finding(str(path), 1, "BW106", f"its record cannot be read: {error}")]
    parts = html_parts(text) if html else list(markdown_parts(text.split("\n")))
    found = _of_record(path, parts, record, html)
    if html:
        # Pictures depend on the version of the library that draws them.
        text, expected = _undrawn(text), render_html(record, Pictures("<svg></svg>", None))
        return [*found, *lint_current(path, text, _undrawn(expected))]
    return [*found, *lint_current(path, text, render_markdown(record, f"{path.stem}.svg"))]


def _of_record(path: Path, parts: Sequence[Part], record: Record, html: bool) -> list[Finding]:
    found = lint_values(path, parts, partial(shown, record), html)
    return [*found, *lint_rows(path, parts, record)]


def _lint_cited(path: Path, text: str, beside: Path) -> list[Finding]:
    """A text that lies beside a cited study is all rendered from it."""
    try:
        study = read_cited(beside)
    except UserError as error:
        return [Finding(str(path), 1, "BW106", f"its study cannot be read: {error}")]
    parts = list(markdown_parts(text.split("\n")))
    found = lint_values(path, parts, partial(cited_value, study), html=False)
    return [*found, *lint_current(path, text, render_cited(study))]


def _lint_block(path: Path, block: Block) -> list[Finding]:
    beside = path.parent / block.record
    try:
        record = read_record(beside)
    except UserError as error:
        return [Finding(str(path), block.first - 1, "BW106", str(error))]
    parts = list(markdown_parts(list(block.lines), block.first))
    found = _of_record(path, parts, record, html=False)
    if block.whole:
        expected = render_block(record, block.record)
        found += lint_current(path, "\n".join(block.lines), expected.rstrip("\n"), block.first)
    return found


def _recordless(path: Path, text: str) -> Finding:
    line = next(n for n, t in enumerate(text.split("\n"), start=1) if _ADDRESSED.search(t))
    told = (
        "has addresses of a record and names none; write it with 'bitworth report', or put "
        "<!-- bitworth:begin RECORD.json --> above it and <!-- bitworth:end --> below"
    )
    return Finding(str(path), line, "BW106", told)


def _without(text: str, inside: Sequence[Block]) -> str:
    """The text with the lines of its blocks emptied, so that line numbers stay."""
    lines = text.split("\n")
    for block in inside:
        for place in range(block.first - 1, block.first - 1 + len(block.lines)):
            lines[place] = ""
    return "\n".join(lines)


def _undrawn(html: str) -> str:
    """A page without its pictures."""
    return re.sub(r"<figure.*?</figure>|<svg.*?</svg>", "", html, flags=re.DOTALL)
