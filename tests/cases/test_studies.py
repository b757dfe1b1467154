"""Rows 7, 8, 10, 11, 15, 18, 19, 28, 31 and 32: studies on the mock engine.

A study that several rows read runs once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bitworth.record.profile_facts import LayerFact
from bitworth.record.schema import Facts
from bitworth.study.export import export_variant, find_variant

from .studies import Study, mock_cell, run
from .tools import Array, rand, write_model

RECURRENT = """
g (float[N, 3, 6, 6] x) => (float[N, 4] y) {
    c = Conv<pads = [1, 1, 1, 1]>(x, stem, bias)  r = Relu(c)
    d = Conv<group = 8, pads = [1, 1, 1, 1]>(r, depth)  e = Relu(d)
    p = GlobalAveragePool(e)  s0 = Reshape(p, steps)
    l, lh, lc = LSTM<hidden_size = 8>(s0, lw, lr)  s1 = Reshape(l, steps)
    u, uh = GRU<hidden_size = 8>(s1, gw, gr)  s2 = Reshape(u, steps)
    n, nh = RNN<hidden_size = 8>(s2, rw, rr)  f = Reshape(n, flat)
    y = MatMul(f, head)
}
"""


def layers_of(facts: Facts) -> tuple[LayerFact, ...]:
    """The baseline's profile in the first cell."""
    profile = facts.cells[0].variants[0].profile
    assert profile is not None
    return profile.layers


def recurrent_model(path: Path) -> Path:
    weights: dict[str, Array] = {
        "stem": rand(8, 3, 3, 3, scale=0.3),
        "bias": rand(8, scale=0.1),
        "depth": rand(8, 1, 3, 3, scale=0.3),
        "head": rand(8, 4),
        "steps": np.array([1, -1, 8]),
        "flat": np.array([-1, 8]),
    }
    weights["stem"][5] = 0
    for name, gates in (("l", 4), ("g", 3), ("r", 1)):
        weights[f"{name}w"] = rand(1, 8 * gates, 8, scale=0.3)
        weights[f"{name}r"] = rand(1, 8 * gates, 8, seed=1, scale=0.3)
    return write_model(path, RECURRENT, weights, opset=17)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Variants that fail to build, crash, are slower, are faster, and run nowhere."""
    folder = tmp_path_factory.mktemp("faulty")
    recurrent_model(folder / "model.onnx")
    cell = mock_cell(
        ratios={"depthwise": 1.3, "rest": 0.6},
        faults={"all": "build", "crash": "crash_build", "crash later": "crash_run"},
    )
    return run(
        folder,
        cell
        + """
[[group]]
name = "depthwise"
where = ["depthwise"]
[[group]]
name = "rest"
where = ["not depthwise"]
[[variant]]
name = "all"
format = "int8"
[[variant]]
name = "crash"
format = "int8"
weights = "per_tensor"
[[variant]]
name = "crash later"
format = "int8"
sign = "s8"
zero_point = "symmetric"
[[variant]]
name = "depthwise"
format = "int8"
groups = ["depthwise"]
[[variant]]
name = "rest"
format = "int8"
groups = ["rest"]
[[variant]]
name = "fp8"
format = "fp8_e4m3"
[quality]
metric = "metric.py"
[policy]
max_loss = { accuracy = 0.9 }
""",
        (1, 3, 6, 6),
    )


def test_row_07_int8_only_where_it_is_faster(faulty: Study) -> None:
    """A depthwise convolution that int8 makes slower is told so, and is not shipped."""
    slow, fast = (faulty.summaries[n].comparison for n in ("depthwise", "rest"))
    assert slow is not None
    assert fast is not None
    assert (slow.verdict, fast.verdict) == ("slower", "faster")
    assert faulty.record.derived.decision.variant != "depthwise"


def test_row_08_a_build_that_fails_is_recorded(faulty: Study) -> None:
    """With the engine's words and the sites that were quantized; the study goes on."""
    failed = faulty.variants["all"]
    assert failed.state == "failed"
    assert "scripted build failure" in failed.reason
    assert {s.site for s in failed.sites} == {"stem", "depth", "head"}
    (line,) = [n for n in faulty.record.facts.not_run if n.what.endswith("time of all")]
    assert "scripted build failure" in line.reason
    assert faulty.record.derived.decision.kind == "ship"
    assert faulty.record.derived.decision.variant == "rest"
    assert "scripted build failure" in faulty.paths.readme.read_text()


