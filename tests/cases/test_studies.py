"""Rows 7, 8, 10, 11, 15, 18, 19, 22, 23, 25, 26, 28, 31 and 32: whole studies.

A study that several rows read runs once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

from bitworth.engines.base import EngineOptions
from bitworth.lowering.onnx_qdq import lower
from bitworth.measurement.plans import build_plan
from bitworth.measurement.workers import Worker
from bitworth.recipe import PER_TENSOR
from bitworth.record.schema import Record, VariantFacts, VariantSummary
from bitworth.study.config import read_study_file
from bitworth.study.outputs import OutputPaths
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study
from bitworth.subject.saving import save

from .tools import Array, case, rand, recipe_for, write_model

INPUTS = """
import numpy as np

def _samples(count, seed, split):
    for i in range(count):
        rng = np.random.default_rng((seed, split, i))
        yield {{"x": rng.standard_normal({shape}).astype(np.float32)}}, {{"i": i}}

def calibration(count, seed):
    return _samples(count, seed, 0)

def holdout(count, seed):
    return _samples(count, seed, 1)
"""
METRIC = """
METRICS = {"accuracy": {"kind": "binary", "better": "higher"}}

def make_metric(metadata):
    def score(outputs, target):
        return {"accuracy": float(abs(outputs["y"]).max() < 1e6)}
    return score
"""


@dataclass(frozen=True)
class Study:
    """What a study left behind."""

    record: Record
    paths: OutputPaths

    @property
    def variants(self) -> dict[str, VariantFacts]:
        return {v.name: v for v in self.record.facts.cells[0].variants}

    @property
    def summaries(self) -> dict[str, VariantSummary]:
        return {s.variant: s for s in self.record.derived.cells[0].variants}


def run(folder: Path, text: str, shape: tuple[int, ...]) -> Study:
    """Run the study in ``folder``, where its model lies; inputs and metric are written."""
    (folder / "inputs.py").write_text(INPUTS.format(shape=shape))
    (folder / "metric.py").write_text(METRIC)
    head = """
version = 1
[subject]
name = "case"
onnx = "model.onnx"
[data]
source = "inputs.py"
calibration_samples = 5
holdout_samples = 6
[timing]
budget_minutes = 0.01
min_sessions = 2
max_sessions = 2
"""
    (folder / "study.toml").write_text(head + text)
    request = StudyRequest(
        read_study_file(folder / "study.toml"), folder, folder / "studies", "bitworth study"
    )
    return Study(*run_study(request, Reporter(Console(), quiet=True)))


def mock_cell(**script: Any) -> str:
    told = json.dumps({"base_ns": 2e6, "sigma": 0.001, **script})
    return f'[[cell]]\nengine = "mock"\nthreads = 1\noptions = {{ script = {json.dumps(told)} }}\n'


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
    profile = faulty.record.facts.cells[0].profile
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
    layers = facts.cells[0].profile
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
    layers = faulty.record.facts.cells[0].profile
    total = sum(layer.time_ns for layer in layers)
    readme = faulty.paths.readme.read_text()
    for op in ("LSTM", "GRU", "RNN"):
        share = 100 * sum(layer.time_ns for layer in layers if layer.op == op) / total
        lines = [line for line in readme.splitlines() if op in line]
        assert any(f"{share:.1f}%" in line or f"{share:.0f}%" in line for line in lines), lines


def test_row_02_dead_channels_are_in_the_record(faulty: Study) -> None:
    told = dict(faulty.variants["rest"].dead)
    assert "1 of 8 output channels are all zeros (5)" in told["stem"]
    assert "stem" in faulty.paths.readme.read_text()


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


REAL = """
g (float[N, 4, 8, 8] x) => (float[N, 5, A, B] y) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w, b)  r = ACT  y = Conv(r, v)
}
"""


def real_model(path: Path, function: str, denormal: bool = False) -> Path:
    weights: dict[str, Array] = {"w": rand(8, 4, 3, 3), "b": rand(8), "v": rand(5, 8, 3, 3)}
    if denormal:
        flat = weights["w"].reshape(-1)
        flat[::10] = 1e-40
    if "low" in function:
        weights |= {"low": np.array(0, np.float32), "high": np.array(1e6, np.float32)}
    return write_model(path, REAL.replace("ACT", function), weights)


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """onnxruntime with models that were quantized elsewhere beside recipes of its own."""
    folder = tmp_path_factory.mktemp("candidates")
    model = real_model(folder / "model.onnx", "Relu(c)", denormal=True)
    clipped = real_model(folder / "clipped.onnx", "Clip(c, low, high)", denormal=True)
    sample = {"x": rand(1, 4, 8, 8)}
    for name, source, fmt in (
        ("relu_fp8.onnx", model, "fp8_e4m3"),
        ("clip_fp8.onnx", clipped, "fp8_e4m3"),
        ("elsewhere_int8.onnx", model, "int8"),
    ):
        variant = case(source, [sample]).scaled(
            recipe_for(fmt, weight_range=_RANGE.get(fmt, "auto"))
        )
        save(lower(variant.graph.prepared, variant.scaled.quantized), folder / name)
    return run(
        folder,
        """
