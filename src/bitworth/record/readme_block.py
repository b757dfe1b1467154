"""Blocks of rendered text inside a text that people write, between marks that name the record.

``<!-- bitworth:begin PATH -->`` opens a block whose values belong to the record at PATH, relative
to the text; with the word ``result`` behind it the block is what ``bitworth report`` writes, whole.
``<!-- bitworth:end -->`` closes it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from bitworth.errors import UserError
from bitworth.record.fences import closes, opens
from bitworth.record.render_markdown import render_result
from bitworth.record.schema import Record

_BEGIN = re.compile(r"^<!-- bitworth:begin (\S+)(?: (result))? -->$")
END_MARK = "<!-- bitworth:end -->"
#: Code within a line; a backtick that is escaped begins none.
_CODE = re.compile(r"(?<![\\`])(`+)(?!`)(?:(?!\1).)+\1(?!`)")
_MARK = re.compile(r"<!-- bitworth:(begin|end)\b")


@dataclass(frozen=True)
class Block:
    """A block.

    Attributes:
        record: the record's path, relative to the text.
        whole: whether it is exactly what ``bitworth report`` writes.
        first: number of its first line, from 1, below the mark that opens it.
        lines: its lines, without the marks.
    """

    record: str
    whole: bool
    first: int
    lines: tuple[str, ...]


def without_code(text: str) -> str:
    """``text`` with code emptied, line by line, so that marks shown as examples are none."""
    lines, fence = [], ""
    for row in text.split("\n"):
        if fence:
            fence = "" if closes(row, fence) else fence
            lines.append("")
        elif opened := opens(row):
            fence = opened
            lines.append("")
        else:
            lines.append(_CODE.sub(lambda found: " " * len(found[0]), row))
    return "\n".join(lines)


def find_blocks(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """The blocks of a text, and marks that have no other half: line and what is wrong."""
    found: list[Block] = []
    faults: list[tuple[int, str]] = []
    opened: tuple[int, str, bool] | None = None
    lines = text.split("\n")
    for number, line in enumerate(without_code(text).split("\n"), start=1):
        if not _MARK.search(line):
            continue
        begin = _BEGIN.match(line.strip())
        if begin and opened is None:
            opened = (number, unquote(begin[1]), begin[2] is not None)
        elif line.strip() == END_MARK and opened is not None:
            start, record, whole = opened
            found.append(Block(record, whole, start + 1, tuple(lines[start : number - 1])))
            opened = None
        else:
            faults.append((number, "opens or closes no block; a block is between begin and end"))
    if opened is not None:
        faults.append(
            (opened[0], f"the block of {opened[1]} is not closed; add {END_MARK} below it")
        )
    return found, faults


def render_block(record: Record, relative: str) -> str:
    """What stands between the marks of the record at ``relative``; ends with a new line."""
    return render_result(record, relative.removesuffix(".json") + ".svg")


def with_block(text: str, path: Path, record: Record, record_path: Path) -> str:
    """``text`` with the record's block: in place of that of an older record of the same folder.

    At the end where there is none.

    Args:
        text: the text.
        path: its file, to which the record's path is relative.
        record: the record.
        record_path: its file.

    Raises:
        UserError: several blocks could be meant, or a mark has no other half.
    """
    inside, faults = find_blocks(text)
    if faults:
        raise UserError(f"{path}:{faults[0][0]}: {faults[0][1]}")
    relative = Path(os.path.relpath(record_path.resolve(), path.parent.resolve())).as_posix()
    new = f"<!-- bitworth:begin {quote(relative)} result -->\n{render_block(record, relative)}"
    whole = [b for b in inside if b.whole]
    same = [b for b in whole if b.record == relative]
    same = same or [b for b in whole if Path(b.record).parent == Path(relative).parent]
    if len(same) > 1:
        told = ", ".join(str(b.first - 1) for b in same)
        raise UserError(f"{path}: lines {told} each begin a block of that folder; keep one of them")
    if not same:
        return f"{text.rstrip()}\n\n{new}{END_MARK}\n" if text.strip() else f"{new}{END_MARK}\n"
    lines = text.split("\n")
    before = lines[: same[0].first - 2]
    after = lines[same[0].first - 1 + len(same[0].lines) :]
    return "\n".join([*before, *new.rstrip("\n").split("\n"), *after])
