"""``bitworth export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli.present import split_address
from bitworth.record.store import read_record
from bitworth.study.export import export_variant, find_variant


def export(
    address: Annotated[
        str, typer.Argument(metavar="RECORD:VARIANT", help="A record and one of its variants.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
    model: Annotated[
        Path | None, typer.Option(help="The original model, if it is not where it was studied.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Whose variant, when engines prefer different recipes.")
    ] = None,
) -> None:
    """Write a variant as an ONNX model for a plain engine, bit-equal to what was studied.

    Example:
        bitworth export studies/ocr/cpu/2026-01-01-abc.json:'int8 all' -o model.int8.onnx
    """
    path, name = split_address(address)
    record = read_record(path)
    found_engine, variant = find_variant(record, name, engine)
    export_variant(record, variant, model, output)
    sys.stdout.write(f"{output}: {name} as studied on {found_engine}\n")
