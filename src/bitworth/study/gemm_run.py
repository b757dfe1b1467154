"""Times matrix products alone, each format against fp32, by the same rules as any study."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bitworth.atomic import write_atomic
from bitworth.bound.product_graph import Product, product_graph
from bitworth.calibration.taps import RunError
from bitworth.errors import UserError
from bitworth.record.schema import VariantSummary
from bitworth.study.config import checked
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study
from bitworth.study.sections import StudyConfig
from bitworth.study.site_shapes import products_of, shapes_at, work_at
from bitworth.subject.inputs import random_inputs
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

#: Opset of the products; a format that needs a higher one raises its own graph.
OPSET = 17


@dataclass(frozen=True)
class GemmResult:
    """One product in one format.

    Attributes:
        product: what was timed, with the conversion of its input and of its result.
        summary: its comparison with fp32, and where there is none why.
    """

    product: Product
    summary: VariantSummary


def products_in(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Product, ...]:
    """The distinct products of a model's sites on inputs of the given sizes, the largest first.

    Convolutions are implicit products; depthwise ones are none.

    Raises:
        UserError: not a readable model; a size that is missing; inputs that it does not run on.
    """
    original = load(model)
    prepared = prepare(original, OPSET)
    (sample,) = islice(random_inputs(original.inputs, dict(shapes), 1, 0), 1)
    try:
        found = shapes_at(prepared.model, sample.inputs)
    except RunError as error:
        raise UserError(f"{model}: does not run on random inputs ({error})") from None
    products = {
        Product("gemm", p.m, p.n, p.k)
        for p in products_of(work_at(find_sites(prepared).sites, found))
    }
    return tuple(sorted(products, key=lambda p: (-p.m * p.n * p.k, p)))


def gemm_study(
    product: Product, path: Path, formats: Sequence[str], engine: str, threads: int, minutes: float
) -> StudyConfig:
    """The study of one product: a variant for each format.

    Raises:
        UserError: a format that no recipe has.
    """
    return checked(
        path,
        subject={"name": product.name, "onnx": path.name},
        data={"random_inputs": True},
        cell=[{"engine": engine, "threads": threads}],
        variant=[{"name": name, "format": name} for name in formats],
        # A product alone has no baseline to be fair to but itself.
        free_wins={"standard": False},
        timing={"budget_minutes": minutes},
    )


def run_gemms(
    products: Sequence[Product],
    formats: Sequence[str],
    engine: str,
    threads: int,
    minutes: float,
    reporter: Reporter,
    output: Path | None,
    command: str,
) -> list[GemmResult]:
    """Every product in every format against the same product in fp32.

    Args:
        products: what to time.
        formats: as recipes call them.
        engine, threads: the cell; threads of 0: every core.
        minutes: for all of them together.
        reporter: progress.
        output: folder for the records; None: they are not kept.
        command: how it was started, for the records.

    Raises:
        UserError: see ``run_study``.
        Interrupted: likewise.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="bitworth-gemm-") as name:
        folder = Path(name)
        for product in products:
            path = folder / f"{product.name}.onnx"
            write_atomic(path, product_graph([product], OPSET).SerializeToString())
            share = minutes / len(products)
            config = gemm_study(product, path, formats, engine, threads, share)
            request = StudyRequest(config, folder, output or folder / "records", command)
            record, _ = run_study(request, reporter)
            summaries = record.derived.cells[0].variants if record.derived.cells else ()
            found += [GemmResult(product, s) for s in summaries if s.variant in formats]
    return found
