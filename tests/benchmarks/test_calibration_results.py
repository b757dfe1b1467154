"""The calibration benchmark: its committed results, its arithmetic, and both of its sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.calibration import ours, theirs
from benchmarks.calibration.job import Call, Cost, Job, OurRun, VariantCost
from benchmarks.calibration.pairs import GROUPS, PAIRS
from benchmarks.calibration.processes import Stopped, run
from benchmarks.calibration.render import BEGIN, END, insert, render_report
from benchmarks.calibration.report import (
    CALIBRATORS,
    CalibrationReport,
    Round,
    comparisons,
    limits,
    read_report,
    write_report,
)
from benchmarks.calibration.samples import Sample, read_samples, write_samples
from bitworth.record.schema import EnvironmentFacts

ROOT = Path(__file__).parents[2]
REPORTS = sorted((ROOT / "benchmarks" / "results").glob("*/calibration.json"))
DOCUMENT = (ROOT / "docs" / "calibration.md").read_text()
EQUAL = [pair for pair in PAIRS if pair.likeness == "equal"]


def test_there_are_results() -> None:
    assert REPORTS


def test_every_limit_is_kept() -> None:
    for path in REPORTS:
        report = read_report(path)
        assert [text for text, kept in limits(report) if not kept] == [], path
        assert {run.count for run in report.ours} == {96}
        assert {run.count for run in report.many} == {1024}


def test_the_documentation_shows_the_figures_that_are_committed() -> None:
    start, end = DOCUMENT.index(BEGIN) + len(BEGIN), DOCUMENT.index(END)
    rendered = [render_report(read_report(path)) for path in REPORTS]
    # Without results the page shows none, and says so.
    expected = any(insert(DOCUMENT, text) == DOCUMENT for text in rendered)
    assert expected or (not REPORTS and not DOCUMENT[start:end].strip())


def test_a_document_without_a_place_is_told() -> None:
    with pytest.raises(ValueError, match="no place"):
        insert("# Title", "| a |")


def test_sixteen_variants_and_what_differs_is_said() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) == 16
    assert {pair.entry.calibrator.name for pair in PAIRS} == set(CALIBRATORS)
    for pair in PAIRS:
        assert bool(pair.differs) == (pair.likeness != "equal"), pair.name
        # The counterpart quantizes the operators of the same group.
        assert pair.call.ops == GROUPS[pair.entry.group], pair.name


def test_an_equal_call_asks_for_the_same() -> None:
    methods = {"max": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
    for pair in EQUAL:
        entry, call = pair.entry, pair.call
        assert call.method == methods[entry.calibrator.name]
        assert call.weight == "QInt8"
        assert call.activation == {"u8": "QUInt8", "s8": "QInt8"}[entry.sign]
        assert call.options.get("ActivationSymmetric", False) == (entry.zero_point == "symmetric")
        assert call.per_channel == (entry.weights.kind == "per_channel")
        if entry.calibrator.name == "percentile":
            assert call.options["CalibPercentile"] == entry.calibrator.percentile


def our_run(seconds: float, count: int = 96, peak: int = 300_000_000) -> OurRun:
    """A run of which each of the sixteen variants, and the pass, takes so long."""
    cost = Cost(seconds, 2 * seconds)
    variant = VariantCost(cost, Cost(0.0, 0.0), weights=66)
    return OurRun(
        count, 100_000_000, dict.fromkeys(("one pass", *CALIBRATORS), peak),
        {"one pass over the samples": cost}, {pair.name: variant for pair in PAIRS},
    )  # fmt: skip


def their_call(name: str, seconds: float) -> Call:
    return Call(name, Cost(seconds, seconds), 5_000_000_000, weights=66)


def report_of(*rounds: Round, many: OurRun | None = None) -> CalibrationReport:
    return CalibrationReport(
        environment=EnvironmentFacts(
            bitworth="1", python="3", platform="Linux", cpu="cpu", cores=2, memory_bytes=1,
            libraries={},
        ),
        model="m.onnx",
        model_sha256="0",
        model_bytes=20_000_000,
        threads=2,
        load=(0.0, 0.0),
        prepared={opset: Cost(1.0, 1.0) for opset in {pair.call.opset for pair in PAIRS}},
        rounds=rounds,
        many=(many or our_run(1.0, count=1024),),
    )  # fmt: skip


def a_round(ours_s: tuple[float, ...], theirs_s: float) -> Round:
    return Round(
        tuple(our_run(s) for s in ours_s),
        tuple(their_call(pair.name, theirs_s) for pair in PAIRS),
        (),
    )


def test_totals_and_their_extremes() -> None:
    report = report_of(a_round((1.0, 2.0), 10.0), a_round((1.5,), 20.0))
    whole, equal, cheapest, alone = comparisons(report)
    opsets = len(report.prepared)
    # Bitworth's pass counts once, and so does preparing the model for each opset.
    assert [c.wall_s for c in whole.ours] == [17.0, 34.0, 25.5]
    assert [c.wall_s for c in whole.theirs] == [160.0 + opsets, 320.0 + opsets]
    assert whole.ratio() == pytest.approx((240.0 + opsets) / 25.5)
    assert whole.ratio(cpu=True) == pytest.approx((240.0 + opsets) / 51.0)
    assert whole.extremes == ((160.0 + opsets) / 34.0, (320.0 + opsets) / 17.0)
    assert equal.ours[0].wall_s == 1.0 + len(EQUAL)
    assert equal.theirs[0].wall_s == 10.0 * len(EQUAL) + 1.0
    assert cheapest.theirs[0].wall_s == 160.0
    assert (alone.ours[0].wall_s, alone.theirs[0].wall_s) == (2.0, 11.0)


def test_a_call_that_did_not_end_counts_nothing() -> None:
    whole = a_round((1.0,), 10.0)
    lost = Call(PAIRS[0].name, None, 10_000_000_000, failed="stopped at 10.0 GB")
    report = report_of(replace(whole, theirs=(lost, *whole.theirs[1:])))
    assert comparisons(report)[0].theirs[0].wall_s == 150.0 + len(report.prepared)
    assert "stopped at 10.0 GB" in render_report(report)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        (report_of(a_round((1.0,), 10.0)), 0),
        (report_of(a_round((1.0,), 5.0)), 1),  # too slow
        (report_of(a_round((1.0, 3.0), 10.0)), 1),  # the slower run counts
        (report_of(a_round((1.0,), 10.0), many=our_run(1.0, 1024, peak=421_000_000)), 1),
        (report_of(replace(a_round((1.0,), 10.0), theirs=(their_call(EQUAL[0].name, 999.0),))), 8),
    ],
)
def test_limits(changed: CalibrationReport, missed: int) -> None:
    assert len([text for text, kept in limits(changed) if not kept]) == missed


def test_a_report_reads_back(tmp_path: Path) -> None:
    report = report_of(a_round((1.0,), 10.0))
    write_report(report, tmp_path / "machine" / "calibration.json")
    assert read_report(tmp_path / "machine" / "calibration.json") == report


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Both sides on a small model: a convolution and a product."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((4, 3, 3, 3), dtype=np.float32),
        "w1": rng.standard_normal((4, 5), dtype=np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["c"], name="conv"),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("ReduceMean", ["r"], ["m"], name="mean", axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["m", "w1"], ["y"], name="product"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")

    def samples() -> Iterator[Sample]:
        for _ in range(3):
            yield {"x": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)}

    name, shape = write_samples(samples(), tmp_path / "samples.bin")
    return Job(
        "ours", tmp_path / "model.onnx", tmp_path / "samples.bin", name, shape, 3, (), 1, tmp_path,
        {17: tmp_path / "model.onnx"},
    )  # fmt: skip


def test_samples_come_back(job: Job) -> None:
    first, second, _ = read_samples(job.samples, job.input, job.shape, 3)
    assert first["x"].shape == (1, 3, 8, 8)
    assert not np.array_equal(first["x"], second["x"])
    with pytest.raises(ValueError, match="reshape"):
        list(read_samples(job.samples, job.input, job.shape, 4))


def test_equal_pairs_quantize_the_same_weights(job: Job) -> None:
    found = ours.run(job)
    assert set(found.variants) == {pair.name for pair in PAIRS}
    assert set(found.peak_bytes) == {"one pass", *CALIBRATORS}
    expected = {"all": 2, "conv": 1, "matmul": 1}
    for pair in EQUAL:
        assert found.variants[pair.name].weights == expected[pair.entry.group]
        call = theirs.call(job, pair)
        assert call.cost is not None, call.failed
        assert call.weights == found.variants[pair.name].weights, pair.name


def test_calls_can_share_ranges(job: Job) -> None:
    names = tuple(pair.name for pair in PAIRS[:2])
    found = theirs.calls(replace(job, side="cached", pairs=names))
    assert [call.pair for call in found] == list(names)
    assert all(call.cost for call in found)
    assert len(list(job.folder.glob("minmax*.json"))) == 1


def test_a_call_that_raises_is_a_result(job: Job) -> None:
    fp8 = next(pair for pair in PAIRS if pair.call.activation == "QFLOAT8E4M3FN")
    broken = replace(fp8, call=replace(fp8.call, method="MinMax", opset=17))
    assert "Distribution" in theirs.call(job, broken).failed


def test_a_process_that_holds_too_much_is_stopped(job: Job) -> None:
    with pytest.raises(Stopped, match=r"stopped at 0\.0 GB") as stopped:
        run(job, limit_bytes=1_000_000, limit_s=60.0)
    assert stopped.value.held_bytes > 1_000_000


def test_a_process_that_fails_says_why(job: Job) -> None:
    missing = replace(job, model=job.folder / "none.onnx")
    with pytest.raises(Stopped, match="no such file"):
        run(missing, limit_bytes=8_000_000_000, limit_s=60.0)
