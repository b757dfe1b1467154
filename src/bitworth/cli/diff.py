"""``bitworth diff``."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bitworth.record.difference import difference
from bitworth.record.render_difference import render
from bitworth.record.store import read_record


def diff(
    old: Annotated[Path, typer.Argument(help="The older record, a JSON file.")],
    new: Annotated[Path, typer.Argument(help="The newer record.")],
    json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> None:
    """Say which answers changed from one record to another, and what could explain it.

    A difference is one of verdicts, or of intervals that have no point in common. Absolute times
    are not compared: they are of their own run alone.

    Examples:
        bitworth diff studies/ocr/cpu/2026-01-01-abc.json studies/ocr/cpu/2026-04-01-def.json
    """
    found = difference(read_record(old), read_record(new))
    if json:
        sys.stdout.write(json_module.dumps(asdict(found)) + "\n")
        return
    Console().print(render(found))
