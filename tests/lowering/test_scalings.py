"""Multiplications by one in front of sites: nothing changes, and they take factors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.lowering.rescaling import ChannelFactors, rescale
from bitworth.lowering.scalings import scaled_name, with_scalings
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.rescalable import find_pairs
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

# Every value that a site reads has another reader, so that no operation can take factors.
MODEL = """
<ir_version: 8, opset_import: ["" : 13]>
m (float[N, 4, H, W] x) => (float[N, 4, H, W] a, float[N, 6, H, W] b, float[N, 6, H, W] c) {
    a = Sigmoid (x)
    b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, w0)
    s = Sigmoid (b)
    t = Transpose <perm = [0, 2, 3, 1]> (s)
    d = MatMul (t, w1)
    e = MatMul (t, w2)
    f = Add (d, e)
    g = Add (f, t)
    c = Transpose <perm = [0, 3, 1, 2]> (g)
}
"""


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedModel:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    for name, shape in (("w0", (6, 4, 3, 3)), ("w1", (6, 6)), ("w2", (6, 6))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "m.onnx")
    return prepare(load(tmp_path / "m.onnx"), 13)


def run(prepared: PreparedModel) -> list[NDArray[np.float32]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(serialize(prepared.model), options)
    x = np.random.default_rng(1).standard_normal((2, 4, 5, 5)).astype(np.float32)
    found: list[NDArray[np.float32]] = session.run(None, {"x": x})
    return found


def test_the_graph_computes_what_it_did_and_names_stay(prepared: PreparedModel) -> None:
    sites = find_sites(prepared).sites
    values = tuple(dict.fromkeys(s.activation for s in sites))
    scaled = with_scalings(prepared, sites, values)
    after = {s.id: s for s in find_sites(scaled).sites}
    assert [after[s.id].activation for s in sites] == [scaled_name(s.activation) for s in sites]
    assert {s.id: s.node for s in sites} == {i: s.node for i, s in after.items()}
    for before, now in zip(run(prepared), run(scaled), strict=True):
        np.testing.assert_array_equal(before, now)
    assert serialize(scaled.model) == serialize(with_scalings(prepared, sites, values).model)


def test_it_takes_factors_that_nothing_before_could(prepared: PreparedModel) -> None:
    sites = find_sites(prepared).sites
    assert find_pairs(prepared, sites) == ()
    values = tuple(dict.fromkeys(s.activation for s in sites))
    scaled = with_scalings(prepared, sites, values)
    inside = find_sites(scaled).sites
    pairs = {p.value: p for p in find_pairs(scaled, inside)}
    assert set(pairs) == {scaled_name(v) for v in values}
    # One multiplication serves all sites that read a value.
    assert sorted(len(p.consumers) for p in pairs.values()) == [1, 2]
    rng = np.random.default_rng(2)
    factors = [
        ChannelFactors(name, np.exp(rng.uniform(-3, 3, p.channels)).astype(np.float32))
        for name, p in pairs.items()
    ]
    for before, now in zip(run(prepared), run(rescale(scaled, inside, factors)), strict=True):
        np.testing.assert_allclose(before, now, rtol=1e-4, atol=1e-4)


def test_a_value_that_no_site_reads_is_told(prepared: PreparedModel) -> None:
    with pytest.raises(ValueError, match="'s'"):
        with_scalings(prepared, find_sites(prepared).sites, ["s"])
