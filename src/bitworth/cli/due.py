"""``bitworth due``."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitworth.cli.options import ENGINES
from bitworth.study.doctor import examine
from bitworth.study.due import Due, due_records, known_here


def due(
    folder: Annotated[
        Path, typer.Argument(help="Folder with records; of each subject on a machine the newest.")
    ] = Path("studies"),
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the records that this machine gives a reason to look at again.

    A record says when: a newer engine, a format that became native, an instruction set that its
    machine had not. Exit code 1 where one is due.

    Examples:
        bitworth due studies
    """
    found = due_records(folder, known_here(examine(ENGINES)))
    if json:
        told = [{**asdict(d), "path": str(d.path), "is_due": d.is_due} for d in found]
        sys.stdout.write(json_module.dumps(told) + "\n")
    else:
        _print(found)
    raise typer.Exit(1 if any(d.is_due for d in found) else 0)


def _print(found: list[Due]) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("record", "answer", "look again because"):
        table.add_column(title, overflow="fold")
    for one in found:
        if not one.is_due:
            continue
        reasons = [f"{c.condition} ({c.why})" for c in one.checked if c.met == "met"]
        reasons += [one.stale] if one.stale else []
        table.add_row(Text(str(one.path)), Text(one.decision), Text("\n".join(reasons)))
    if table.row_count:
        console.print(table)
    rest = sum(not one.is_due for one in found)
    open_ = sum(c.met == "unknown" for one in found for c in one.checked)
    told = f"{table.row_count} of {len(found)} records are due"
    told += f"; {open_} conditions cannot be checked on this machine" if open_ else ""
    console.print(Text(told if rest or open_ else f"{told}."))
