"""``bitworth onnx``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.study.torch_onnx import export_subject


def onnx(
    study: Annotated[Path, typer.Argument(help="A study of a PyTorch module.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
) -> None:
    """Export a study's PyTorch module to ONNX with its sites' ids, at its first sample's sizes.

    A recipe whose groups go by names then applies to the file on every engine.

    Example:
        bitworth onnx examples/torch/study.toml -o model.onnx
    """
    found = export_subject(study, output)
    known = len(found.sites) + len(found.missing)
    sys.stdout.write(f"{output}: {len(found.sites)} of the module's {known} sites by their ids\n")
    for id_ in found.missing:
        sys.stdout.write(f"  not in the file: {id_}\n")
