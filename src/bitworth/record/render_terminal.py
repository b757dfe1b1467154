"""A record's verdict tables and decisions for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from bitworth.record.cells import Table, at
from bitworth.record.schema import Record
from bitworth.record.sections import answer
from bitworth.record.tables import decision_lines, verdict_table

# Words carry the meaning; a colour only helps to find them.
_STYLES = {
    "faster": "green",
    "slower": "red",
    "equivalent": "cyan",
    "not distinguishable": "yellow",
    "void": "magenta",
    "failed": "red",
    "not run": "dim",
    "ship": "bold green",
    "do not ship": "bold red",
    "undecided": "bold yellow",
}


@dataclass(frozen=True)
class FittedTable:
    """A table that is split by its columns' blocks where the screen is too narrow for it."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield as few tables as fit, each with the first column."""
        for part in _parts(self.table, console, options):
            yield part
            yield Text()
        for note in self.table.notes:
            yield Padding(Text(note.text), (0, 0, 0, 2), expand=False)


def render(record: Record) -> Group:
    """The verdict table and the decision of every cell, why, and the study's decision."""
    parts: list[RenderableType] = []
    cells = decision_lines(record)
    for i, (name, sentence) in enumerate(cells):
        parts += [
            Text(name.text, style="bold"),
            FittedTable(verdict_table(record, i)),
            _decision(sentence.text),
            *_why(record, i),
            Text(),
        ]
    if len(cells) != 1:
        parts += [Text("The study", style="bold"), _decision(answer(record).text)]
    return Group(*parts)


def _why(record: Record, i: int) -> Iterator[RenderableType]:
    """Why the variant that ships is as fast as it is; where none does, the fastest one."""
    cell = record.derived.cells[i]
    speed = {
        v.variant: 1 / v.comparison.time_ratio
        for v in cell.variants
        if v.comparison is not None and v.comparison.time_ratio
    }
    told = {r.variant: r for r in cell.reasons if r.sentences and r.variant in speed}
    fastest = max(told, key=lambda name: speed[name], default=None)
    chosen = cell.decision.variant if cell.decision.variant in told else fastest
    if chosen is None:
        return
    place = next(j for j, r in enumerate(cell.reasons) if r.variant == chosen)
    path = ("derived", "cells", i, "reasons", place)
    name = at(record, *path, "variant").text
    yield Text(f"Why {name} is {speed[chosen]:.3g} times as fast:")
    for k in range(len(told[chosen].sentences)):
        sentence = at(record, *path, "sentences", k).text
        yield Padding(Text(f"- {sentence}"), (0, 0, 0, 2), expand=False)


def _decision(sentence: str) -> Text:
    text = Text(sentence)
    for kind in ("do not ship", "undecided", "ship"):
        if sentence.startswith(kind):
            text.stylize(_STYLES[kind], 0, len(kind))
            break
    return text


def _parts(table: Table, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
    chosen: list[int] = []
    blocks = groupby(range(1, len(table.columns)), key=lambda k: table.columns[k].block)
    for _, block in blocks:
        indices = list(block)
        wider = _rich(table, [0, *chosen, *indices])
        width = Measurement.get(console, options.update(width=10_000), wider).maximum
        if chosen and width > options.max_width:
            yield _rich(table, [0, *chosen])
            chosen = []
        chosen += indices
    yield _rich(table, [0, *chosen])


def _rich(table: Table, indices: Sequence[int]) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for k in indices:
        column = table.columns[k]
        # A reason among the numbers may wrap; it must not push the numbers apart.
        longest = 30 if column.numeric else None
        shown.add_column(
            Text(column.title.text),
            justify="right" if column.numeric else "left",
            vertical="top",
            max_width=longest,
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*(Text(row[k].text, style=_STYLES.get(row[k].text, "")) for k in indices))
    return shown