@pytest.mark.parametrize("name", ["crash", "crash later"])
def test_row_28_a_crash_is_the_variants_result(faulty: Study, name: str) -> None:
    crashed = faulty.variants[name]
    assert crashed.state == "failed"
    assert "SIGSEGV" in crashed.reason
    assert faulty.variants["rest"].state == "measured"
    assert faulty.record.derived.decision.kind == "ship"


def test_row_10_kernels_are_read(faulty: Study) -> None:
    """Every layer of the profile says which kernel ran it, and in which precision."""
    profile = layers_of(faulty.record.facts)
    assert len(profile) > 10
    for layer in profile:
        assert layer.kernel
        assert layer.precision
        assert layer.time_ns > 0
    assert {s for layer in profile for s in layer.sites} == {"stem", "depth", "head"}


def test_row_15_what_no_engine_runs_is_emulated(faulty: Study) -> None:
    """Quality on all held-out samples, no time, and both say so."""
    fp8, found = faulty.variants["fp8"], faulty.summaries["fp8"]
    assert fp8.state == "emulated"
    assert fp8.quality is not None
    assert (fp8.quality.evidence, fp8.quality.n) == ("emulated", 6)
    assert (found.evidence, found.comparison) == ("emulated", None)
    assert found.time.startswith("not run: ")
    assert found.rel_l2 is not None
    assert 0 < found.rel_l2 < 0.2
    assert "emulated" in faulty.paths.readme.read_text()
    measured = faulty.variants["rest"].quality
    assert measured is not None
    assert measured.evidence == "measured"


def test_row_18_the_count_is_in_the_record(faulty: Study) -> None:
    assert faulty.record.facts.data.calibration.count == 5
    assert faulty.record.facts.data.holdout.count == 6
    for variant in faulty.variants.values():
        if variant.quality is not None:
            assert variant.quality.n == 6


def test_row_19_recurrent_operators_are_uncovered(faulty: Study) -> None:
    """Listed with the reason, their time is known, and no bound counts it as a site's."""
    facts = faulty.record.facts
    told = {what.split(":")[0]: what for _, what in facts.subject.uncovered}
    assert set(told) == {"LSTM", "GRU", "RNN"}
    assert all("not covered" in what for what in told.values())
    layers = layers_of(facts)
    recurrent = [layer for layer in layers if layer.op in told]
    assert len(recurrent) == 3
    assert all(layer.time_ns > 0 and layer.sites == () for layer in recurrent)
    total = sum(layer.time_ns for layer in layers)
    share = sum(layer.time_ns for layer in recurrent) / total
    derived = faulty.record.derived.cells[0]
    (everything,) = [b for b in derived.bounds if b.group == "all"]
    assert everything.share_of_profile <= 1 - share + 1e-6
    assert everything.ceiling_speedup is not None
    assert everything.ceiling_speedup <= 1 / share + 1e-6


def test_row_19_their_share_of_time_is_shown(faulty: Study) -> None:
    """What a recipe cannot touch is told with how much of the time it takes."""
    layers = layers_of(faulty.record.facts)
    total = sum(layer.time_ns for layer in layers)
    readme = faulty.paths.readme.read_text()
    for op in ("LSTM", "GRU", "RNN"):
        share = 100 * sum(layer.time_ns for layer in layers if layer.op == op) / total
        lines = [line for line in readme.splitlines() if op in line]
        told = [float(n) for line in lines for n in re.findall(r"([\d.]+)%", line)]
        assert any(n == pytest.approx(share, rel=0.01) for n in told), lines


