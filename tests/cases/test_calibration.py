"""Rows 4, 12, 17, 18 and 20: the data that calibrates, whatever its type, shapes and spread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bitworth.calibration import RangeAccumulator, activation_range, observe
from bitworth.errors import UserError
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import TensorScale
from bitworth.recipe import PER_CHANNEL, Calibrator
from bitworth.recipe.recipe import CalibratorName
from bitworth.study.config import read_study_file
from bitworth.subject.inputs import from_npz
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.saving import serialize

from .tools import (
    SITE_OPS,
    Array,
    case,
    rand,
    recipe_for,
    rel_l2,
    run_exact,
    site_graph,
    write_model,
)

CALIBRATORS: tuple[CalibratorName, ...] = get_args(CalibratorName)
EVERY_CALIBRATOR = pytest.mark.parametrize("calibrator", CALIBRATORS)

#: Half precision tensors on which equal bins between the extremes fail: too narrow, too wide, ...
HALF = {
    "normal": rand(4, 500),
    "two neighbours": np.tile(np.array([1.0, 1.001]), 500),
    "one value": np.full(100, 3.0),
    "a single element": np.array([0.1]),
    "denormal": np.array([6e-8, 1.2e-7, -6e-8] * 50),
    "up to the largest": np.linspace(-65504, 65504, 1001),
    "mostly zero": np.concatenate([np.zeros(5000), [1e-3, -2e-3, 4.0]]),
    "one outlier": np.concatenate([rand(5000) * 0.01, [300.0]]),
}


@EVERY_CALIBRATOR
@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("symmetric", [True, False])
def test_row_04_histograms_of_half_precision(
    calibrator: CalibratorName, kind: str, symmetric: bool
) -> None:
    """A range comes out, within what was seen, and the same as for those numbers in fp64."""
    values = HALF[kind].astype(np.float16)
    ranges = []
    for dtype in (np.float16, np.float64):
        accumulator = RangeAccumulator()
        accumulator.add(values.astype(dtype))
        found = accumulator.finish()
        ranges.append(activation_range(found, Calibrator(calibrator), symmetric=symmetric))
    low, high = ranges[0]
    assert ranges[0] == ranges[1]
    assert low <= high
    assert max(-low, high) > 0
    # An asymmetric range holds zero, and its ends may lie on the grid's next step.
    step = 0.0 if symmetric else (high - low) / 255
    assert min(0.0, float(values.min())) - step <= low
    assert high <= max(0.0, float(values.max())) + step


@EVERY_CALIBRATOR
def test_row_04_a_half_precision_model(tmp_path: Path, calibrator: CalibratorName) -> None:
    for op in SITE_OPS:
        shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
        weights = {"w": rand(*shape, dtype="float16")}
        if op != "MatMul":
            weights["b"] = rand(shape[axis], dtype="float16")
        path = write_model(tmp_path / "m.onnx", site_graph(op, dtype="float16"), weights)
        x = rand(*SITE_OPS[op][2], dtype="float16")
        subject = case(path, [{"x": x}])
        variant = subject.scaled(recipe_for("int8", calibrator=Calibrator(calibrator)))
        (entry,) = variant.scaled.quantized
        assert isinstance(entry.activation, TensorScale)
        assert 0 < float(entry.activation.scale) < 1
        model = lower(variant.graph.prepared, variant.scaled.quantized)
        got, want = (
            run_exact(serialize(m), {"x": x})["y"] for m in (model, subject.prepared.model)
        )
        assert rel_l2(got, want) < 0.1


#: Models with free dimensions: graph, weight, and shapes that all calibrate at once.
FREE: dict[str, tuple[str, tuple[int, ...], list[tuple[int, ...]]]] = {
    "batch": (
        "g (float[N, 4, 6, 6] x) => (float[N, 5, A, B] y) { y = Conv(x, w) }",
        (5, 4, 3, 3),
        [(1, 4, 6, 6), (3, 4, 6, 6), (2, 4, 6, 6)],
    ),
    "height and width": (
        "g (float[1, 4, H, W] x) => (float[1, 5, A, B] y) { y = Conv(x, w) }",
        (5, 4, 3, 3),
        [(1, 4, 6, 6), (1, 4, 9, 3), (1, 4, 3, 16)],
    ),
    "all of an image": (
        "g (float[N, C, H, W] x) => (float[N, D, A, B] y) { y = ConvTranspose(x, w) }",
        (4, 5, 2, 2),
        [(1, 4, 2, 7), (4, 4, 3, 3)],
    ),
    "batch and sequence": (
        "g (float[batch, sequence, 4] x) => (float[batch, sequence, 5] y) { y = MatMul(x, w) }",
        (4, 5),
        [(1, 7, 4), (2, 1, 4), (5, 30, 4)],
    ),
    "rows": (
        "g (float[N, 4] x) => (float[N, 5] y) { y = Gemm(x, w) }",
        (4, 5),
        [(1, 4), (9, 4)],
    ),
    "without names": (
        "g (float[?, 4, ?, ?] x) => (float[?, 5, ?, ?] y) { y = Conv(x, w) }",
        (5, 4, 1, 1),
        [(2, 4, 6, 6), (1, 4, 1, 9)],
    ),
}


@pytest.mark.parametrize("kind", FREE)
def test_row_12_a_named_dimension_is_free(tmp_path: Path, kind: str) -> None:
    """Several real shapes in one calibration; the scale spans them all; other shapes run too."""
    graph, shape, shapes = FREE[kind]
    path = write_model(tmp_path / "m.onnx", graph, {"w": rand(*shape)})
    samples = [{"x": rand(*s, scale=i + 1.0)} for i, s in enumerate(shapes)]
    subject = case(path, samples)
    assert subject.prepared.inputs == load(path).inputs
    assert subject.calibration.samples == len(shapes)
    found = subject.calibration.statistics["x"]
    assert found.count == sum(s["x"].size for s in samples)
    assert found.amax == max(float(np.abs(s["x"]).max()) for s in samples)
    model = subject.lowered(recipe_for("int8", weights=PER_CHANNEL))
    unseen = {"x": rand(*[d + 1 if i != 1 else d for i, d in enumerate(shapes[0])])}
    if kind in ("batch and sequence", "rows"):
        unseen = {"x": rand(3, *shapes[0][1:])}
    elif kind == "batch":
        unseen = {"x": rand(7, *shapes[0][1:])}
    elif kind == "height and width":
        unseen = {"x": rand(1, 4, 11, 4)}
    for sample in (*samples, unseen):
        got, want = (run_exact(serialize(m), sample)["y"] for m in (model, subject.prepared.model))
        assert got.shape == want.shape
        assert rel_l2(got, want) < 0.1


#: Activations as in BERT: far more on one side than on the other.
SKEWED: dict[str, Callable[[Array], Array]] = {
    "Gelu": lambda x: 0.5 * x * (1 + np.tanh(0.798 * (x + 0.0447 * x**3))),
    "shifted": lambda x: x + 6.0,
    "one-sided": lambda x: np.maximum(x, 0.0),
    "negative": lambda x: -np.exp(x / 2),
    "two humps": lambda x: np.where(x > 0, x + 8.0, x / 8),
}


@EVERY_CALIBRATOR
@pytest.mark.parametrize("kind", SKEWED)
@pytest.mark.parametrize("sign", ["s8", "u8", "by_range"])
@pytest.mark.parametrize("zero_point", ["symmetric", "asymmetric"])
def test_row_17_skewed_activations(
    tmp_path: Path, calibrator: CalibratorName, kind: str, sign: Any, zero_point: Any
) -> None:
    """No calibrator collapses, whatever the sign and the zero point."""
    w = rand(16, 8)
    path = write_model(
        tmp_path / "m.onnx", "g (float[N, 16] x) => (float[N, 8] y) { y = MatMul(x, w) }", {"w": w}
    )
    samples = [{"x": SKEWED[kind](rand(256, 16, seed=s)).astype(np.float32)} for s in range(4)]
    subject = case(path, samples)
    recipe = recipe_for("int8", sign=sign, zero_point=zero_point, calibrator=Calibrator(calibrator))
    held_out = {"x": SKEWED[kind](rand(256, 16, seed=9)).astype(np.float32)}
    model = subject.lowered(recipe)
    got, want = (run_exact(serialize(m), held_out)["y"] for m in (model, subject.prepared.model))
    assert rel_l2(got, want) < 0.05


def test_row_17_symmetric_where_no_engine_asks_for_more(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "m.onnx",
        "g (float[N, 16] x) => (float[N, 8] y) { y = MatMul(x, w) }",
        {"w": rand(16, 8)},
    )
    variant = case(path, [{"x": rand(8, 16) + 3}]).scaled(recipe_for("int8"))
    (entry,) = variant.scaled.quantized
    assert isinstance(entry.activation, TensorScale)
    assert (entry.activation.storage, entry.activation.zero_point) == ("int8", 0)


def test_row_17_calibrators_are_compared_on_request(tmp_path: Path) -> None:
    """One variant each, alike but for the calibrator; without a request there is one."""
    text = """
