"""Run a request and show what came out, on the terminal or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from bitworth.errors import UserError
from bitworth.record.difference import difference
from bitworth.record.render_difference import render as render_difference
from bitworth.record.render_terminal import render
from bitworth.record.schema import Record
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import Interrupted, run_study

#: Exit code when a requirement was not met.
NOT_MET = 3
INTERRUPTED = 130


def run_and_show(
    request: StudyRequest, *, require: str | None, as_json: bool, against: Record | None = None
) -> int:
    """Run, show, and return the exit code; with ``against`` what changed from that record too."""
    told = Console(stderr=True)
    try:
        record, paths = run_study(request, Reporter(told, quiet=as_json))
    except Interrupted as stopped:
        where = f"; so far: {stopped.partial}" if stopped.partial else ""
        sys.stderr.write(f"bitworth: interrupted; {stopped.advice}{where}\n")
        return INTERRUPTED
    show_record(record, as_json)
    files = {
        "record": paths.record,
        "README": paths.readme,
        "report": paths.report,
        "picture": paths.picture,
        "time": paths.time_picture,
    }
    if not as_json:
        for name, path in files.items():
            if name == "time" and not path.exists():
                continue  # no engine gave a profile
            sys.stdout.write(f"{name:<8} {path}\n")
        if against is not None:
            sys.stdout.write("\nAgainst the older record:\n")
            Console().print(render_difference(difference(against, record)))
    return requirement(record, require)


def show_record(record: Record, as_json: bool) -> None:
    """Print a record."""
    if as_json:
        sys.stdout.write(record.model_dump_json() + "\n")
    else:
        Console().print(render(record))


def requirement(record: Record, require: str | None) -> int:
    """0, or ``NOT_MET`` with a line that says what is missing."""
    if require is None:
        return 0
    if require == "ship":
        met = record.derived.decision.kind == "ship"
        text = record.derived.decision.sentence
    else:
        verdicts = [
            s.comparison.verdict for c in record.derived.cells for s in c.variants if s.comparison
        ]
        met = "faster" in verdicts
        text = "no variant is faster in any cell"
    if not met:
        sys.stderr.write(f"bitworth: --require {require} is not met: {text}\n")
    return 0 if met else NOT_MET


def split_address(address: str) -> tuple[Path, str]:
    """``RECORD:VARIANT`` as a path and a name.

    Raises:
        UserError: there is no colon in it.
    """
    path, colon, name = address.rpartition(":")
    if not colon or not path or not name:
        raise UserError(f"{address}: write RECORD:VARIANT, such as study.json:'int8 all'")
    return Path(path), name
