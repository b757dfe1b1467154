"""Rules over text that was rendered from a record: Markdown, HTML, or a block in a README."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path

from bitworth.lint.finding import Finding
from bitworth.lint.owners import cell_of, names_owner, owner
from bitworth.lint.text_values import Part, Shown, Words, ends_with
from bitworth.record.render_markdown import escape
from bitworth.record.schema import Record

#: A number, and no part of a word such as int8 or L2.
_NUMBER = re.compile(
    r"(?<![\w.#/&-])[+-]?(?:\d[\d.,]*|\.\d+)"
    r"(?:(?=(?:x|ms|us|µs|ns|s|[kMG]?B|[kMG]iB)\b)|(?![\w/]*[A-Za-z_]))"
)
_PICTURE = re.compile(r"!?\[[^\]]*\]\([^)]*\)")
_TOLD = 60


def lint_values(
    path: Path, parts: Sequence[Part], value_of: Callable[[str], str], html: bool
) -> list[Finding]:
    """Values that are not the record's, addresses that lead nowhere, numbers without one.

    Args:
        path: the text's file.
        parts: the text.
        value_of: the text of the value at an address; raises LookupError where there is none.
        html: whether it is HTML, where nothing is escaped any more.
    """
    found: list[Finding] = []
    for part in parts:
        if isinstance(part, Words):
            found += _unaddressed(path, part.line, part.text)
            continue
        try:
            value = value_of(part.address)
        except LookupError:
            text = f"the record has nothing at {part.address}; render the text again"
            found.append(Finding(str(path), part.line, "BW102", text))
            continue
        rest = _rest(part, value, html)
        if rest is None:
            told = part.before.strip()[-_TOLD:]
            text = f"'{told}' stands where the record has '{value[:_TOLD]}' ({part.address})"
            found.append(Finding(str(path), part.line, "BW101", text))
        else:
            found += _unaddressed(path, part.line, rest)
    return found


def lint_current(path: Path, text: str, expected: str, first: int = 1) -> Iterator[Finding]:
    """The first line that is not what the record renders."""
    pairs = zip_longest(text.split("\n"), expected.split("\n"))
    for number, (have, want) in enumerate(pairs, start=first):
        if have == want:
            continue
        if want is None:
            told = "goes on where its record ends"
        elif have is None:
            told = f"ends where its record goes on with '{want.strip()[:_TOLD]}'"
        else:
            told = f"is not what its record renders: {_difference(have, want)}"
        yield Finding(
            str(path), number, "BW105", f"{told}; render it again (bitworth rejudge --write)"
        )
        return


def _rest(part: Shown, value: str, html: bool) -> str | None:
    """What stands in front of a value, without it; None where another value stands there."""
    if part.exact:
        return "" if part.before.strip() == value.strip() else None
    return ends_with(part.before, value if html else escape(value))


def _unaddressed(path: Path, line: int, text: str) -> Iterator[Finding]:
    plain = _PICTURE.sub("", text)
    for number in _NUMBER.findall(plain):
        told = f"'{number.strip()}' has no address; let the renderer write it, or take it out"
        yield Finding(str(path), line, "BW103", told)


def lint_rows(path: Path, parts: Sequence[Part], record: Record) -> Iterator[Finding]:
    """Rows that hold values of several variants, or columns under the name of another one."""
    head: dict[int, tuple[int, str] | None] = {}
    table: int | None = None
    for (number, _), group in groupby(
        (p for p in parts if isinstance(p, Shown) and p.table is not None),
        key=lambda p: (p.table, p.row),
    ):
        row = list(group)
        if number != table:
            table, head = number, {}
        named = {v.column: owner(record, v.address) for v in row if names_owner(v.address)}
        if 0 not in named and len(named) == len(row):
            head = named
            continue
        for value in row:
            want = named.get(0, head.get(value.column))
            mine = owner(record, value.address)
            if want is None:
                continue
            told = None
            if mine is not None and mine != want:
                told = f"a value of '{mine[1]}' stands in a row or column of '{want[1]}'"
            elif cell_of(value.address) not in (None, want[0]):
                told = f"a value of another cell stands in a row of '{want[1]}'"
            if told is not None:
                yield Finding(str(path), value.line, "BW104", f"{told} ({value.address})")
                break


def _difference(have: str, want: str) -> str:
    matcher = difflib.SequenceMatcher(None, have[:2000], want[:2000], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            return f"'{have[max(0, a - 12) : b + 12]}' for '{want[max(0, c - 12) : d + 12]}'"
    return "it is longer"
