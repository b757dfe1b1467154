"""``bitworth pr``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.errors import UserError
from bitworth.record.pull_request import draft as draft_text
from bitworth.record.pull_request import missing
from bitworth.record.store import read_record

app = typer.Typer(help="The text of a pull request that brings in a study.", no_args_is_help=True)


@app.command()
def draft(record: Annotated[Path, typer.Argument(help="A record, a JSON file.")]) -> None:
    """Print a pull request's text from a record; its self-review is left to its author.

    Examples:
        bitworth pr draft studies/ocr/cpu/2026-01-01-abc.json | gh pr create --draft --body-file -
    """
    sys.stdout.write(draft_text(read_record(record)))


@app.command()
def validate(
    event: Annotated[
        Path,
        typer.Option(help="A GitHub event with a pull request: $GITHUB_EVENT_PATH in a workflow."),
    ],
) -> None:
    """Say what the text of a pull request lacks; exit code 1 then.

    Comments do not count, and drafts need no self-review.

    Examples:
        bitworth pr validate --event "$GITHUB_EVENT_PATH"
    """
    try:
        tree = json.loads(event.read_bytes())
    except OSError as error:
        raise UserError(f"{event}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{event}: is no JSON ({error}); give a GitHub event") from None
    pull = tree.get("pull_request") if isinstance(tree, dict) else None
    if not isinstance(pull, dict):
        raise UserError(f"{event}: has no pull_request; run it on pull_request events")
    body = pull.get("body")
    told = missing(body if isinstance(body, str) else "", bool(pull.get("draft")))
    for line in told:
        sys.stdout.write(f"{line}\n")
    raise typer.Exit(1 if told else 0)
