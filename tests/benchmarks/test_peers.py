"""Bitworth against other quantizers: all is explained, and still what Bitworth does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers import causes, forms, judge, ours
from benchmarks.peers.errors import error, exchanged, outputs
from benchmarks.peers.float_values import fingerprints, same_values
from benchmarks.peers.histograms import deviations, entropy_by_sample, entropy_of_all
from benchmarks.peers.qdq import quantized_tensors
from benchmarks.peers.report import DOCUMENT, insert
from benchmarks.peers.results import RESULTS, Comparison, Facts, Role, Row, Run, read, write
from bitworth.calibration import (
    RangeAccumulator,
    RangeStatistics,
    activation_scale,
    weight_scale,
)
from bitworth.lowering.placement import output_value
from bitworth.lowering.scaling import TensorScale

COMPARISONS = [read(path) for name in forms.MODELS if (path := RESULTS / f"{name}.json").exists()]
FORMS = {(form.peer, form.method): form for form in forms.FORMS}
RUNS = [
    pytest.param(comparison, run, id=f"{comparison.model}-{run.peer}-{run.method}")
    for comparison in COMPARISONS
    for run in comparison.runs
]
PACKAGED = {
    "detector": "PP-OCRv6_det_small.onnx",
    "recogniser": "PP-OCRv6_rec_small.onnx",
}


def test_the_document_holds_what_the_results_say() -> None:
    text = DOCUMENT.read_text()
    assert insert(text, COMPARISONS) == text


def test_a_document_without_a_place_is_told() -> None:
    with pytest.raises(ValueError, match="no place"):
        insert("# Title", COMPARISONS)


def test_nothing_is_unexplained() -> None:
    assert judge.unexplained(COMPARISONS) == []


def test_what_is_unexplained_is_told() -> None:
    comparison = COMPARISONS[0]
    run = comparison.runs[0]
    odd = replace(run, rows=(Row("t", "activation", causes.UNKNOWN, 1.0, 2.0),))
    assert judge.unexplained([replace(comparison, runs=(odd,))]) != []


def test_every_form_was_tried_on_every_model() -> None:
    for comparison in COMPARISONS:
        assert [(r.peer, r.method) for r in comparison.runs] == list(FORMS)
        for run in comparison.runs:
            assert (run.theirs is None) == bool(run.failed)
            assert run.ours is not None


@pytest.mark.parametrize(("comparison", "run"), RUNS)
def test_causes_follow_from_the_facts(comparison: Comparison, run: Run) -> None:
    rule = FORMS[run.peer, run.method].their_rule
    for row in run.rows:
        both = row.ours is not None and row.theirs is not None
        if row.kind == "weight":
            assert not both or (row.off is not None and row.off <= causes.LAST_DIGITS), row
            continue
        if row.ours is not None and row.theirs is not None:
            found = causes.of_scales(
                row.ours, row.theirs, row.tensor, rule, comparison.facts, comparison.related
            )
        else:
            assert row.role is not None
            alone = causes.of_theirs_alone if row.ours is None else causes.of_ours_alone
            found = alone(row.role)
        assert (found.text, found.other) == (row.cause, row.other), row.tensor


@pytest.mark.parametrize(("comparison", "run"), RUNS)
def test_bitworth_still_makes_these_scales(comparison: Comparison, run: Run) -> None:
    # The facts hold extremes alone: what entropy makes of the values cannot be made again.
    recipe = replace(FORMS[run.peer, run.method].recipe, calibrator=forms.MAX)
    entropy = FORMS[run.peer, run.method].recipe.calibrator != forms.MAX
    found = dict(run.equal)
    found |= {r.tensor: r.ours for r in run.rows if r.kind == "activation" and r.ours is not None}
    assert found or run.failed
    for name, scale in found.items():
        facts = comparison.facts[name]
        made = activation_scale(_statistics(facts.low, facts.high), recipe)
        assert isinstance(made, TensorScale)
        widest = float(made.scale) * (1 + causes.LAST_DIGITS)
        assert scale <= widest if entropy else scale == pytest.approx(widest, rel=2e-4), name


@pytest.mark.parametrize("model", PACKAGED)
def test_bitworth_still_quantizes_these_tensors(model: str) -> None:
    comparison = next(c for c in COMPARISONS if c.model == model)
    prepared = _prepared(model)
    sites = {site.id: site for site in prepared.sites}
    for run in comparison.runs:
        if run.failed:
            continue
        recipe = FORMS[run.peer, run.method].recipe
        places = {site.activation for site in prepared.sites}
        for site in prepared.sites:
            place = output_value(prepared.prepared.model, site, "after_activation", recipe.fused)
            places |= {place} - {None}
        mine = {r.tensor for r in run.rows if r.kind == "activation" and r.ours is not None}
        assert places == mine | set(run.equal)
        for name, largest in run.equal_weights.items():
            value = prepared.prepared.model.graph.initializers[sites[name].weight].const_value
            assert value is not None
            made = weight_scale(value.numpy(), sites[name], recipe)
            assert float(made.scale.max()) == pytest.approx(largest, rel=1e-6), name


@cache
def _prepared(model: str) -> ours.Ours:
    spec = find_spec("rapidocr")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return ours.prepare_model(folder / PACKAGED[model])


def _statistics(low: float, high: float) -> RangeStatistics:
    accumulator = RangeAccumulator()
    accumulator.add(np.array([low, high], np.float32))
    return accumulator.finish()


def test_an_odd_scale_has_no_cause() -> None:
    facts = {"t": Facts(-1.0, 2.0), "u": Facts(-3.0, 5.0)}
    for rule in ("symmetric", "asymmetric", "fp8 inverted"):
        made = causes.RULES[rule](facts["t"])
        assert made is not None
        odd = causes.of_scales(made, made * 1.01, "t", rule, facts, {"t": ("u",)})
        assert odd.text == causes.UNKNOWN
        shared = causes.RULES[rule](facts["u"])
        assert shared is not None
        assert causes.of_scales(made, shared, "t", rule, facts, {"t": ("u",)}).other == "u"


def test_an_odd_weight_has_no_cause() -> None:
    plain = np.array([0.1, 0.2, 1e-40, 1.0])
    dead = np.array([False, False, False, True])
    bias = np.array([0.0, 2.0**31, 0.0, 1.0], np.float32)
    weight = causes.Weight(Facts(-25.4, 12.7), plain, dead, bias=bias, input_scale=2.0)
    ours = np.array([0.1, 1.0, causes.SMALLEST, 1e-9])
    edge = causes.INT32_MARGIN * 2.0**31 / causes.INT32 / 2.0
    theirs = np.array([0.1, edge, 1.0, 1.0])
    found, off = causes.of_weights(ours, theirs, weight, "symmetric")
    assert set(found.text.split("; ")) == {
        part for text in (causes.ZEROS, causes.TINY, causes.INT32_BIAS) for part in text.split("; ")
    }
    assert off is not None
    assert off < 1e-6
    for index in range(4):
        odd = theirs.copy()
        odd[index] *= 1.5
        assert causes.of_weights(ours, odd, weight, "symmetric") == (
            causes.Cause(causes.UNKNOWN),
            None,
        )
    assert causes.of_weights(ours, np.array([0.2]), weight, "symmetric")[0].text == (
        causes.ONE_SCALE
    )
    alone = np.array([0.1, 0.2, 1.0, 1.0])
    assert causes.ROOM in causes.of_weights(ours, alone, weight, "symmetric")[0].text


def test_a_tensor_of_no_known_role_has_no_cause() -> None:
    reads = Role(by="Conv", prepared=True, site_input=True)
    assert causes.of_theirs_alone(reads).text == causes.UNKNOWN
    assert causes.of_ours_alone(Role(by="Add", prepared=True)).text == causes.UNKNOWN


def _conv(path: Path, *, stored: bool) -> dict[str, NDArray[np.float32]]:
    """A Conv behind Q/DQ; its weight stored in int8, or in float with a QuantizeLinear."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 3, 1, 1)).astype(np.float32)
    steps = (np.abs(weight).max(axis=(1, 2, 3)) / 127).astype(np.float32)
    whole = np.rint(weight / steps[:, None, None, None]).astype(np.int8)
    constants = {
        "step": np.float32(0.5),
        "zero": np.int8(3),
        "steps": steps,
        "zeros": np.zeros(4, np.int8),
        "w": whole if stored else weight,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["xq"], name="q"),
        helper.make_node("DequantizeLinear", ["xq", "step", "zero"], ["xd"], name="d"),
        helper.make_node("DequantizeLinear", ["wq", "steps", "zeros"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["y"]),
    ]
    if stored:
        nodes[2].input[0] = "w"
    else:
        nodes.insert(0, helper.make_node("QuantizeLinear", ["w", "steps", "zeros"], ["wq"], axis=0))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 5, 5])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return {"x": rng.normal(size=(2, 3, 5, 5)).astype(np.float32)}


