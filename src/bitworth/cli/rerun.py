"""``bitworth rerun``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli import options
from bitworth.cli.present import run_and_show
from bitworth.record.store import read_record
from bitworth.study.rerun import rerun_request


def rerun(
    record: Annotated[Path, typer.Argument(help="A record, a JSON file.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of its study file; by default as its command names it."),
    ] = None,
    other_model: Annotated[
        bool, typer.Option("--other-model", help="Study it though the model's hash differs.")
    ] = False,
    output: options.Output = Path("studies"),
    json: options.Json = False,
) -> None:
    """Run a record's study again, from its own configuration and seed, and say what changed.

    Examples:
        bitworth rerun studies/ocr/cpu/2026-01-01-abc.json
    """
    old = read_record(record)
    request = rerun_request(old, record, folder, output, other_model)
    raise typer.Exit(run_and_show(request, require=None, as_json=json, against=old))
