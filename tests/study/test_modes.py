"""Throughput, tail and batches through a whole study on the mock engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore, store_arrays
from bitworth.measurement.batch import batch_error, batched
from bitworth.measurement.tail import samples_needed, tail_shape
from bitworth.measurement.timing import MAX_SAMPLES, block_shape
from bitworth.measurement.workers import WorkerFailed
from bitworth.record.derive import cell_names, derive
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record, VariantSummary
from bitworth.record.store import read_record
from bitworth.record.tables import cell_title
from bitworth.study import cell_run
from bitworth.study.config import read_study_file
from bitworth.study.sections import CellConfig
from bitworth.study.timed_input import batch_samples, check_batches, timed_input
from bitworth.subject.onnx_model import InputSpec
from bitworth.verdict import rounds_in_session

from .conftest import run


def write(folder: Any, *cells: str, script: dict[str, Any] | None = None, **timing: Any) -> Path:
    """The study with these cells; each is the lines that it adds to the mock's."""
    path: Path = folder.write(script, **timing)
    text = path.read_text()
    start, end = text.index("[[cell]]"), text.index("[[group]]")
    base = text[start:end].rstrip()
    told = "\n".join(f"{base}\n{cell}" for cell in cells)
    path.write_text(f"{text[:start]}{told}\n{text[end:]}")
    return path


def summaries(record: Record, cell: int) -> dict[str, VariantSummary]:
    return {s.variant: s for s in record.derived.cells[cell].variants}


def test_modes_side_by_side_are_cells_of_their_own(folder: Any) -> None:
    """Each has its own baseline, copy, verdicts and absolute times; its name says what it times."""
    write(
        folder,
        "",
        'mode = "throughput"\nstreams = 3\nbatch = 4',
        'mode = "tail"',
        script={"ratios": {"int8 all": 0.8, "int8 conv": 1.25}, "spike_share": 0.05},
    )
    record, paths = run(folder)
    host, throughput, _ = cells = record.facts.cells
    assert [c.mode for c in cells] == ["host", "throughput", "tail"]
    assert [c.streams for c in cells] == [1, 3, 1]
    assert [c.batch for c in cells] == [None, 4, None]
    assert [c.quantile for c in cells] == [None, None, 0.99]
    assert [c.options.get("streams") for c in cells] == [None, "3", None]
    assert (host.shape["x"], throughput.shape["x"]) == ((1, 3, 8, 8), (4, 3, 8, 8))
    assert [c.jobs[0].inner for c in cells] == [1, 3, 1]
    for index, cell in enumerate(cells):
        assert cell.jobs[0].labels[:2] == ("baseline", "baseline again")
        found = summaries(record, index)
        fast, slow = found["int8 all"].comparison, found["int8 conv"].comparison
        assert fast is not None
        assert slow is not None
        assert (fast.verdict, slow.verdict) == ("faster", "slower"), cell.mode
        assert fast.time_ratio == pytest.approx(0.8, rel=0.05)
    names = cell_names(record.facts)
    assert names == (
        "mock 1, 1 threads",
        "mock 1, 1 threads, throughput of 3 streams, batch 4",
        "mock 1, 1 threads, tail at quantile 0.99",
    )
    assert tuple(cell_title(record, i).text for i in range(3)) == names
    stored = read_record(paths.record)
    assert derive(stored.facts).model_dump_json() == stored.derived.model_dump_json()
    check_absolute_times(record)


def check_absolute_times(record: Record) -> None:
    host, throughput, tail = (
        {row.variant: row for row in cell.latency} for cell in record.derived.cells
    )
    assert set(host) == {"baseline", "int8 all", "int8 conv"}
    p50 = host["baseline"].p50
    assert p50 is not None
    assert p50.value_ns == pytest.approx(2e6, rel=0.01)
    assert p50.low_ns is not None
    assert p50.high_ns is not None
    assert p50.low_ns <= p50.value_ns <= p50.high_ns
    assert p50.n == len(record.facts.cells[0].jobs[0].sessions)

    job, row = record.facts.cells[1].jobs[0], throughput["baseline"]
    assert (row.p50, row.tail) == (None, None)
    assert row.throughput is not None
    samples = [
        ns
        for s in job.sessions
        for blocks, order in zip(s.samples_ns, s.order, strict=True)
        for block, label in zip(blocks, order, strict=True)
        if label == 0
        for ns in block
    ]
    rate = 3 * 4 * len(samples) / sum(samples) * 1e9  # three in flight, four samples each
    assert row.throughput.items_per_s == pytest.approx(rate, rel=0.01)

    # One call in 20 takes three times as long: the median does not see it, p99 does.
    p99, median = tail["baseline"].tail, tail["baseline"].p50
    assert p99 is not None
    assert median is not None
    assert p99.quantile == 0.99
    assert p99.samples >= 500
    assert p99.value_ns == pytest.approx(3 * median.value_ns, rel=0.05)
    text = render_markdown(record, "speed.svg")
    assert "## Absolute times" in text
    assert "p99 (interval)" in text
    assert "items a second (interval)" in text
    assert "Another run on another day sees others" in text