[[cell]]
engine = "onnxruntime"
threads = 1
[[variant]]
name = "int8"
format = "int8"
[[variant]]
name = "fp8"
format = "fp8_e4m3"
[[variant]]
name = "fp8 behind Relu"
source = "file"
path = "relu_fp8.onnx"
[[variant]]
name = "fp8 behind Clip"
source = "file"
path = "clip_fp8.onnx"
[[variant]]
name = "int8 from elsewhere"
source = "file"
path = "elsewhere_int8.onnx"
[policy]
max_rel_l2 = 0.2
""",
        (1, 4, 8, 8),
    )


_RANGE: dict[str, Any] = {"int8": "reduced"}


def test_row_25_garbage_is_void_with_the_reason(candidates: Study) -> None:
    """Loaded without a word, and wrong: both errors are told, and there is no verdict."""
    wrong = candidates.variants["fp8 behind Relu"]
    assert wrong.check is not None
    assert wrong.check.unoptimized_rel_l2 is not None
    assert wrong.check.optimized_rel_l2 is not None
    assert wrong.check.unoptimized_rel_l2 < 0.1
    assert wrong.check.optimized_rel_l2 > 2 * wrong.check.unoptimized_rel_l2 + 0.01
    found = candidates.summaries["fp8 behind Relu"].comparison
    assert found is not None
    assert found.verdict == "void"
    assert "without optimization" in found.reason
    assert candidates.record.derived.decision.variant != "fp8 behind Relu"


def test_row_26_what_is_refused_is_recorded(candidates: Study) -> None:
    refused = candidates.variants["fp8 behind Clip"]
    assert refused.state == "failed"
    assert "refused" in refused.reason
    assert "onnxruntime" in refused.reason
    # The product's own FP8 recipe does not depend on it: it is emulated.
    assert candidates.variants["fp8"].state == "emulated"
    assert candidates.variants["int8"].state == "measured"


def test_row_21_a_quantized_model_is_a_variant(candidates: Study) -> None:
    """Beside its float original, which is the baseline and the reference."""
    found = candidates.variants["int8 from elsewhere"]
    assert (found.source, found.state) == ("file", "measured")
    summary = candidates.summaries["int8 from elsewhere"]
    assert summary.rel_l2 is not None
    assert 0 < summary.rel_l2 < 0.2
    assert candidates.summaries["baseline"].rel_l2 is not None
    assert (candidates.summaries["baseline"].rel_l2 or 0) < 1e-4


def test_row_23_plan_bytes_are_those_of_the_plan(candidates: Study) -> None:
    """The engine rewrites the model: the ratio is that of its files."""
    base = candidates.variants["baseline"].plan
    assert base is not None
    for name, variant in candidates.variants.items():
        if variant.plan is not None:
            ratio = candidates.summaries[name].plan_bytes_ratio
            assert ratio == pytest.approx(variant.plan.bytes / base.bytes, rel=1e-5)
            assert variant.plan.layers != {}


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "mock"])
@pytest.mark.parametrize("channels", [2, 64])
def test_row_23_a_small_network_grows(tmp_path: Path, engine: str, channels: int) -> None:
    """Its scales and nodes outweigh what its weights save; a larger one's do not."""
    graph = f"g (float[N, {channels}] x) => (float[N, K] y) {{ a = MatMul(x, w) y = MatMul(a, w) }}"
    weights = {"w": rand(channels, channels)}
    path = write_model(tmp_path / "m.onnx", graph, weights)
    subject = case(path, [{"x": rand(3, channels)}])
    sizes = []
    with Worker("size", tmp_path / "log", engine) as worker:
        for name, model in (
            ("fp32", subject.prepared.model),
            ("int8", subject.lowered(recipe_for("int8", weights=PER_TENSOR))),
        ):
            save(model, tmp_path / f"{name}.onnx")
            plan = tmp_path / name / "plan.bin"
            built = build_plan(
                worker, engine, tmp_path / f"{name}.onnx", name, "fp32", EngineOptions(1), plan
            )
            assert built["size_bytes"] == plan.stat().st_size
            sizes.append(built["size_bytes"])
    assert (sizes[1] > sizes[0]) == (channels == 2)