version = 1
[subject]
name = "s"
onnx = "m.onnx"
[data]
source = "inputs.py"
[[cell]]
engine = "mock"
[[variant]]
name = "int8"
format = "int8"
"""
    (tmp_path / "one.toml").write_text(text)
    (tmp_path / "all.toml").write_text(f"{text}calibrators = {list(CALIBRATORS)}\n")
    (one,) = read_study_file(tmp_path / "one.toml").variant
    several = read_study_file(tmp_path / "all.toml").variant
    assert one.calibrator == "max"
    assert [v.calibrator for v in several] == list(CALIBRATORS)
    assert len({v.name for v in several}) == len(CALIBRATORS)
    for variant in several:
        changed = {"name", "calibrator", "calibrators"}
        assert variant.model_dump(exclude=changed) == one.model_dump(exclude=changed)
        assert variant.calibrator in variant.name


@pytest.mark.parametrize("budget", [1, 4096, 1 << 28])
@pytest.mark.parametrize("count", [1, 2, 5, 33])
def test_row_18_every_sample_counts(tmp_path: Path, budget: int, count: int) -> None:
    """However little may be held at once, the extremes of the last sample are in the range."""
    path = write_model(
        tmp_path / "m.onnx",
        "g (float[N, 8] x) => (float[N, 8] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }",
        {"w": np.eye(8, dtype=np.float32)},
    )
    prepared = prepare(load(path), 17)
    samples = [{"x": np.full((i % 3 + 1, 8), i + 1.0, np.float32)} for i in range(count)]
    told: list[int] = []
    found = observe(
        prepared.model, ["x", "a", "b"], iter(samples), threads=1, byte_budget=budget,
        progress=told.append,
    )  # fmt: skip
    assert found.samples == count
    assert told == list(range(1, count + 1))
    for statistics in found.statistics.values():
        assert statistics.count == sum(s["x"].size for s in samples)
        assert (statistics.minimum, statistics.maximum) == (1.0, float(count))


MODULE = """
import numpy as np

