"""``bitworth``: all commands, and what the user sees when something is wrong."""

from __future__ import annotations

import sys

import typer

from bitworth.cli import (
    compare,
    diff,
    doctor,
    due,
    export,
    gemm,
    import_,
    lint,
    onnx,
    pr,
    rejudge,
    report,
    rerun,
    roofline,
    schema,
    screen,
    show,
    study,
)
from bitworth.errors import UserError

app = typer.Typer(
    name="bitworth",
    help=(
        "Is a narrower number format worth it for this model, on this engine, on this device? "
        "Bitworth builds the variants, measures them, and answers with a record that anyone can "
        "rerun."
    ),
    epilog="Begin with: bitworth doctor, then bitworth study MODEL.onnx --random-inputs",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(name="study")(study.study)
app.command(name="screen")(screen.screen)
app.command(name="roofline")(roofline.roofline)
app.command(name="gemm")(gemm.gemm)
app.command(name="compare")(compare.compare)
app.command(name="show")(show.show)
app.command(name="due")(due.due)
app.command(name="rerun")(rerun.rerun)
app.command(name="diff")(diff.diff)
app.command(name="rejudge")(rejudge.rejudge)
app.command(name="report")(report.report)
app.command(name="lint")(lint.lint)
app.command(name="import")(import_.import_)
app.add_typer(pr.app, name="pr")
app.command(name="schema")(schema.schema)
app.command(name="export")(export.export)
app.command(name="onnx")(onnx.onnx)
app.command(name="doctor")(doctor.doctor)


@app.callback()
def _common() -> None:
    """Bitworth."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write("bitworth: " + " ".join(str(error).split()) + "\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