def test_a_tail_session_has_samples_beyond_its_quantile() -> None:
    assert samples_needed(0.99) == 500
    assert samples_needed(0.999) == 5000
    for call_ns in (1e4, 1e6, 2e7, 1.5e8):
        for labels in (2, 5, 8):
            for quantile in (0.9, 0.99, 0.999):
                shape, least = tail_shape(call_ns, quantile, labels, 10)
                rounds = rounds_in_session(labels, least)
                assert rounds * shape.iterations >= samples_needed(quantile)
                assert block_shape(call_ns).iterations <= shape.iterations <= MAX_SAMPLES
                assert shape.lead_in == block_shape(call_ns).lead_in
    # Where the usual session is long enough it stays as it is.
    assert tail_shape(1e5, 0.9, 8, 10) == (block_shape(1e5, singly=True), 10)


def store(folder: Path, *samples: dict[str, np.ndarray[Any, Any]]) -> ArrayStore:
    return store_arrays(iter(samples), len(samples), folder / "store", lambda _: None)


def x(*shape: int, value: float = 0.0) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.full(shape, value, np.float32)}


FREE = (InputSpec("x", "float32", ("N", 2)),)


def test_a_batch_is_made_of_real_samples_of_one_shape(tmp_path: Path) -> None:
    inputs = store(tmp_path, x(1, 2), x(1, 3), x(1, 2, value=1), x(1, 2, value=2))
    assert batch_samples(inputs, None) == (0,)
    assert batch_samples(inputs, 2) == (0, 2)
    assert timed_input(inputs, 3)["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert timed_input(inputs, None)["x"].shape == (1, 2)


@pytest.mark.parametrize(
    ("specs", "samples", "words"),
    [
        (FREE, [x(1, 2), x(1, 3), x(1, 4)], r"only 1 of 3 held-out samples .* \(x \[1, 2\]\)"),
        ((InputSpec("x", "float32", (1, 2)),), [x(1, 2)] * 4, "has a fixed first axis of 1, not 4"),
        ((InputSpec("x", "float32", ()),), [x()] * 4, "input 'x' is a scalar"),
    ],
)
def test_a_batch_that_cannot_be_made_is_one_line(
    tmp_path: Path, specs: tuple[InputSpec, ...], samples: list[Any], words: str
) -> None:
    cells = [CellConfig(engine="mock"), CellConfig(engine="mock", batch=4)]
    with pytest.raises(UserError, match=rf"^cell 2 \(mock\): batch = 4: .*{words}") as caught:
        check_batches(cells, store(tmp_path, *samples), specs)
    assert "\n" not in str(caught.value)
    check_batches(cells[:1], store(tmp_path, *samples), specs)


def test_a_fixed_batch_of_that_size_is_taken(tmp_path: Path) -> None:
    specs = (InputSpec("x", "float32", (4, 2)),)
    check_batches([CellConfig(engine="mock", batch=2)], store(tmp_path, x(2, 2), x(2, 2)), specs)


def test_a_study_tells_a_wrong_batch_before_it_measures(folder: Any) -> None:
    write(folder, "batch = 40")
    with pytest.raises(UserError, match=r"cell 1 \(mock\): batch = 40: only 12 of 12"):
        run(folder)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("streams = 2", 'streams is for mode = "throughput" alone'),
        ('mode = "tail"\nstreams = 2', 'its mode is "tail"'),
        ('mode = "throughput"\nquantile = 0.9', 'quantile is for mode = "tail" alone'),
        ('mode = "latency"', "cell.0.mode"),
        ("batch = 0", "cell.0.batch"),
    ],
)
def test_a_key_of_another_mode_is_refused(folder: Any, cell: str, words: str) -> None:
    path = write(folder, cell)
    with pytest.raises(UserError, match=words) as caught:
        read_study_file(path)
    assert "\n" not in str(caught.value)


def test_files_of_cells_do_not_share_a_name() -> None:
    cells = [
        CellConfig(engine="mock", threads=2),
        CellConfig(engine="mock", threads=2, batch=1),
        CellConfig(engine="mock", threads=2, batch=8),
        CellConfig(engine="mock", threads=2, mode="throughput"),
        CellConfig(engine="mock", threads=2, mode="throughput", streams=2),
        CellConfig(engine="mock", mode="throughput", streams=2),
        CellConfig(engine="mock", threads=2, mode="tail"),
        CellConfig(engine="mock", threads=2, mode="tail", quantile=0.9),
        CellConfig(engine="mock", threads=2, options={"a": "b"}),
    ]
    names = cell_run.cell_names(cells)
    assert len(set(names)) == len(cells)
    assert names[0] == "mock-2t-0"
    assert names[2] == "mock-2t-b8"


