"""``bitworth show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli import options
from bitworth.cli.present import requirement, show_record
from bitworth.record.store import read_record


def show(
    record: Annotated[Path, typer.Argument(help="A record, a JSON file.")],
    require: options.Require = None,
    json: options.Json = False,
) -> None:
    """Print a record's tables and decisions again."""
    options.check_require(require)
    found = read_record(record)
    show_record(found, json)
    raise typer.Exit(requirement(found, require))
