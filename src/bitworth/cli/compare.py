"""``bitworth compare``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli import options
from bitworth.cli.present import run_and_show
from bitworth.study.config import with_until_settled
from bitworth.study.defaults import comparison_study
from bitworth.study.request import StudyRequest


def compare(
    base: Annotated[Path, typer.Argument(help="The float original, an ONNX model.")],
    candidates: Annotated[
        list[Path], typer.Argument(help="Models that were quantized elsewhere, ONNX.")
    ],
    holdout: options.Holdout = None,
    random_inputs: options.RandomInputs = False,
    shape: options.Shape = None,
    engine: options.Engine = None,
    budget: options.Budget = None,
    until_settled: options.UntilSettled = False,
    max_rel_l2: options.MaxRelL2 = None,
    output: options.Output = Path("studies"),
    require: options.Require = None,
    json: options.Json = False,
) -> None:
    """Judge models that were quantized elsewhere, by the same rules as a study's own variants.

    Example:
        bitworth compare model.onnx model.int8.onnx --holdout holdout.npz
    """
    options.check_require(require)
    options.check_data_options(random_inputs, shape, holdout)
    config = comparison_study(
        base,
        candidates,
        holdout=holdout,
        random_inputs=random_inputs,
        shapes=options.parse_shapes(shape),
        engines=options.check_engines(engine),
        budget_minutes=budget or 10.0,
        max_rel_l2=max_rel_l2,
    )
    if until_settled:
        config = with_until_settled(config, base)
    command = shlex.join(["bitworth", *sys.argv[1:]])
    request = StudyRequest(config=config, folder=Path(), output=output, command=command)
    raise typer.Exit(run_and_show(request, require=require, as_json=json))
