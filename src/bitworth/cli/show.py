"""``bitworth show``."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli import options
from bitworth.cli.present import requirement, show_record
from bitworth.errors import UserError
from bitworth.record.address import read
from bitworth.record.claim_of import told
from bitworth.record.schema import Record
from bitworth.record.store import read_record


def show(
    record: Annotated[Path, typer.Argument(help="A record, a JSON file.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Say what one number says: the address that stands behind it in a text.",
        ),
    ] = None,
    require: options.Require = None,
    json: options.Json = False,
) -> None:
    """Print a record's tables and decisions again, or what one of its numbers says.

    Examples:
        bitworth show study.json
        bitworth show study.json --at /derived/cells/0/variants/3/comparison/time_ratio
    """
    options.check_require(require)
    found = read_record(record)
    if at is not None:
        _show_number(found, at, json)
        return
    show_record(found, json)
    raise typer.Exit(requirement(found, require))


def _show_number(record: Record, address: str, json: bool) -> None:
    try:
        found = told(record, read(address.removeprefix("bw:")))
    except LookupError as error:
        raise UserError(str(error)) from None
    if json:
        sys.stdout.write(json_module.dumps(asdict(found)) + "\n")
        return
    for name, value in asdict(found).items():
        if value not in ("", None):
            sys.stdout.write(f"{name:<9} {value}\n")
