from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.bound.free_wins import denormal_win, run_unoptimized
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.record.free_win_verdicts import SAME_RESULT
from bitworth.subject.denormals import count_denormals, flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.saving import save

Models = tuple[int, Path, Path]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker("free-win", tmp_path / "log") as started:
        yield started


def both(model: Path, folder: Path) -> Models:
    """How many denormal weights there are, the model as given and the one without them."""
    given = prepare(load(model), 13)
    flushed = flush_denormals(given)
    paths = folder / "given.onnx", folder / "flushed.onnx"
    save(given.model, paths[0])
    save(flushed.model, paths[1])
    return sum(count_denormals(given.model).values()), *paths


def written(folder: Path, graph: str, **weights: NDArray[np.generic]) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{graph}')
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_the_detectors_denormals_are_a_free_win(worker: Worker, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("rapidocr is not installed (pip install bitworth[example])")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    count, given, flushed = both(folder / "PP-OCRv6_det_small.onnx", tmp_path)
    image = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    before = {p.name for p in tmp_path.iterdir()}
    win = denormal_win(worker, count, given, flushed, {"x": image})
    assert win.applied
    assert win.rel_l2 is not None
    assert win.rel_l2 <= SAME_RESULT
    assert count > 100_000
    assert f"{count} denormal weights, set to zero in the baseline" in win.text
    assert "\n" not in win.text
    assert {p.name for p in tmp_path.iterdir()} == before  # no plan is left behind
    plain = run_unoptimized(worker, given, {"x": image})
    fair = run_unoptimized(worker, flushed, {"x": image})
    for name, value in plain.items():
        assert np.allclose(fair[name], value, rtol=0, atol=1e-5 * float(np.abs(value).max()))


def test_denormals_that_matter_are_left(worker: Worker, tmp_path: Path) -> None:
    model = written(
        tmp_path,
        "g (float[N, 4] x) => (float[N, 3] y) { a = MatMul(x, w) y = Mul(a, large) }",
        w=np.full((4, 3), 1e-40, np.float32),
        large=np.array(1e30, np.float32),
    )
    count, given, flushed = both(model, tmp_path)
    assert count == 12
    win = denormal_win(worker, count, given, flushed, {"x": np.ones((2, 4), np.float32)})
    assert not win.applied
    assert win.rel_l2 == pytest.approx(1)
    assert "12 denormal weights, left as they are: that would change the result" in win.text


def test_an_output_that_is_not_finite_proves_nothing(worker: Worker, tmp_path: Path) -> None:
    model = written(
        tmp_path,
        "g (float[N, 2] x) => (float[N, 2] y) { y = Div(x, w) }",
        w=np.array([1e-40, 1], np.float32),
    )
    count, given, flushed = both(model, tmp_path)
    win = denormal_win(worker, count, given, flushed, {"x": np.ones((1, 2), np.float32)})
    assert not win.applied
    assert win.rel_l2 is None
    assert "not a finite number" in win.text


def test_an_output_that_changes_its_shape(worker: Worker, tmp_path: Path) -> None:
    model = written(
        tmp_path,
        "g (float[2] x) => (int64[1, M] y) { a = Mul(x, w) y = NonZero(a) }",
        w=np.array([1e-40, 1], np.float32),
    )
    count, given, flushed = both(model, tmp_path)
    win = denormal_win(worker, count, given, flushed, {"x": np.ones(2, np.float32)})
    assert (win.applied, win.rel_l2) == (False, None)


def test_one_that_does_not_run(worker: Worker, tmp_path: Path) -> None:
    model = written(
        tmp_path,
        "g (float[N, 2] x) => (float[N, 2] y) { y = Mul(x, w) }",
        w=np.array([1e-40, 1], np.float32),
    )
    count, given, flushed = both(model, tmp_path)
    with pytest.raises(WorkerFailed):
        denormal_win(worker, count, given, flushed, {"x": np.ones((1, 3), np.float32)})
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".plan-")]
