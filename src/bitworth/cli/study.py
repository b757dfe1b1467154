"""``bitworth study``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bitworth.cli import options
from bitworth.cli.present import run_and_show
from bitworth.study.config import read_study_file, with_budget, with_until_settled
from bitworth.study.defaults import default_study
from bitworth.study.request import StudyRequest


def study(
    target: Annotated[
        Path, typer.Argument(help="A study file (study.toml) or an ONNX model.", metavar="STUDY")
    ],
    calibration: options.Calibration = None,
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
    """Study a model: build the variants, time them, judge their quality, decide.

    With a study file, everything comes from it. With an ONNX model, groups, variants and policy
    are the default ones, and --calibration and --holdout give the data. A study that was stopped
    resumes when the same command is given again.

    Examples:
        bitworth study examples/ocr/study.toml
        bitworth study model.onnx --calibration calib.npz --holdout holdout.npz
    """
    options.check_require(require)
    if target.suffix == ".toml":
        config = read_study_file(target)
        folder = target.parent
        options.refuse_with_study_file(
            calibration=calibration,
            holdout=holdout,
            random_inputs=random_inputs,
            shape=shape,
            engine=engine,
            max_rel_l2=max_rel_l2,
        )
    else:
        options.check_data_options(random_inputs, shape, calibration, holdout)
        config = default_study(
            target,
            calibration=calibration,
            holdout=holdout,
            random_inputs=random_inputs,
            shapes=options.parse_shapes(shape),
            engines=options.check_engines(engine),
            budget_minutes=budget or 10.0,
            max_rel_l2=max_rel_l2,
        )
        folder = Path()
    if budget is not None:
        config = with_budget(config, budget, target)
    if until_settled:
        config = with_until_settled(config, target)
    command = shlex.join(["bitworth", *sys.argv[1:]])
    request = StudyRequest(config=config, folder=folder, output=output, command=command)
    raise typer.Exit(run_and_show(request, require=require, as_json=json))
