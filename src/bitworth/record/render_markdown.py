"""A record as the README of its study, every value with its address behind it."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import quote

from bitworth.record.address import written
from bitworth.record.cells import Cell, Span, Table, line
from bitworth.record.schema import Record
from bitworth.record.sections import Section, answer, pictured, sections, title
from bitworth.record.tables import decision_lines, verdict_table

_ALT = "Speed-up against loss, with intervals, of every variant that was timed"
_TIME_ALT = "Where the time goes: a stacked bar for each plan, by kind of work"


def render_markdown(record: Record, svg_name: str) -> str:
    """The README of a study; ``svg_name`` is the picture's file beside it."""
    parts = [
        f"# {markdown_cell(title(record))}",
        markdown_cell(answer(record)),
        f"![{_ALT}]({quote(svg_name)})",
        *(_section(section, svg_name) for section in sections(record)),
    ]
    return "\n\n".join(parts) + "\n"


def render_result(record: Record, svg_name: str) -> str:
    """What a README shows of a study: decisions, picture, a narrow table an engine."""
    tables = (verdict_table(record, i) for i in range(len(record.derived.cells)))
    decisions = tuple(line(cell, ": ", text) for cell, text in decision_lines(record))
    parts = [
        markdown_items(decisions) if decisions else markdown_cell(answer(record)),
        f"![{_ALT}]({quote(svg_name)})",
        *(markdown_table(narrow(table)) for table in tables),
        *([_time_picture(svg_name)] if pictured(record) else []),
    ]
    return "\n\n".join(parts) + "\n"


def narrow(table: Table) -> Table:
    """The columns that carry the answer: verdict, speed-up, losses and the plan's size."""
    titles = ("variant", "verdict", "speed-up", "loss", "plan")
    kept = [n for n, column in enumerate(table.columns) if column.title.text.startswith(titles)]
    named = [
        # A loss stands beside its score in the whole table; alone it needs the metric's name.
        replace(c, title=line(f"{c.block} ", c.title)) if c.title.text.startswith("loss") else c
        for c in (table.columns[n] for n in kept)
    ]
    rows = tuple(tuple(row[n] for n in kept) for row in table.rows)
    return Table(table.title, tuple(named), rows)


def escape(text: str) -> str:
    """``text`` such that GitHub shows it as it is, in a table too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$#])", r"\\\1", text)
    # Within a word an underscore is no mark-up, and names are full of them.
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)
    return re.sub(r"^([-+])(?=\s)", r"\\\1", text)


def address_comment(address: str) -> str:
    """The comment that stands right behind a value."""
    return f"<!-- bw:{written(address)} -->"


def time_picture(svg_name: str) -> str:
    """The file of the picture of where the time goes, beside the one of speed against loss."""
    return svg_name.removesuffix(".svg") + ".time.svg"


def _time_picture(svg_name: str) -> str:
    return f"![{_TIME_ALT}]({quote(time_picture(svg_name))})"


def _section(section: Section, svg_name: str) -> str:
    parts = [f"## {section.title}"]
    if section.lines:
        parts.append(markdown_items(section.lines))
    if section.picture:
        parts.append(_time_picture(svg_name))
    parts += [markdown_table(table) for table in section.tables]
    parts += [_folded(table) for table in section.folded]
    if section.code is not None:
        parts.append(markdown_code(section.code))
    return "\n\n".join(parts) if len(parts) > 1 else f"{parts[0]}\n\nNone."


def markdown_table(table: Table, titled: bool = True) -> str:
    """A table with its title and its notes."""
    lines = [f"**{markdown_cell(table.title)}**", ""] if titled and table.title else []
    if table.rows:
        lines += [
            _row([column.title for column in table.columns]),
            "| " + " | ".join("--:" if c.numeric else "---" for c in table.columns) + " |",
            *(_row(row) for row in table.rows),
        ]
    if table.notes:
        lines += ["", markdown_items(table.notes)] if table.rows else [markdown_items(table.notes)]
    return "\n".join(lines)


def _folded(table: Table) -> str:
    summary = f"<summary>{markdown_cell(table.title)}</summary>"
    return f"<details>{summary}\n\n{markdown_table(table, titled=False)}\n\n</details>"


def markdown_items(cells: tuple[Cell, ...]) -> str:
    """A line each."""
    return "\n".join(f"- {markdown_cell(cell)}" for cell in cells)


def _row(cells: list[Cell] | tuple[Cell, ...]) -> str:
    return "| " + " | ".join(markdown_cell(cell) for cell in cells) + " |"


def markdown_cell(cell: Cell) -> str:
    """Words and values, each value with its address behind it."""
    return "".join(_span(span) for span in cell.spans)


def _span(span: Span) -> str:
    text = escape(span.text)
    return text if span.pointer is None else text + address_comment(span.pointer)


def markdown_code(cell: Cell) -> str:
    """A fenced block; its address stands below it, as a comment within would be shown."""
    longest = max((len(run) for run in re.findall("`+", cell.text)), default=0)
    fence = "`" * max(3, longest + 1)
    comments = "".join(address_comment(s.pointer) for s in cell.spans if s.pointer is not None)
    return f"{fence}sh\n{cell.text}\n{fence}\n{comments}"
