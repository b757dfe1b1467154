"""``bitworth report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.atomic import write_atomic
from bitworth.errors import UserError
from bitworth.record.readme_block import with_block
from bitworth.record.store import read_record


def report(
    record: Annotated[Path, typer.Argument(help="A record, a JSON file.")],
    into: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file: its block of an older record of the same folder is replaced; "
            "without one the block goes to its end. Default: print the block.",
        ),
    ] = None,
) -> None:
    """Write a study's result for a README: decisions, tables and pictures, with addresses.

    'bitworth lint' checks what was written against the record.

    Examples:
        bitworth report studies/ocr/cpu/2026-01-01-abc.json --into README.md
    """
    found = read_record(record)
    if into is None:
        sys.stdout.write(with_block("", Path("README.md"), found, record))
        return
    try:
        text = into.read_text(encoding="utf-8") if into.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{into}: cannot be read as text ({error})") from None
    write_atomic(into, with_block(text, into, found, record).encode())
    sys.stderr.write(f"written: {into}\n")
