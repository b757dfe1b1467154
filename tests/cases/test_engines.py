"""Rows 22, 25, 26, 28, 29, 30 and 33: what real engines do with quantized graphs.

Each runs in a worker process, as in a study: what it does there is a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from bitworth.bound.free_wins import denormal_win
from bitworth.engines.base import EngineOptions, LoweredModel
from bitworth.engines.cpu import isa
from bitworth.engines.openvino import ENGINE as OPENVINO
from bitworth.measurement.plans import build_plan, load_plan, runner
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Recipe
from bitworth.recipe.rules import preference, resolve
from bitworth.record.free_win_verdicts import SAME_RESULT
from bitworth.study.cell_stage import CHECK_SLACK
from bitworth.subject.denormals import count_denormals, flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.saving import save

from .tools import (
    SITE_OPS,
    Array,
    Engines,
    case,
    rand,
    recipe_for,
    rel_l2,
    run_exact,
    site_graph,
    write_model,
)

TINY = EngineOptions(threads=1)

#: Two convolutions with a function between them: its nodes and its constants.
FUNCTIONS: dict[str, tuple[str, dict[str, Array]]] = {
    "Relu": ("r = Relu(c)", {}),
    "Clip": ("r = Clip(c, low, high)", {"low": np.float32(0), "high": np.float32(6)}),
    "Clip from below": ("r = Clip(c, low)", {"low": np.float32(0)}),
    "Clip from above": ("r = Clip(c, , high)", {"high": np.float32(6)}),
    "HardSwish": ("r = HardSwish(c)", {}),
    "Sigmoid": ("r = Sigmoid(c)", {}),
    "none": ("r = Neg(c)", {}),
}


def two_convolutions(path: Path, function: str) -> Path:
    nodes, constants = FUNCTIONS[function]
    graph = (
        "g (float[N, 4, 8, 8] x) => (float[N, 5, A, B] y)"
        f"{{ c = Conv<pads = [1, 1, 1, 1]>(x, w, b) {nodes} y = Conv(r, v) }}"
    )
    weights = {"w": rand(8, 4, 3, 3), "b": rand(8), "v": rand(5, 8, 3, 3)}
    return write_model(path, graph, weights | {k: np.asarray(v) for k, v in constants.items()})


SAMPLE = {"x": rand(1, 4, 8, 8)}


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("optimization", ["all", "none"])
def test_row_22_one_optimization_for_quality_and_time(
    tmp_path: Path, engine: str, optimization: Any
) -> None:
    """What is judged and what is timed are the same bytes, with the same result to the bit."""
    subject = case(two_convolutions(tmp_path / "m.onnx", "Sigmoid"), [SAMPLE])
    model = subject.lowered(recipe_for("int8"), engine=engine)
    save(model, tmp_path / "q.onnx")
    options = EngineOptions(threads=1, optimization=optimization)
    plan = tmp_path / "plan" / "plan.bin"
    found = []
    for turn in ("judge", "time"):
        with Worker(turn, tmp_path / "log", engine) as worker:
            if turn == "judge":
                build_plan(worker, engine, tmp_path / "q.onnx", "v", "fp32", options, plan)
                before = plan.read_bytes()
            load_plan(worker, engine, plan, "fp32", options)
            if turn == "time":
                worker.ask("bind", SAMPLE, timeout_s=60)
                worker.ask("block", timeout_s=60, lead_in=1, iterations=3)
            found.append(runner(worker)(SAMPLE)["y"])
    assert plan.read_bytes() == before
    assert np.array_equal(found[0], found[1])
    if engine == "onnxruntime":
        level = {"all": "ORT_ENABLE_ALL", "none": "ORT_DISABLE_ALL"}[optimization]
        assert np.array_equal(found[0], run_exact(tmp_path / "q.onnx", SAMPLE, level)["y"])


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("placement", ["before_activation", "after_activation", "input_only"])
def test_row_25_what_the_optimizer_makes_of_fp8(
    engines: Engines, tmp_path: Path, name: str, function: str, placement: Any
) -> None:
    """Unoptimized it is right; optimized it is right too, or refused, or the check voids it."""
    subject = case(two_convolutions(tmp_path / "m.onnx", function), [SAMPLE])
    model = subject.lowered(recipe_for(name, placement=placement))
    want = run_exact(tmp_path / "m.onnx", SAMPLE)["y"]
    unoptimized = rel_l2(engines.run("onnxruntime", model, SAMPLE, "none")["y"], want)
    assert unoptimized < (0.1 if name == "fp8_e4m3" else 0.2)
    found = engines.attempt("onnxruntime", model, SAMPLE)
    if isinstance(found, WorkerFailed):
        assert found.kind == "refused"
        assert "Clip" in function
        return
    optimized = rel_l2(found["y"], want)
    limit = 2 * unoptimized + CHECK_SLACK
    assert optimized < 1.5 * unoptimized or optimized > limit
    # The reported case is caught, not merely allowed for.
    assert (optimized > limit) == (function == "Relu")


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if "Clip" in f])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    "placement", ["auto", "before_activation", "after_activation", "input_only"]
)
def test_row_26_placements_around_clip(
    engines: Engines, tmp_path: Path, function: str, engine: str, placement: Any
) -> None:
    """In int8 every engine takes every placement around every form of Clip."""
    subject = case(two_convolutions(tmp_path / "m.onnx", function), [SAMPLE])
    recipe = recipe_for("int8", placement=placement, weight_range="reduced")
    variant = subject.scaled(recipe, engine=engine)
    model = subject.lowered(recipe, engine=engine)
    want = run_exact(tmp_path / "m.onnx", SAMPLE)["y"]
    assert rel_l2(engines.run(engine, model, SAMPLE)["y"], want) < 0.1
    told = {e.placement for e in variant.entries.values()}
    assert "auto" not in told


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if "Clip" in f])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_row_26_a_refused_session_is_a_result(
    engines: Engines, tmp_path: Path, function: str, name: str
) -> None:
    """The engine's own words, on one line; the worker lives on."""
    subject = case(two_convolutions(tmp_path / "m.onnx", function), [SAMPLE])
    model = subject.lowered(recipe_for(name))
    found = engines.attempt("onnxruntime", model, SAMPLE)
    if isinstance(found, WorkerFailed):
        assert found.kind == "refused"
        assert "onnxruntime" in found.detail
        assert "\n" not in found.detail
    else:
        assert np.isfinite(found["y"]).all()
    plain = engines.run("onnxruntime", subject.prepared.model, SAMPLE)["y"]
    assert rel_l2(plain, run_exact(tmp_path / "m.onnx", SAMPLE)["y"]) < 1e-5