def calibration(count, seed):
    {body}

def holdout(count, seed):
    for i in range(count):
        yield {{"x": np.full((1, 4), 100.0 + i, np.float32),
               "i": np.zeros((1, 2), np.int64)}}, None
"""
FLOATS, INDICES = np.ones((2, 4), np.float32), np.zeros((2, 2), np.int64)
_X, _I = '"x": np.ones((1, 4), np.float32)', '"i": np.zeros((1, 2), np.int64)'
#: What is wrong with the data: arrays of an .npz, inputs that a module yields, what is told.
FAULTS: dict[str, tuple[dict[str, Array], str, tuple[str, ...]]] = {
    "nothing": ({}, "", ()),
    "no sample": ({"x": FLOATS[:0], "i": INDICES[:0]}, "", ()),
    "an input is missing": ({"x": FLOATS}, _X, ("'i'", "missing")),
    "an input too many": (
        {"x": FLOATS, "i": INDICES, "z": FLOATS},
        f'{_X}, {_I}, "z": np.ones((1, 4))',
        ("no input 'z'",),
    ),
    "wrong type": (
        {"x": FLOATS.astype(np.float64), "i": INDICES},
        f'"x": np.ones((1, 4)), {_I}',
        ("'x'", "float64", "float32"),
    ),
    "wrong integer type": (
        {"x": FLOATS, "i": INDICES.astype(np.int32)},
        f'{_X}, "i": np.zeros((1, 2), np.int32)',
        ("'i'", "int32", "int64"),
    ),
    "wrong rank": (
        {"x": FLOATS[0], "i": INDICES},
        f'"x": np.ones(4, np.float32), {_I}',
        ("'x'",),
    ),
    "wrong size": (
        {"x": np.ones((2, 5), np.float32), "i": INDICES},
        f'"x": np.ones((1, 5), np.float32), {_I}',
        ("'x'", "[N, 4]"),
    ),
    "not finite": (
        {"x": FLOATS * np.float32(np.nan), "i": INDICES},
        f'"x": np.full((1, 4), np.inf, np.float32), {_I}',
        ("'x'", "not finite"),
    ),
}


@pytest.mark.parametrize("source", ["npz", "module"])
@pytest.mark.parametrize("fault", FAULTS)
def test_row_20_data_that_does_not_fit(
    bitworth: Callable[..., Any], tmp_path: Path, source: str, fault: str
) -> None:
    """Refused before anything else is done: one line that says what is wrong, exit code 2."""
    graph = (
        "g (float[N, 4] x, int64[N, 2] i) => (float[N, 2, 3] y)"
        "{ a = MatMul(x, w) g = Gather(t, i) u = Unsqueeze(a, one) y = Add(u, g) }"
    )
    weights = {"w": rand(4, 3), "t": rand(5, 3), "one": np.array([1])}
    write_model(tmp_path / "model.onnx", graph, weights)
    arrays, yielded, words = FAULTS[fault]
    if source == "npz":
        np.savez(tmp_path / "c.npz", **arrays)  # type: ignore[arg-type]
        hold = {"x": np.full((3, 4), 9, np.float32), "i": np.ones((3, 2), np.int64)}
        np.savez(tmp_path / "h.npz", **hold)
        data = 'calibration = "c.npz"\nholdout = "h.npz"'
    else:
        body = f"yield {{{yielded}}}, None" if yielded else "yield from ()"
        (tmp_path / "data.py").write_text(MODULE.format(body=body))
        data = 'source = "data.py"\ncalibration_samples = 2\nholdout_samples = 3'
    (tmp_path / "study.toml").write_text(
        f'version = 1\n[subject]\nname = "s"\nonnx = "model.onnx"\n[data]\n{data}\n'
        '[[cell]]\nengine = "mock"\n[[variant]]\nname = "int8"\nformat = "int8"\n'
    )
    outcome = bitworth("study", "study.toml")
    assert outcome.code == 2, outcome.err
    line = outcome.err.strip().splitlines()[-1]
    assert line.startswith("bitworth: ")
    assert "Traceback" not in outcome.err
    for word in ("c.npz" if source == "npz" else "data.py", *words):
        assert word in line
    assert not list(tmp_path.glob("studies/**/*.md"))


def test_row_20_data_that_fits_is_taken(tmp_path: Path) -> None:
    """The same model and arrays, mended: what is refused above is refused for its fault alone."""
    graph = "g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"
    path = write_model(tmp_path / "m.onnx", graph, {"w": rand(4, 3)})
    np.savez(tmp_path / "c.npz", x=rand(5, 4))
    data = from_npz(tmp_path / "c.npz", load(path).inputs)
    assert len(list(data)) == len(data) == 5
    found = case(path, [s.inputs for s in data]).calibration
    assert found.samples == 5
    with pytest.raises(UserError, match="no sample"):
        _ = case(path, []).calibration