@pytest.mark.parametrize("stored", [False, True])
def test_quantized_tensors_are_read(tmp_path: Path, stored: bool) -> None:
    _conv(tmp_path / "m.onnx", stored=stored)
    found = {q.kind: q for q in quantized_tensors(onnx.load(tmp_path / "m.onnx"))}
    assert set(found) == {"activation", "weight"}
    assert (found["activation"].name, found["activation"].zero_point) == ("x", (3.0,))
    assert float(found["activation"].scale) == 0.5
    assert (found["weight"].name, found["weight"].scale.shape) == ("w", (4,))
    assert (found["weight"].axis, found["weight"].uses) == (0, (("Conv", "y"),))


def test_scales_are_exchanged(tmp_path: Path) -> None:
    samples = _conv(tmp_path / "m.onnx", stored=True)
    model = onnx.load(tmp_path / "m.onnx")
    coarse = outputs(model, samples)
    same = exchanged(model, {"x": TensorScale("int8", np.float32(0.5), 3)})
    assert np.array_equal(outputs(same, samples), coarse)
    fine = exchanged(model, {"x": TensorScale("int8", np.float32(0.03), 0)})
    (changed,) = [q for q in quantized_tensors(fine) if q.kind == "activation"]
    assert (float(changed.scale), changed.zero_point) == (pytest.approx(0.03), (0.0,))
    float_like = exchanged(model, {"x": TensorScale("int8", np.float32(0.04), 0)})
    reference = outputs(float_like, samples)
    near, far = (
        error("efficientnet", found, reference) for found in (outputs(fine, samples), coarse)
    )
    assert 0 < near.relative_l2 < far.relative_l2


