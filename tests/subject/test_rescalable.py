from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.rescalable import Pair, find_pairs
from bitworth.subject.sites import find_sites
from tests.rescalable_graphs import FOUND, NOT_FOUND, Case

Write = Callable[..., Path]


def _prepared(write: Write, case: Case) -> PreparedModel:
    return prepare(load(write(case.text, case.initializers, case.opset)), case.opset)


def _pairs(model: PreparedModel) -> tuple[Pair, ...]:
    return find_pairs(model, find_sites(model).sites)


@pytest.mark.parametrize("name", FOUND)
def test_pairs_are_found(write: Write, name: str) -> None:
    case = FOUND[name]
    pairs = _pairs(_prepared(write, case))
    assert tuple((p.kind, p.value, p.channels, p.consumers) for p in pairs) == case.pairs
    assert {v.name: v.axis for p in pairs for v in p.values} == case.axes


@pytest.mark.parametrize("name", FOUND)
def test_a_pair_is_consistent(write: Write, name: str) -> None:
    model = _prepared(write, FOUND[name])
    sites = {s.id: s for s in find_sites(model).sites}
    for pair in _pairs(model):
        assert pair.values[0].name == pair.value
        assert pair.values[0].axis == pair.axis
        assert (pair.site in sites) == (pair.kind == "linear")
        assert [sites[c].weight for c in pair.consumers] == [p.initializer for p in pair.multiplied]
        for use in (*pair.divided, *pair.multiplied):
            node = next(n for n in model.model.graph if n.name == use.node)
            assert node.inputs[use.input] is model.model.graph.initializers[use.initializer]
            assert set(use.channels.reshape(-1)) == set(range(pair.channels))


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_cannot_be_rescaled_is_no_pair(write: Write, name: str) -> None:
    model = _prepared(write, NOT_FOUND[name])
    assert find_sites(model).sites
    assert _pairs(model) == ()


@pytest.mark.parametrize("name", FOUND)
def test_a_graph_output_is_never_rescaled(write: Write, name: str) -> None:
    """Each divided value in turn is made an output: its pair is gone."""
    case = FOUND[name]
    path = write(case.text, case.initializers, case.opset)
    for value in case.axes:
        proto = onnx.load(path)
        proto.graph.output.append(onnx.helper.make_value_info(value, proto.graph.output[0].type))
        onnx.save(proto, path.with_name("more.onnx"))
        model = prepare(load(path.with_name("more.onnx")), case.opset)
        assert value not in {v.name for p in _pairs(model) for v in p.values}


def test_consumers_are_taken_from_the_given_sites(write: Write) -> None:
    model = _prepared(write, FOUND["normalization"])
    sites = find_sites(model).sites
    assert len(find_pairs(model, sites)) == 1
    assert find_pairs(model, sites[:1]) == ()
    assert find_pairs(model, ()) == ()


def test_a_value_that_a_body_reads_is_no_pair(write: Write) -> None:
    text = """g (float[N, 4] x, bool p) => (float[] y) {
        a = MatMul(x, v) c = MatMul(a, w)
        d = If (p) <then_branch = t () => (float[] e) {e = Relu(a)},
                    else_branch = u () => (float[] f) {f = Neg(a)}>
        z = ReduceSum(d) y = Add(c, z) }"""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in "vw"}
    assert _pairs(prepare(load(write(text, weights, 17)), 17)) == ()


def test_flattened_channels_are_followed(write: Write) -> None:
    """Row k of the weight belongs to channel k // pixels, or k % channels of pixels in front."""
    first = _pairs(_prepared(write, FOUND["flattened pixels"]))[0]
    last = _pairs(_prepared(write, FOUND["pixels flattened behind channels last"]))[0]
    np.testing.assert_array_equal(first.multiplied[0].channels[:, 0], np.arange(24) // 4)
    np.testing.assert_array_equal(last.multiplied[0].channels[:, 0], np.arange(24) % 6)


def test_the_recogniser_has_its_normalizations_in_pairs(ocr_model: Path) -> None:
    """Four of PP-OCRv6's pre-norm normalizations are read by sites alone; the detector has none."""
    kinds = [p.kind for p in _pairs(prepare(load(ocr_model), 19))]
    assert kinds.count("norm") == (4 if "rec" in ocr_model.name else 0)
    assert kinds.count("linear") >= 12
