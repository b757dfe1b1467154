"""The example on the real engines, with few samples and sessions: every step, no claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from rich.console import Console

from bitworth.engines.cpu import usable_cores
from bitworth.record.derive import derive
from bitworth.record.schema import Record
from bitworth.record.store import read_record
from bitworth.study.config import read_study_file
from bitworth.study.export import export_variant, find_variant
from bitworth.study.outputs import OutputPaths
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study
from bitworth.study.sections import FreeWinsConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, OutputPaths]:
    config = read_study_file(EXAMPLE / "study.toml")
    data = {"calibration_samples": 8, "holdout_samples": 24}
    timing = {"budget_minutes": 0.02, "min_sessions": 2, "max_sessions": 2}
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "timing": config.timing.model_copy(update=timing),
            # They have a test of their own, on a model that takes less time.
            "free_wins": FreeWinsConfig(standard=False),
        }
    )
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("study")
    patch.setenv("TMPDIR", str(folder))
    patch.setattr("tempfile.tempdir", None)
    request = StudyRequest(config, EXAMPLE, folder, "bitworth study examples/ocr/study.toml")
    try:
        return run_study(request, Reporter(Console(), quiet=True))
    finally:
        patch.undo()


def test_every_variant_has_an_answer(outcome: tuple[Record, OutputPaths]) -> None:
    record, paths = outcome
    stored = read_record(paths.record)
    assert derive(stored.facts).model_dump_json() == stored.derived.model_dump_json()
    assert [c.engine for c in record.facts.cells] == ["onnxruntime", "openvino"]
    for cell, derived in zip(record.facts.cells, record.derived.cells, strict=True):
        by_name = {v.name: v for v in cell.variants}
        for name in ("baseline", "int8 all", "int8 conv", "int8 matmul"):
            variant = by_name[name]
            assert variant.state == "measured", variant.reason
            assert variant.plan is not None
            assert variant.plan.precision == "fp32"
            assert variant.quality is not None
            assert variant.quality.n == 24
        assert by_name["fp8_e4m3 all"].state == "emulated"
        support = cell.formats["bf16"][0]
        expected = {"native": "measured", "emulated": "emulated", "absent": "not run"}
        assert by_name["bf16"].state == expected[support]
        assert len(by_name["int8 all"].sites) == 57 + 9  # Conv, and MatMul with a weight
        assert by_name["int8 all"].plan is not None
        assert by_name["baseline"].plan is not None
        assert by_name["int8 all"].plan.bytes < 0.5 * by_name["baseline"].plan.bytes
        assert derived.profile_coverage is not None
        assert derived.profile_coverage > 0.5
        bounds = {b.group: b for b in derived.bounds}
        assert bounds["all"].share_of_profile <= 1
        assert bounds["conv"].share_of_profile > bounds["matmul"].share_of_profile
        errors = {s.variant: s.rel_l2 for s in derived.variants}
        assert (errors["baseline"] or 1) < 1e-4
        assert 0.001 < (errors["int8 matmul"] or 0) < (errors["int8 all"] or 0) < 0.6


def test_denormal_weights_of_the_recogniser_are_gone(outcome: tuple[Record, OutputPaths]) -> None:
    record, _ = outcome
    assert record.facts.subject.denormal_weights == 241
    assert any("as given" in job.labels for job in record.facts.cells[0].jobs)


def test_an_exported_variant_loads_in_a_plain_engine(
    outcome: tuple[Record, OutputPaths], tmp_path: Path
) -> None:
    record, _ = outcome
    _, variant = find_variant(record, "int8 all", "onnxruntime")
    target = tmp_path / "int8.onnx"
    export_variant(record, variant, None, target)
    onnx.checker.check_model(str(target))
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    x = np.zeros((1, 3, 48, 240), np.float32)
    assert np.isfinite(session.run(None, {"x": x})[0]).all()


def test_throughput_and_batches_on_the_real_engines(folder: Any) -> None:
    """Streams as asked for or chosen, batches that agree with their samples, and a rate each."""
    path: Path = folder.write(budget_minutes=0.01, min_sessions=2, max_sessions=2)
    text = path.read_text()
    start, end = text.index("[[cell]]"), text.index("[[group]]")
    cells = """
[free_wins]
standard = false
[[cell]]
engine = "onnxruntime"
mode = "throughput"
batch = 4
[[cell]]
engine = "openvino"
mode = "throughput"
threads = 2
streams = 2
batch = 2
"""
    path.write_text(text[:start] + cells + text[end:])
    request = StudyRequest(read_study_file(path), folder.root, folder.root / "studies", "study")
    record, _ = run_study(request, Reporter(Console(), quiet=True))
    ort, ov = record.facts.cells
    cores = usable_cores()
    assert (ort.threads, ort.streams, ort.batch) == (1, cores, 4)
    assert (ov.threads, ov.streams, ov.batch) == (2, 2, 2)
    for cell, derived in zip((ort, ov), record.derived.cells, strict=True):
        assert cell.jobs[0].inner == cell.streams
        by_name = {v.name: v for v in cell.variants}
        for name in ("baseline", "int8 all", "int8 conv"):
            variant = by_name[name]
            assert variant.state == "measured", variant.reason
            assert variant.plan is not None
            assert variant.plan.precision == "fp32"
            assert variant.batch_check is not None
            assert variant.batch_check.n == cell.batch
        exact = by_name["baseline"].batch_check
        assert exact is not None
        assert (exact.rel_l2 or 0) < 1e-5
        samples = cell.jobs[0].sessions[0].samples_ns
        assert all(ns > 0 for row in samples for block in row for ns in block)
        rates = {row.variant: row.throughput for row in derived.latency}
        assert all(rate is not None and rate.items_per_s > 0 for rate in rates.values())
