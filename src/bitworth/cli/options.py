"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitworth.errors import UserError

Calibration = Annotated[
    Path | None,
    typer.Option(help="Calibration data: an .npz whose keys are the model's inputs."),
]
Holdout = Annotated[
    Path | None,
    typer.Option(help="Held-out data that judges quality; shares no sample with calibration."),
]
RandomInputs = Annotated[
    bool, typer.Option("--random-inputs", help="Time only, on random inputs: no quality.")
]
Shape = Annotated[
    list[str] | None,
    typer.Option(help="Sizes for --random-inputs, such as x=1,3,48,320; repeat for each input."),
]
Engine = Annotated[
    list[str] | None,
    typer.Option(
        help="Engine to study on; repeat for several. [default: onnxruntime and openvino]"
    ),
]
Budget = Annotated[
    float | None, typer.Option(min=0.01, help="Minutes to spend on timing, over all engines.")
]
UntilSettled = Annotated[
    bool,
    typer.Option(
        "--until-settled",
        help=(
            "Go on within --budget until every comparison is settled: a verdict, and a speed-up "
            "surely over or under what the policy asks for."
        ),
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder under which records are kept.")
]
MaxRelL2 = Annotated[
    float | None,
    typer.Option(min=0, help="Largest relative L2 error that may be shipped without a metric."),
]
Require = Annotated[
    str | None,
    typer.Option(
        metavar="[ship|faster]",
        help="Exit with 3 unless the decision is to ship, or some variant is faster.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the record as JSON instead of tables.")]

ENGINES = ("onnxruntime", "openvino")


def parse_shapes(shapes: list[str] | None) -> dict[str, tuple[int, ...]]:
    """``x=1,3,48,320`` as a name and sizes.

    Raises:
        UserError: it is not of that form.
    """
    parsed = {}
    for text in shapes or []:
        name, equals, sizes = text.rpartition("=")
        try:
            if not equals or not name:
                raise ValueError
            parsed[name] = tuple(int(s) for s in sizes.replace("x", ",").split(","))
        except ValueError:
            raise UserError(f"--shape {text}: write NAME=SIZES, such as x=1,3,48,320") from None
    return parsed


def check_data_options(random_inputs: bool, shape: list[str] | None, *data: Path | None) -> None:
    """Refuse data beside random inputs, and sizes without them, instead of ignoring either.

    Raises:
        UserError: options that exclude each other.
    """
    if shape and not random_inputs:
        raise UserError("--shape: gives the sizes of --random-inputs; data has its own sizes")
    if random_inputs and any(data):
        raise UserError("--random-inputs: times only, and uses no data; leave one of the two out")


def check_engines(engines: list[str] | None) -> tuple[str, ...]:
    """The engines asked for, or all.

    Raises:
        UserError: an unknown one.
    """
    for name in engines or ():
        if name not in (*ENGINES, "mock"):
            raise UserError(f"--engine {name}: unknown; known: {', '.join(ENGINES)}")
    return tuple(engines or ENGINES)


def check_require(require: str | None) -> None:
    """Refuse an unknown requirement before anything runs.

    Raises:
        UserError: it is neither ``ship`` nor ``faster``.
    """
    if require not in (None, "ship", "faster"):
        raise UserError(f"--require {require}: unknown; give ship or faster")


def refuse_with_study_file(**given: object) -> None:
    """Options that a study file answers itself.

    Raises:
        UserError: one of them was given.
    """
    for name, value in given.items():
        if value:
            option = "--" + name.replace("_", "-")
            raise UserError(f"{option}: a study file says this itself; edit the file")
