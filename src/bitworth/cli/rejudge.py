"""``bitworth rejudge``."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bitworth.record.rejudge import rejudge as judge_again
from bitworth.record.render_rejudged import as_json, render
from bitworth.record.store import read_record
from bitworth.study.outputs import write_rejudged


def rejudge(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD...", help="Records, JSON files.")
    ],
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Store the new conclusions in the record and render its README, report and "
            "picture again; its facts stay as they are.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> None:
    """Judge old records by today's rules, and show which verdicts and decisions change.

    Nothing is measured: the samples of the record are judged again. What the study itself asked
    for, such as its precision, stays as it asked.

    Examples:
        bitworth rejudge studies/ocr/cpu/2026-01-01-abc.json
        bitworth rejudge studies/*/*/*.json --write
    """
    # All are read and judged before any is written.
    found = {path: judge_again(read_record(path)) for path in records}
    console = Console()
    if json:
        told = [{"record": str(path), **as_json(item)} for path, item in found.items()]
        sys.stdout.write(json_module.dumps(told) + "\n")
    for path, item in found.items():
        if not json:
            console.print(str(path), style="bold", markup=False, highlight=False)
            console.print(render(item))
        if write:
            write_rejudged(item.new, path)
            if not json:
                console.print(f"written: {path}", markup=False, highlight=False)