def test_row_02_dead_channels_are_in_the_record(faulty: Study) -> None:
    told = dict(faulty.variants["rest"].dead)
    assert "1 of 8 output channels are all zeros (5)" in told["stem"]
    assert "stem" in faulty.paths.readme.read_text()


@pytest.mark.parametrize("name", ["depthwise", "rest", "fp8"])
def test_row_02_an_exported_variant_is_the_studied_one(
    faulty: Study, tmp_path: Path, name: str
) -> None:
    """With dead channels and biases too: the model is made again from the record alone."""
    target = tmp_path / "exported.onnx"
    _, variant = find_variant(faulty.record, name, None)
    export_variant(faulty.record, variant, faulty.folder / "model.onnx", target)
    onnx.checker.check_model(str(target))


def test_row_31_what_decided_does_not_judge(faulty: Study) -> None:
    """Two splits, each hashed; the held-out one is what every quality counts."""
    data = faulty.record.facts.data
    assert data.calibration.sha256 != data.holdout.sha256
    for variant in faulty.variants.values():
        if variant.quality is not None:
            assert variant.quality.n == data.holdout.count


def test_row_32_the_tasks_metric_beside_the_tensor_error(faulty: Study) -> None:
    """Both are there, over the same samples, each held-out one in the metric's values."""
    for name in ("baseline", "rest", "fp8"):
        quality = faulty.variants[name].quality
        assert quality is not None
        assert len(quality.metrics["accuracy"].values) == quality.n == 6
        assert quality.outputs["y"].cosine is not None
        assert quality.outputs["y"].rel_l2 is not None
    losses = faulty.summaries["rest"].losses
    assert [loss.metric for loss in losses] == ["accuracy"]
    text = faulty.paths.readme.read_text()
    assert "accuracy" in text


def small_mock(folder: Path, graph: str, weights: dict[str, Array], **cell: Any) -> Study:
    write_model(folder / "model.onnx", graph, weights)
    batch, held_out = cell.pop("batch", None), cell.pop("held_out", 1.0)
    head = mock_cell(**cell) + (f"batch = {batch}\n" if batch else "")
    text = f'{head}[[variant]]\nname = "int8"\nformat = "int8"\n'
    return run(folder, text, (1, 6), held_out)


PLAIN = "g (float[N, 6] x) => (float[N, 5] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
MIXING = (
    "g (float[N, 6] x) => (float[N, 5] y) { h = MatMul(x, w)"
    "m = ReduceMax<keepdims = 1>(h, first) r = Sub(h, m) y = MatMul(r, v) }"
)
PLAIN_WEIGHTS = {"w": rand(6, 6), "v": rand(6, 5)}


def test_row_11_the_baseline_is_checked_too(tmp_path: Path) -> None:
    """A baseline that computes something else than the reference gives no verdict."""
    study = small_mock(tmp_path, PLAIN, PLAIN_WEIGHTS, faults={"baseline": "nan"})
    baseline = study.variants["baseline"]
    assert baseline.quality is not None
    assert baseline.quality.outputs["y"].non_finite > 0
    comparison = study.summaries["int8"].comparison
    assert comparison is None or comparison.verdict == "void"
    assert study.record.derived.decision.kind != "ship"


def test_row_11_a_batch_that_mixes_its_samples(tmp_path: Path) -> None:
    """Right at batch 1 and wrong above: a result of the baseline, which ends the comparison."""
    weights = PLAIN_WEIGHTS | {"first": np.array([0])}
    study = small_mock(tmp_path, MIXING, weights, batch=4)
    baseline = study.variants["baseline"]
    assert baseline.batch_check is not None
    assert baseline.batch_check.n == 4
    assert baseline.state == "failed"
    assert "mixes the samples" in baseline.reason
    assert "int8" not in study.variants or study.variants["int8"].state != "measured"
    assert study.record.derived.decision.kind != "ship"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A variant that is faster, timed on a batch, and no metric to judge it by."""
    folder = tmp_path_factory.mktemp("fast")
    return small_mock(folder, PLAIN, PLAIN_WEIGHTS, ratios={"int8": 0.5}, batch=4)


def test_row_11_quality_at_the_timed_shape(fast: Study) -> None:
    """The batch that is timed is compared with its samples, for every variant."""
    assert fast.record.facts.cells[0].shape["x"] == (4, 6)
    for name in ("baseline", "int8"):
        check = fast.variants[name].batch_check
        assert check is not None
        assert check.n == 4
        assert check.rel_l2 is not None
        assert check.rel_l2 <= check.limit
        assert fast.variants[name].state == "measured"


def test_row_32_without_a_metric_nothing_is_shipped(fast: Study) -> None:
    """A mean cosine decides nothing: undecided, for want of the task's own metric."""
    assert fast.record.derived.decision.kind == "undecided"
    assert "no task metric" in fast.record.derived.decision.sentence
    quality = fast.variants["int8"].quality
    assert quality is not None
    assert (quality.outputs["y"].cosine or 0) > 0.99


