"""``bitworth import``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.atomic import write_atomic
from bitworth.lint.cited_rules import lint_cited
from bitworth.lint.formats import as_text
from bitworth.record.cited_store import read_cited, written_cited
from bitworth.record.render_cited import render_cited


def import_(
    study: Annotated[
        Path, typer.Argument(help="A published study as data: see studies/cited for examples.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the study and its README.")
    ] = Path("studies/cited"),
) -> None:
    """Take in a study that others published, with every number marked as cited.

    Its claims must follow from its own numbers: what does not is told, and nothing is written.
    Exit code 1 then.

    Examples:
        bitworth import hrnet.json
    """
    found = read_cited(study)
    faults = [f for f in lint_cited(study) if f.rule != "BW008"]
    if faults:
        sys.stdout.write(as_text(faults) + "\n")
        sys.stderr.write("nothing was written: say what the numbers say, or leave the claim out\n")
        raise typer.Exit(1)
    text = render_cited(found)
    write_atomic(output / f"{found.id}.json", written_cited(found))
    write_atomic(output / f"{found.id}.md", text.encode())
    sys.stderr.write(f"written: {output / found.id}.json and .md\n")
