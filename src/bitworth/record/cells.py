"""Tables of text whose every value knows its address in the record."""

from __future__ import annotations

from dataclasses import dataclass

from bitworth.record.address import key_pointer, pointer, shown
from bitworth.record.schema import Record

#: Keys and indices from the record's root.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Span:
    """A piece of text.

    Attributes:
        text: as every output shows it, before escaping.
        pointer: JSON pointer of the value that it shows; None for words that are no value.
    """

    text: str
    pointer: str | None = None


@dataclass(frozen=True)
class Cell:
    """A line of text: one cell of a table, a title, a note or a sentence."""

    spans: tuple[Span, ...] = ()

    @property
    def text(self) -> str:
        """The whole text without addresses."""
        return "".join(span.text for span in self.spans)

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True)
class Column:
    """A column's title; ``block`` names the columns that a narrow screen keeps together."""

    title: Cell
    numeric: bool = False
    block: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Raises ValueError when a row has another number of cells than there are columns.

    Attributes:
        title: what it shows.
        columns: from left to right; the first names the row.
        rows: cells by row.
        notes: sentences below it.
    """

    title: Cell
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells for {len(self.columns)} columns")


#: A cell that says that there is nothing to say.
NONE = Cell((Span("–"),))


def at(record: Record, *path: str | int) -> Cell:
    """The value at ``path``, written as ``address.shown`` writes it.

    Raises:
        LookupError: nothing lies there.
    """
    address = pointer(*path)
    return Cell((Span(shown(record, address), address),))


def key(record: Record, *path: str | int) -> Cell:
    """The last key of ``path`` itself, such as the name of a metric.

    Raises:
        LookupError: nothing lies there.
    """
    address = key_pointer(*path)
    return Cell((Span(shown(record, address), address),))


def line(*parts: Cell | str) -> Cell:
    """Words and values one after another."""
    spans: list[Span] = []
    for part in parts:
        spans += (Span(part),) if isinstance(part, str) else part.spans
    return Cell(tuple(spans))


def joined(separator: str, parts: list[Cell]) -> Cell:
    """``parts`` with ``separator`` between them."""
    mixed: list[Cell | str] = []
    for part in parts:
        mixed += [separator, part] if mixed else [part]
    return line(*mixed)


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns by title; one that starts with ``>`` holds numbers."""
    return tuple(Column(line(t.removeprefix(">")), numeric=t.startswith(">")) for t in titles)
