"""The values in rendered text with the addresses that stand behind them, and the words between."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser

from bitworth.record.address import read
from bitworth.record.fences import closes, opens

_ADDRESS = re.compile(r"<!-- bw:(\S+) -->")
_COMMENT = re.compile(r"<!--.*?-->")
#: Elements of HTML whose text is no sentence.
_SILENT = ("style", "script", "svg", "title", "head")


@dataclass(frozen=True)
class Shown:
    """A value as a text shows it.

    Attributes:
        line: from 1.
        before: the text in front of its address, back to the value before it.
        address: JSON pointer of the value.
        table: number of the table that it stands in; None: in none.
        row: number of the row.
        column: in that row, from 0.
        exact: whether ``before`` is the value and nothing else.
    """

    line: int
    before: str
    address: str
    table: int | None = None
    row: int = 0
    column: int = 0
    exact: bool = False


@dataclass(frozen=True)
class Words:
    """Text that has no address."""

    line: int
    text: str


Part = Shown | Words


def markdown_parts(lines: list[str], first: int = 1) -> Iterator[Part]:
    """The parts of Markdown; ``first`` is the number of the first line."""
    fence = ""
    code: str | None = None
    fenced: list[str] = []
    tables, inside = 0, False
    for number, line in enumerate(lines, start=first):
        if fence:
            if closes(line, fence):
                fence, code = "", "\n".join(fenced)
            else:
                fenced.append(line)
            continue
        if begun := opens(line):
            if code is not None:
                yield Words(number - 1, code)
                code = None
            fence, fenced = begun, []
            continue
        if code is not None:
            # The address of code stands below it: a comment within would be shown.
            found = _ADDRESS.findall(line)
            if found:
                yield from (Shown(number, code, read(a), exact=True) for a in found)
                code = None
                continue
            yield Words(number - 1, code)
            code = None
        if line.startswith("|") and not inside:
            tables += 1
        inside = line.startswith("|")
        yield from _line_parts(line, number, tables if inside else None)
    if code is not None:
        yield Words(first + len(lines) - 1, code)


def _line_parts(line: str, number: int, table: int | None) -> Iterator[Part]:
    start, column = 0, -1
    for found in _ADDRESS.finditer(line):
        before = line[start : found.start()]
        column += _bars(before) if table is not None else 0
        yield Shown(number, before, read(found[1]), table, number, max(column, 0))
        start = found.end()
    rest = _COMMENT.sub("", line[start:])
    if rest.strip():
        yield Words(number, rest)


def _bars(text: str) -> int:
    return len(re.findall(r"(?<!\\)\|", text))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[Part] = []
        self._silent = 0
        self._address: str | None = None
        self._depth = 0
        self._text = ""
        self._tables = self._rows = 0
        self._in_row = False
        self._column = -1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag == "table":
            self._tables += 1
        elif tag == "tr":
            self._rows += 1
            self._in_row, self._column = True, -1
        elif tag in ("td", "th"):
            self._column += 1
        given = dict(attrs).get("data-bw")
        if self._address is not None:
            self._depth += 1
        elif given is not None:
            self._address, self._depth, self._text = read(given), 0, ""

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "tr":
            self._in_row = False
        if self._address is None:
            return
        if self._depth:
            self._depth -= 1
            return
        table = self._tables if self._in_row else None
        self.parts.append(
            Shown(
                self.getpos()[0], self._text, self._address, table, self._rows,
                max(self._column, 0), exact=True,
            )
        )  # fmt: skip
        self._address = None

    def handle_data(self, data: str) -> None:
        if self._address is not None:
            self._text += data
        elif not self._silent and data.strip():
            self.parts.append(Words(self.getpos()[0], data))


def html_parts(text: str) -> list[Part]:
    """The parts of an HTML page; pictures, styles and scripts are no text."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.parts


def ends_with(before: str, expected: str) -> str | None:
    """``before`` without the value at its end; None where it ends with another one."""
    if not before.endswith(expected):
        return None
    rest = before[: len(before) - len(expected)]
    if expected[:1].isalnum() and re.search(r"[\w.,]$|(?:^|[\s(|])[+\-\u2212]$", rest):
        return None  # the end of a longer number or word, or one with another sign
    return rest