def test_a_cold_call_is_a_sample_of_its_own(folder: Any) -> None:
    """Of several calls in one sample only the first would find an empty cache."""
    write(folder, 'mode = "hot"', 'mode = "cold"', script={"base_ns": 2e4})
    record, _ = run(folder)
    hot, cold = record.facts.cells
    assert (hot.mode, cold.mode) == ("hot", "cold")
    assert {job.inner for job in hot.jobs} != {1}
    assert {job.inner for job in cold.jobs} == {1}
    assert any("flushed cache" in note for note in cold.notes)
    assert not any(what.what.startswith("throughput, cold") for what in record.facts.not_run)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_time_of_a_gpu_is_not_for_engines_on_a_cpu(folder: Any, engine: str) -> None:
    path = write(folder, 'mode = "hot"')
    text = path.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("options = { script")]
    path.write_text("\n".join(lines).replace('engine = "mock"', f'engine = "{engine}"'))
    with pytest.raises(UserError, match=f"{engine} runs on the CPU here"):
        read_study_file(path)


def mixing_model(path: Path, text: str) -> None:
    """A model whose outputs depend on the other samples of its batch."""
    random = np.random.default_rng(7)
    model = onnx.parser.parse_model(text)
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (6, 8, 1, 1), "w2": (6, 5)}
    for name, shape in shapes.items():
        value = random.standard_normal(shape).astype(np.float32) * 0.3
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, path)


def test_a_model_that_mixes_its_samples_fails(folder: Any) -> None:
    mixing_model(
        folder.root / "model.onnx",
        """
        <ir_version: 8, opset_import: ["" : 17]>
        mixing (float[N, 3, 8, 8] x) => (float[N, 5] y) {
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0, b0)
            r = Relu (c)
            d = Conv <kernel_shape = [1, 1]> (r, w1)
            m = ReduceMean <axes = [0], keepdims = 1> (d)
            e = Sub (d, m)
            s = Add (e, d)
            p = GlobalAveragePool (s)
            f = Flatten (p)
            y = MatMul (f, w2)
        }
        """,
    )
    write(folder, "batch = 3")
    record, _ = run(folder)
    baseline = record.facts.cells[0].variants[0]
    assert baseline.state == "failed"
    assert baseline.reason.startswith("a batch of 3 gives other outputs than its samples alone")
    assert baseline.batch_check is not None
    assert baseline.batch_check.n == 3
    assert (baseline.batch_check.rel_l2 or 0) > 0.05
    assert record.facts.cells[0].jobs == ()
    assert record.derived.decision.kind != "ship"


def test_every_variant_of_a_batch_is_checked(folder: Any) -> None:
    write(folder, "batch = 3")
    record, _ = run(folder)
    checks = {
        v.name: v.batch_check for v in record.facts.cells[0].variants if v.state == "measured"
    }
    assert set(checks) == {"baseline", "int8 all", "int8 conv"}
    for name, check in checks.items():
        assert check is not None
        assert check.n == 3
        assert (check.limit > 2e-3) == (name != "baseline")
        assert check.rel_l2 is not None
        assert check.rel_l2 <= check.limit


def test_batches_are_compared_sample_by_sample() -> None:
    samples = [x(1, 2, value=float(i + 1)) for i in range(3)]
    assert batched(samples)["x"].shape == (3, 2)

    def double(inputs: Any) -> dict[str, Any]:
        return {"y": inputs["x"] * 2}

    def reversed_batch(inputs: Any) -> dict[str, Any]:
        return {"y": inputs["x"][::-1] * 2}

    def summed(inputs: Any) -> dict[str, Any]:
        return {"y": inputs["x"].sum(axis=0, keepdims=True)}

    def broken(inputs: Any) -> dict[str, Any]:
        return {"y": inputs["x"] * (np.nan if len(inputs["x"]) > 1 else 1)}

    assert batch_error(double, samples) == 0
    assert batch_error(reversed_batch, samples) == pytest.approx(np.sqrt(8 / 14))
    assert batch_error(broken, samples) is None
    with pytest.raises(WorkerFailed, match="does not hold the samples one after another"):
        batch_error(summed, samples)


def test_the_engine_chooses_once_and_a_void_variant_has_no_absolute_time(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 'mode = "throughput"', script={"faults": {"int8 all": "backwards"}})
    asked: list[str] = []
    real = cell_run.decided_options

    def spy(workspace: Any, cell: str, engine: str, model: Path, options: Any) -> Any:
        found = real(workspace, cell, engine, model, options)
        asked.append(json.dumps(workspace.load("streams", cell)))
        # A resumed study does not ask again: this engine could not be asked.
        assert real(workspace, cell, "no such engine", model, options) == found
        return found

    monkeypatch.setattr(cell_run, "decided_options", spy)
    record, _ = run(folder)
    assert [json.loads(text) for text in asked] == [{"streams": 2, "threads": 1}]
    assert record.facts.cells[0].streams == 2
    assert cell_names(record.facts) == ("mock 1, 1 threads, throughput of 2 streams",)
    assert {row.variant for row in record.derived.cells[0].latency} == {"baseline", "int8 conv"}