def test_row_31_scales_know_nothing_of_the_held_out_data(fast: Study, tmp_path: Path) -> None:
    """Held-out samples that are ten times as large: the same scales, and the loss is seen."""
    other = small_mock(tmp_path, PLAIN, PLAIN_WEIGHTS, held_out=10.0)
    data = [s.record.facts.data for s in (fast, other)]
    assert data[0].calibration.sha256 == data[1].calibration.sha256
    assert data[0].holdout.sha256 != data[1].holdout.sha256
    assert fast.variants["int8"].sites == other.variants["int8"].sites
    assert len(fast.variants["int8"].sites) == 2
    errors = [s.summaries["int8"].rel_l2 for s in (fast, other)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[1] > 5 * errors[0]


OVERLAP = """
import numpy as np

def _x(i):
    return {{"x": np.full((1, 6), i, np.float32)}}, None

def calibration(count, seed):
    return (_x(i) for i in {calibration})

def holdout(count, seed):
    return (_x(i) for i in {holdout})
"""


@pytest.mark.parametrize("source", ["npz", "module"])
@pytest.mark.parametrize(
    ("calibration", "holdout", "pair"),
    [
        ([1, 2, 3], [4, 5, 3], "2 (= calibration 2)"),
        ([1, 2, 3], [1, 2, 3], "0 (= calibration 0)"),
        ([1, 2, 3], [9, 8, 1], "2 (= calibration 0)"),
        ([1, 2, 3], [4, 5, 6], None),
    ],
)
def test_row_31_a_sample_in_both_splits_is_refused(
    bitworth: Callable[..., Any],
    tmp_path: Path,
    source: str,
    calibration: list[int],
    holdout: list[int],
    pair: str | None,
) -> None:
    """By its content, wherever it stands; named, in one line, with exit code 2."""
    write_model(tmp_path / "model.onnx", PLAIN, PLAIN_WEIGHTS)
    if source == "npz":
        for name, values in (("c", calibration), ("h", holdout)):
            rows = [np.full((1, 6), v, np.float32) for v in values]
            np.savez(tmp_path / f"{name}.npz", x=np.concatenate(rows))
        data = 'calibration = "c.npz"\nholdout = "h.npz"'
    else:
        text = OVERLAP.format(calibration=calibration, holdout=holdout)
        (tmp_path / "inputs.py").write_text(text)
        data = 'source = "inputs.py"\ncalibration_samples = 3\nholdout_samples = 3'
    # A metric that is not there ends the study at once where the data is right.
    metric = "[policy]\nmax_loss = { none = 0.1 }\n" if pair is None else ""
    (tmp_path / "study.toml").write_text(
        f'version = 1\n[subject]\nname = "s"\nonnx = "model.onnx"\n[data]\n{data}\n'
        f'[[cell]]\nengine = "mock"\n[[variant]]\nname = "int8"\nformat = "int8"\n{metric}'
    )
    outcome = bitworth("study", "study.toml")
    assert outcome.code == 2, outcome.err
    line = outcome.err.strip().splitlines()[-1]
    if pair is None:
        assert "calibration" not in line
        return
    assert "held-out" in line
    assert pair in line
