"""Rows 21, 22, 23, 25, 26 and 30: a study on onnxruntime, with models quantized elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitworth.engines.base import EngineOptions
from bitworth.lowering.onnx_qdq import lower
from bitworth.measurement.plans import build_plan
from bitworth.measurement.workers import Worker
from bitworth.recipe import PER_TENSOR
from bitworth.subject.saving import save

from .studies import Study, run
from .tools import Array, case, rand, recipe_for, write_model

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
    ):
        variant = case(source, [sample]).scaled(recipe_for(fmt))
        save(lower(variant.graph.prepared, variant.scaled.quantized), folder / name)
    return run(
        folder,
        """
[free_wins]
standard = false
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
[policy]
max_rel_l2 = 0.2
""",
        (1, 4, 8, 8),
    )


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
    for name in ("fp8 behind Relu", "fp8 behind Clip"):
        found = candidates.variants[name]
        assert found.source == "file"
        assert found.file_sha256
        assert found.recipe is None
    assert candidates.variants["fp8 behind Relu"].quality is not None
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
