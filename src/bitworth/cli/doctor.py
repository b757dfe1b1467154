"""``bitworth doctor``."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bitworth.cli.options import ENGINES
from bitworth.study.doctor import EngineReport, examine


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List engines, versions, device, and what each engine does with each format, and why."""
    reports = examine(ENGINES)
    if json:
        sys.stdout.write(json_module.dumps([asdict(r) for r in reports]) + "\n")
        return
    console = Console()
    for report in reports:
        _print(console, report)


def _print(console: Console, report: EngineReport) -> None:
    if report.problem:
        console.print(f"{report.engine}: {report.problem}", markup=False)
        return
    title = f"{report.engine} {report.version} on {report.device}"
    table = Table("format", "state", "reason", title=title, title_justify="left")
    for row in report.formats:
        table.add_row(*row)
    console.print(table)
    for name, value in report.details.items():
        console.print(f"  {name}: {value}", markup=False, highlight=False)
