"""``bitworth gemm``."""

from __future__ import annotations

import json as json_module
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from bitworth.cli import options
from bitworth.cli.present import INTERRUPTED
from bitworth.cli.roofline import parse_products
from bitworth.errors import UserError
from bitworth.recipe import FORMATS
from bitworth.study.gemm_run import GemmResult, products_in, run_gemms
from bitworth.study.progress import Reporter
from bitworth.study.run import Interrupted

#: What a time of a product alone is to a model that contains it.
EVIDENCE = "estimated"


def gemm(
    shapes: Annotated[
        str | None, typer.Option(help="Products M x N x K, such as 4096x1152x1152,64x64x64.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Or an ONNX model: the products of its sites.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of a model's input, such as x=1,3,224,224; repeat for each."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Products of a model, the largest first.")] = 8,
    formats: Annotated[str, typer.Option(help="Formats, compared with fp32.")] = "int8",
    engine: Annotated[str, typer.Option(help="Engine to time on.")] = "onnxruntime",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads. [default: every core]", show_default=False)
    ] = 0,
    budget: Annotated[float, typer.Option(min=0.01, help="Minutes for all of them.")] = 5.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to keep a record of each in.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Time matrix products alone: interleaved, with intervals and verdicts, like any study.

    The time of a product includes the conversion of its input. What it gains alone is an estimate
    of what a model gains that contains it, and never a bound.

    Examples:
        bitworth gemm --shapes 4096x1152x1152,4096x4608x1152 --formats int8
        bitworth gemm --shapes 1x4096x4096 --formats int8,int4 --engine openvino
        bitworth gemm --model model.onnx --shape x=1,3,224,224
    """
    (name,) = options.check_engines([engine])
    if (shapes is None) == (model is None):
        raise UserError("gemm: give either --shapes or --model")
    if shapes is not None:
        products = [p for p in parse_products(shapes) if p.kind == "gemm"]
    else:
        assert model is not None
        products = list(products_in(model, options.parse_shapes(shape))[:top])
    wanted = parse_formats(formats)
    try:
        found = run_gemms(
            products, wanted, name, threads, budget, Reporter(Console(stderr=True), quiet=json),
            output, shlex.join(["bitworth", *sys.argv[1:]]),
        )  # fmt: skip
    except Interrupted:
        sys.stderr.write("bitworth: interrupted; run the same command again\n")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        sys.stdout.write(json_module.dumps([as_json(entry) for entry in found]) + "\n")
        return
    Console().print(table(found))
    sys.stdout.write(
        "Each product alone, against fp32, with the conversion of its input: an estimate for a "
        "model that contains it, and no bound.\n"
    )


def parse_formats(text: str) -> list[str]:
    """``int8,int4`` as formats.

    Raises:
        UserError: one that no recipe has, or none at all.
    """
    wanted = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    known = [name for name in FORMATS if name != "fp32"]
    for name in wanted:
        if name not in known:
            raise UserError(f"--formats {name}: unknown; known: {', '.join(known)}")
    if not wanted:
        raise UserError(f"--formats: name at least one of {', '.join(known)}")
    return wanted


def table(found: list[GemmResult]) -> Table:
    """A row for each product and format."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, head in enumerate(("m", "n", "k", "format", "verdict", "speed-up (interval)")):
        shown.add_column(head, justify="left" if place in (3, 4) else "right")
    for entry in found:
        p, made = entry.product, entry.summary.comparison
        if made is None or not (made.time_ratio and made.time_ratio_low and made.time_ratio_high):
            verdict, speed = entry.summary.time or (made.verdict if made else ""), "–"
        else:
            low, high = 1 / made.time_ratio_high, 1 / made.time_ratio_low
            verdict, speed = made.verdict, f"{1 / made.time_ratio:.3f}× ({low:.3f} to {high:.3f})"
        shown.add_row(str(p.m), str(p.n), str(p.k), entry.summary.variant, verdict, speed)
    return shown


def as_json(entry: GemmResult) -> dict[str, object]:
    """Plain values; the comparison is measured, and an estimate for any model."""
    made = entry.summary.comparison
    return {
        "m": entry.product.m,
        "n": entry.product.n,
        "k": entry.product.k,
        "format": entry.summary.variant,
        "verdict": None if made is None else made.verdict,
        "time_ratio": None if made is None else made.time_ratio,
        "time_ratio_low": None if made is None else made.time_ratio_low,
        "time_ratio_high": None if made is None else made.time_ratio_high,
        "reason": entry.summary.time,
        "evidence_for_a_model": EVIDENCE,
    }
