"""``bitworth lint``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bitworth import __version__
from bitworth.lint.finding import RULES
from bitworth.lint.formats import as_github, as_json, as_sarif, as_text
from bitworth.lint.hygiene import lint_public
from bitworth.lint.tree import lint_paths


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    GITHUB = "github"
    SARIF = "sarif"
    JSON = "json"


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="Records, texts rendered from them (.md, .html), or folders of both; by default "
            "the current folder.",
        ),
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="How findings are written.")
    ] = Format.TEXT,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Check every file of the given folders for what must not be public, too.",
        ),
    ] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and end.")] = False,
) -> None:
    """Check that records follow from their facts, and that texts say what their records say.

    Exit code 1 where a rule is broken. docs/lint.md has every rule with an example; a text can
    silence one at a line, with a reason: <!-- bitworth:allow BW103: the reason -->

    Examples:
        bitworth lint studies README.md
        bitworth lint --format sarif . > lint.sarif
        bitworth lint --public
    """
    if rules:
        for rule in RULES.values():
            sys.stdout.write(f"{rule.id} {rule.name}: {rule.asks}\n")
        return
    found, files = lint_paths(paths or [Path()])
    if public:
        for folder in (p for p in paths or [Path()] if p.is_dir()):
            more, count = lint_public(folder)
            found, files = sorted({*found, *more}), max(files, count)
    if format_ == Format.JSON:
        sys.stdout.write(as_json(found, files) + "\n")
    elif format_ == Format.SARIF:
        sys.stdout.write(as_sarif(found, __version__) + "\n")
    elif found:
        sys.stdout.write((as_github if format_ == Format.GITHUB else as_text)(found) + "\n")
    told = f"{len(found)} finding{'s' if len(found) != 1 else ''}" if found else "no findings"
    sys.stderr.write(f"{told} in {files} file{'s' if files != 1 else ''}\n")
    raise typer.Exit(1 if found else 0)