def test_row_30_the_baseline_is_made_fair(candidates: Study) -> None:
    """Denormal weights are zero in the baseline and in every variant; the plain one is shown."""
    subject = candidates.record.facts.subject
    assert subject.denormal_weights == 29
    assert any("29 denormal weights" in note for note in candidates.record.facts.cells[0].notes)
    plain = candidates.summaries["as given"].comparison
    assert plain is not None
    assert candidates.record.derived.decision.variant != "as given"


def test_row_22_quality_and_time_are_of_one_plan(candidates: Study) -> None:
    """One optimization level in the cell, and what is timed is the plan that was judged."""
    cell = candidates.record.facts.cells[0]
    assert cell.options["optimization"] == "all"
    timed = {label for job in cell.jobs for label in job.labels}
    for name, variant in candidates.variants.items():
        if variant.state == "measured":
            assert variant.plan is not None
            assert name in timed
            if name != "as given":
                assert variant.quality is not None
                assert variant.quality.evidence == "measured"


def small_mock(folder: Path, graph: str, weights: dict[str, Array], **cell: Any) -> Study:
    write_model(folder / "model.onnx", graph, weights)
    batch = cell.pop("batch", None)
    head = mock_cell(**cell) + (f"batch = {batch}\n" if batch else "")
    return run(folder, f'{head}[[variant]]\nname = "int8"\nformat = "int8"\n', (1, 6))


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


@pytest.mark.parametrize("mixes", [True, False])
def test_row_11_quality_at_the_timed_shape(tmp_path: Path, mixes: bool) -> None:
    """Right at batch 1 and wrong above: the batch that is timed is what is compared."""
    study = small_mock(
        tmp_path,
        MIXING if mixes else PLAIN,
        PLAIN_WEIGHTS | ({"first": np.array([0])} if mixes else {}),
        batch=4,
    )
    for name in ("baseline", "int8"):
        variant = study.variants.get(name)
        if mixes and name == "int8":
            assert variant is None or variant.state != "measured"
            continue
        assert variant is not None
        assert variant.batch_check is not None
        assert variant.batch_check.n == 4
        assert (variant.state == "failed") == mixes
        if mixes:
            assert "mixes the samples" in variant.reason
    shapes = study.record.facts.cells[0].shape
    assert shapes["x"] == (4, 6)


def test_row_32_without_a_metric_nothing_is_shipped(tmp_path: Path) -> None:
    """A mean cosine decides nothing: undecided, for want of the task's own metric."""
    study = small_mock(tmp_path, PLAIN, PLAIN_WEIGHTS, ratios={"int8": 0.5})
    assert study.record.derived.decision.kind == "undecided"
    assert "no task metric" in study.record.derived.decision.sentence
    cosine = study.variants["int8"].quality
    assert cosine is not None
    assert (cosine.outputs["y"].cosine or 0) > 0.99


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


def test_row_31_scales_know_nothing_of_the_held_out_data(tmp_path: Path) -> None:
    """Other held-out samples, ten times as large: the same scales to the bit."""
    found = []
    for scale in (1, 10):
        folder = tmp_path / str(scale)
        folder.mkdir()
        write_model(folder / "model.onnx", PLAIN, PLAIN_WEIGHTS)
        text = INPUTS.replace("split, i))\n", "split, i))\n").replace(
            ".astype(np.float32)", f".astype(np.float32) * np.float32({scale} if split else 1)"
        )
        (folder / "inputs.py").write_text(text.format(shape=(1, 6)))
        model = onnx.load(folder / "model.onnx")
        assert numpy_helper.to_array(model.graph.initializer[0]).shape == (6, 6)
        namespace: dict[str, Any] = {}
        exec((folder / "inputs.py").read_text(), namespace)
        samples = [inputs for inputs, _ in namespace["calibration"](4, 0)]
        variant = case(folder / "model.onnx", samples).scaled(recipe_for("int8"))
        found.append([q.activation.scale for q in variant.scaled.quantized])  # type: ignore[union-attr]
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