class _Reader(CalibrationDataReader):
    def __init__(self, sample: dict[str, Array]) -> None:
        self._left = [sample]

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        return self._left.pop() if self._left else None


@pytest.mark.parametrize("function", ["Relu", "HardSwish", "Sigmoid", "none"])
@pytest.mark.parametrize("signs", ["u8 s8", "u8 u8", "s8 s8"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_row_28_models_that_another_tool_quantized(
    engines: Engines, tmp_path: Path, function: str, signs: str, per_channel: bool
) -> None:
    """Whatever openvino does with them, it does in its worker; the next model runs."""
    path = two_convolutions(tmp_path / "m.onnx", function)
    kinds = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
    activation, weight = (kinds[s] for s in signs.split())
    quantize_static(
        str(path), str(tmp_path / "q.onnx"), _Reader(SAMPLE), per_channel=per_channel,
        activation_type=activation, weight_type=weight,
    )  # fmt: skip
    assert load(tmp_path / "q.onnx").has_qdq
    found = engines.attempt("openvino", tmp_path / "q.onnx", SAMPLE)
    if isinstance(found, WorkerFailed):
        assert found.kind in ("refused", "raised", "crashed", "timed out")
        assert found.detail
    else:
        assert found["y"].shape == (1, 5, 6, 6)
    assert np.isfinite(engines.run("openvino", path, SAMPLE)["y"]).all()


@pytest.mark.parametrize("sign", ["s8", "u8", "by_range"])
@pytest.mark.parametrize("zero_point", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("placement", ["before_activation", "after_activation", "input_only"])
@pytest.mark.parametrize("op", SITE_OPS)
def test_row_29_signs_and_placements_in_openvino(
    engines: Engines, tmp_path: Path, op: str, sign: Any, zero_point: Any, placement: Any
) -> None:
    """It runs and is right, or the refusal is what is recorded, in the engine's words."""
    subject, sample = one_operation(tmp_path, op)
    recipe = recipe_for(
        "int8", sign=sign, zero_point=zero_point, placement=placement, weight_range="reduced"
    )
    model = subject.lowered(recipe)
    want = run_exact(tmp_path / "m.onnx", sample)["y"]
    found = engines.attempt("openvino", model, sample)
    if isinstance(found, WorkerFailed):
        assert found.kind == "refused"
        assert found.detail.startswith("openvino: ")
        return
    got = found["y"]
    assert np.isfinite(got).all()
    exact = rel_l2(run_exact_model(model, sample, tmp_path), want)
    off = rel_l2(got, want)
    assert off < 0.1 or off > 2 * exact + CHECK_SLACK


@pytest.mark.parametrize("op", SITE_OPS)
@pytest.mark.parametrize("weights", [PER_CHANNEL, PER_TENSOR])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_row_29_what_the_engine_prefers_runs(
    engines: Engines, tmp_path: Path, op: str, weights: Any, engine: str
) -> None:
    """ "auto" resolves to something, and that is right on this engine and CPU."""
    subject, sample = one_operation(tmp_path, op)
    recipe = recipe_for("int8", weights=weights)
    assert (recipe.sign, recipe.zero_point, recipe.placement) == ("auto",) * 3
    resolved = resolve(recipe, preference(engine, isa()), subject.scan.sites[0])
    assert "auto" not in (resolved.sign, resolved.zero_point, resolved.placement)
    model = subject.lowered(recipe, engine=engine)
    got = engines.run(engine, model, sample)["y"]
    assert rel_l2(got, run_exact(tmp_path / "m.onnx", sample)["y"]) < 0.1


def one_operation(folder: Path, op: str) -> Any:
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = {"w": rand(*shape)}
    if op != "MatMul":
        weights["b"] = rand(shape[axis])
    after = "r = Relu(o)  y = Exp(r)" if op in ("Gemm", "MatMul") else "r = Relu(o)  y = Sqrt(r)"
    weights["w"] *= np.float32(0.2)
    path = write_model(folder / "m.onnx", site_graph(op, after=after), weights)
    sample = {"x": rand(*SITE_OPS[op][2])}
    return case(path, [sample]), sample


def run_exact_model(model: Any, sample: dict[str, Array], folder: Path) -> Array:
    save(model, folder / "exact.onnx")
    return run_exact(folder / "exact.onnx", sample)["y"]


@pytest.mark.parametrize("op", SITE_OPS)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_row_30_denormal_weights_are_a_free_win(tmp_path: Path, op: str, share: float) -> None:
    """They are counted, set to zero in baseline and variants alike, and the result stays."""
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = {"w": rand(*shape)}
    if op != "MatMul":
        weights["b"] = rand(shape[axis])
    flat = weights["w"].reshape(-1)
    count = max(1, int(share * flat.size))
    flat[:count] = 1e-40 * np.sign(flat[:count])
    path = write_model(tmp_path / "m.onnx", site_graph(op), weights)
    sample = {"x": rand(*SITE_OPS[op][2])}
    subject = case(path, [sample])
    assert count_denormals(subject.prepared.model) == {"w": count}
    fair = flush_denormals(subject.prepared)
    assert count_denormals(fair.model) == {}
    save(subject.prepared.model, tmp_path / "given.onnx")
    save(fair.model, tmp_path / "fair.onnx")
    with Worker("free-win", tmp_path / "log") as worker:
        win = denormal_win(worker, count, tmp_path / "given.onnx", tmp_path / "fair.onnx", sample)
    assert win.applied
    assert win.rel_l2 is not None
    assert win.rel_l2 <= SAME_RESULT
    assert str(count) in win.text
    # A variant made from the given weights has the same scales as one made from the fair ones.
    given, mended = (
        type(subject)(p, subject.samples).scaled(recipe_for("int8", weights=PER_TENSOR))
        for p in (subject.prepared, fair)
    )
    (one,), (other,) = given.scaled.quantized, mended.scaled.quantized
    assert np.array_equal(one.weight.scale, other.weight.scale)  # type: ignore[union-attr]


#: Models whose f32 plans turn bf16 where nobody pins them.
PINNED = {
    "Conv": ("y = Conv(x, w)", (1, 4, 8, 8), {"w": rand(16, 4, 3, 3)}),
    "MatMul": ("y = MatMul(x, w)", (2, 8, 16), {"w": rand(16, 32)}),
    "LSTM": (
        "y, h, c = LSTM<hidden_size = 8>(x, w, r)", (5, 1, 4),
        {"w": rand(1, 32, 4), "r": rand(1, 32, 8)},
    ),
    "Softmax": ("a = MatMul(x, w) y = Softmax(a)", (2, 3, 8), {"w": rand(8, 8)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", PINNED)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_row_33_the_hint_is_set_at_import_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, precision: str
) -> None:
    """A saved plan is imported with the hint that it was compiled with, whatever the CPU likes."""
    node, shape, weights = PINNED[kind]
    dims = ", ".join(map(str, shape))
    outs = ", ".join("ABCD"[: 4 if kind in ("Conv", "LSTM") else 3])
    graph = f"g (float[{dims}] x) => (float[{outs}] y) {{ {node} }}"
    path = write_model(tmp_path / "m.onnx", graph, weights)
    hints: list[object] = []
    imported = ov.Core.import_model

    def spy(self: Any, model: Any, device: Any, config: Any = None) -> Any:
        hints.append((config or {}).get("INFERENCE_PRECISION_HINT"))
        return imported(self, model, device, config)

    monkeypatch.setattr(ov.Core, "import_model", spy)
    plan = tmp_path / "plan.bin"
    OPENVINO.build(LoweredModel(path, "v", precision), TINY).save(plan)
    loaded = OPENVINO.open(plan, precision, TINY).load()
    assert hints[-1] == {"fp32": "f32", "bf16": "bf16"}[precision]
    if precision == "bf16":
        return
    assert loaded.precision() == "fp32"
    sample = {"x": rand(*shape)}
    loaded.bind(sample)
    loaded.run()
    assert rel_l2(loaded.outputs()["y"], run_exact(path, sample)["y"]) < 1e-4
    # And in a worker, where a study reads it back.
    with Worker("hint", tmp_path / "log", "openvino") as worker:
        told = load_plan(worker, "openvino", plan, precision, TINY)
    assert told["precision"] == "fp32"


def test_row_33_a_plan_is_not_what_the_model_says(tmp_path: Path) -> None:
    """The precision in a record is read from the loaded plan: an int8 plan has an fp32 base."""
    subject = case(two_convolutions(tmp_path / "m.onnx", "Relu"), [SAMPLE])
    model = subject.lowered(Recipe(quantize=(recipe_for("int8"),)), engine="openvino")
    save(model, tmp_path / "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    plan = tmp_path / "plan.bin"
    OPENVINO.build(LoweredModel(tmp_path / "q.onnx", "v"), TINY).save(plan)
    assert OPENVINO.open(plan, "fp32", TINY).load().precision() == "fp32"
