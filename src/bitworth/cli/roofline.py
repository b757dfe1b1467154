"""``bitworth roofline``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bitworth.atomic import write_atomic
from bitworth.bound.product_graph import Product
from bitworth.cli import options
from bitworth.errors import UserError
from bitworth.study.progress import Reporter
from bitworth.study.roofline_run import GRID, run_roofline
from bitworth.study.roofline_stage import KINDS


def roofline(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the device profile is written, JSON.")
    ],
    engine: Annotated[str, typer.Option(help="Engine to measure through.")] = "onnxruntime",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads. [default: every core]", show_default=False)
    ] = 0,
    shapes: Annotated[
        str | None,
        typer.Option(help="Products M x N x K, such as 4096x1152x1152,77x64x64. [default: a grid]"),
    ] = None,
) -> None:
    """Measure how fast this device multiplies in each format, and how fast it copies.

    The file is what 'bitworth screen --device-profile' reads, on this machine or on another one.

    Examples:
        bitworth roofline --engine openvino -o cpu.json
        bitworth roofline --shapes 4096x1152x1152 -o cpu.json
    """
    (name,) = options.check_engines([engine])
    products = GRID if shapes is None else parse_products(shapes)
    found = run_roofline(name, threads, products, Reporter(Console(stderr=True), quiet=False))
    write_atomic(output, (found.model_dump_json(indent=1) + "\n").encode())
    rates = {form: found.peak(form) for form in dict.fromkeys(p.format for p in found.products)}
    for form, rate in rates.items():
        sys.stdout.write(f"{form:<6} at most {rate:.4g} operations a ns\n")
    sys.stdout.write(f"copies at most {found.bandwidth():.4g} bytes a ns\n{output}\n")


def parse_products(text: str) -> tuple[Product, ...]:
    """``4096x1152x1152,77x64x64`` as products, each as a GEMM and as a convolution.

    Raises:
        UserError: it is not of that form.
    """
    found = []
    for part in text.split(","):
        try:
            m, n, k = (int(size) for size in part.strip().split("x"))
            if min(m, n, k) < 1:
                raise ValueError
        except ValueError:
            raise UserError(
                f"--shapes {part.strip() or text}: write MxNxK, such as 4096x1152x1152"
            ) from None
        found += [Product(kind, m, n, k) for kind in KINDS]
    return tuple(found)