def test_equal_values_are_one_tensor_whatever_their_name(tmp_path: Path) -> None:
    def write_model(path: Path, first: str, scale: float) -> None:
        constants = [
            numpy_helper.from_array(np.float32(scale), "s"),
            numpy_helper.from_array(np.array([2, 6]), "shape"),
        ]
        graph = helper.make_graph(
            [
                helper.make_node("Mul", ["x", "s"], [first]),
                helper.make_node("Relu", [first], ["r"]),
                helper.make_node("Reshape", ["r", "shape"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6])],
            constants,
        )
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
            path,
        )

    sample = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    write_model(tmp_path / "a.onnx", "a", 3.0)
    write_model(tmp_path / "b.onnx", "b", 3.0)
    write_model(tmp_path / "c.onnx", "a", 3.1)
    a, b, c = (fingerprints(tmp_path / f"{name}.onnx", sample) for name in "abc")
    assert same_values(a, b) == {"x": "x", "a": "b", "r": "r", "y": "y"}
    # One name for two values is no match.
    assert same_values(a, c) == {"x": "x"}


def test_histogram_methods_see_every_sample(tmp_path: Path) -> None:
    samples = _conv(tmp_path / "m.onnx", stored=True)
    x = samples["x"]
    extremes = {"x": (float(x.min()), float(x.max()))}
    path = tmp_path / "m.onnx"
    assert deviations(path, samples, extremes)["x"] == pytest.approx(float(x.std()), rel=1e-2)
    for low, high in (
        entropy_of_all(path, samples, extremes)["x"],
        entropy_by_sample(path, samples, {"x"})["x"],
    ):
        assert extremes["x"][0] <= low < 0.0 < high <= extremes["x"][1]


def test_results_survive_their_file(tmp_path: Path) -> None:
    for comparison in COMPARISONS:
        write(tmp_path / "c.json", comparison)
        assert read(tmp_path / "c.json") == comparison
        assert (tmp_path / "c.json").read_bytes() == (
            RESULTS / f"{comparison.model}.json"
        ).read_bytes()
    assert sum(path.stat().st_size for path in RESULTS.glob("*.json")) < 1_200_000
