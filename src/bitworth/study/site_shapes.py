"""Shapes in a cell, and the work of each site at them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from bitworth.bound.product_graph import Product
from bitworth.calibration.shapes import value_shapes
from bitworth.engines.base import Arrays
from bitworth.recipe import Site
from bitworth.record.variant_bounds import WorkFact
from bitworth.subject.work import site_work

Shapes = Mapping[str, tuple[int, ...]]


def shapes_at(model: ir.Model, inputs: Arrays) -> Shapes:
    """Shapes of every value of a prepared graph on ``inputs``.

    Raises:
        RunError: onnxruntime cannot run the model on them.
    """
    names = [str(v.name) for node in model.graph for v in node.outputs]
    return value_shapes(model, names, inputs, threads=2)


def work_at(sites: Iterable[Site], shapes: Shapes) -> dict[str, WorkFact]:
    """The work of every site, by id; sites of unknown shapes are left out."""
    found = {site.id: site_work(site, shapes) for site in sites}
    return {id_: WorkFact(**vars(work)) for id_, work in found.items() if work is not None}


def products_of(
    work: Mapping[str, WorkFact], sites: Collection[str] | None = None
) -> tuple[Product, ...]:
    """The distinct products of some sites, or of all; groups have their rows together."""
    found = set()
    for id_, w in work.items():
        if w.kind != "depthwise" and (sites is None or id_ in sites):
            found.add(Product(w.kind, w.m * w.batch, w.n, w.k))
    return tuple(sorted(found))
