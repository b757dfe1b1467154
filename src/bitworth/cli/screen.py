"""``bitworth screen``."""

from __future__ import annotations

import json as json_module
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bitworth.cli import options
from bitworth.cli.present_screen import as_json, render
from bitworth.errors import UserError
from bitworth.record.device_profile import read_device_profile
from bitworth.study.config import read_study_file
from bitworth.study.defaults import default_study
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.screen_run import run_screen

DeviceFile = Annotated[
    Path | None,
    typer.Option(
        "--device-profile",
        help="Rates of another device, as 'bitworth roofline' wrote them there: every number is "
        "then estimated. [default: this device, measured]",
    ),
]


def screen(
    target: Annotated[
        Path, typer.Argument(help="A study file (study.toml) or an ONNX model.", metavar="MODEL")
    ],
    holdout: options.Holdout = None,
    random_inputs: options.RandomInputs = False,
    shape: options.Shape = None,
    engine: options.Engine = None,
    min_speedup: Annotated[
        float | None, typer.Option(min=0.01, help="Speed-up that is worth it. [default: 1.05]")
    ] = None,
    device_profile: DeviceFile = None,
    json: options.Json = False,
) -> None:
    """Say what a narrower format could give, before any variant is built.

    One profile of the baseline on each engine, and measured rates of the device: for each group
    and format the speed-up at most (derived) and the one to expect (estimated), best first. The
    numbers hold for the input that is given: one sample of the data, or --random-inputs.

    Examples:
        bitworth screen model.onnx --random-inputs --shape x=1,3,224,224
        bitworth screen examples/ocr/study.toml --engine openvino
    """
    elsewhere = None if device_profile is None else read_device_profile(device_profile)
    if target.suffix == ".toml":
        options.refuse_with_study_file(holdout=holdout, random_inputs=random_inputs, shape=shape)
        config, folder = read_study_file(target), target.parent
        if engine:
            wanted = options.check_engines(engine)
            cells = tuple(c for c in config.cell if c.engine in wanted)
            config = config.model_copy(update={"cell": cells or config.cell})
    else:
        options.check_data_options(random_inputs, shape, holdout)
        if holdout is None and not random_inputs:
            raise UserError(
                f"{target}: no data given; give --holdout h.npz (one sample is used), or "
                "--random-inputs"
            )
        config, folder = default_study(
            target, calibration=holdout, holdout=holdout, random_inputs=random_inputs,
            shapes=options.parse_shapes(shape), engines=options.check_engines(engine),
            budget_minutes=1.0, max_rel_l2=None,
        ), Path()  # fmt: skip
    if min_speedup is not None:
        policy = config.policy.model_copy(update={"min_speedup": min_speedup})
        config = config.model_copy(update={"policy": policy})
    request = StudyRequest(config, folder, Path(), shlex.join(["bitworth", *sys.argv[1:]]))
    found = run_screen(request, Reporter(Console(stderr=True), quiet=json), elsewhere)
    if json:
        sys.stdout.write(json_module.dumps([as_json(s) for s in found]) + "\n")
        return
    console = Console()
    for entry in found:
        console.print(render(entry))
