"""Graphs of products: what they compute, and what they ask of a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from bitworth.bound.copy_rate import copy_times
from bitworth.bound.product_graph import (
    MOST_ELEMENTS,
    Product,
    held,
    own_names,
    product_graph,
    product_inputs,
)
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites
from bitworth.subject.work import site_work

PRODUCTS = [
    Product("gemm", 12, 5, 7),
    Product("gemm", 1, 8, 8),
    Product("conv", 12, 5, 7),
    Product("conv", 7, 3, 2),
]


def test_every_product_is_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "p.onnx"
    onnx.save(product_graph(PRODUCTS, 13), path)
    onnx.checker.check_model(path, full_check=True)
    given = product_inputs(PRODUCTS)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True)
    )
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for p in PRODUCTS:
        x, w, y = given[f"{p.name}_x"], weights[f"{p.name}_w"], found[f"{p.name}_y"]
        if p.kind == "gemm":
            assert np.allclose(y, x @ w, atol=1e-5)
        else:
            rows = x.reshape(p.k, p.m).T @ w.reshape(p.n, p.k).T
            assert np.allclose(y.reshape(p.n, p.m).T, -np.maximum(rows, 0), atol=1e-5)


def test_each_is_a_site_of_its_own_shape(tmp_path: Path) -> None:
    path = tmp_path / "p.onnx"
    onnx.save(product_graph(PRODUCTS, 13), path)
    prepared = prepare(load(path), 13)
    sites = {site.node: site for site in find_sites(prepared).sites}
    assert set(sites) == {p.name for p in PRODUCTS}
    shapes = {
        str(v.name): tuple(int(d) for d in v.shape)  # type: ignore[arg-type]
        for node in prepared.model.graph
        for v in (*node.inputs, *node.outputs)
        if v is not None and v.shape is not None
    }
    for p in PRODUCTS:
        work = site_work(sites[p.name], shapes)
        assert work is not None
        assert (work.kind, work.m, work.n, work.k) == (p.kind, p.m, p.n, p.k)
        assert sites[p.name].output in (*own_names(p), f"{p.name}_y")


def test_a_product_that_is_too_large_loses_rows_alone() -> None:
    large = held(Product("gemm", 1 << 20, 4096, 1024))
    assert (large.n, large.k) == (4096, 1024)
    assert large.m * 4096 <= MOST_ELEMENTS
    assert held(PRODUCTS[0]) == PRODUCTS[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_copies_take_time_and_larger_ones_more(threads: int) -> None:
    found = copy_times(threads, (1 << 16, 1 << 24))
    assert [size for size, _ in found] == [1 << 16, 1 << 24]
    assert 0 < found[0][1] < found[1][1]
