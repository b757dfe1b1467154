from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.engines.base import EngineError, EngineOptions, LoweredModel, Runner
from bitworth.engines.mock import ENGINE, ClockScript
from bitworth.engines.registry import MODULES, engine_named
from bitworth.recipe import FORMATS, Quantize
from bitworth.recipe.consistency import (
    fault,
    natural_activations,
    natural_weights,
    support_key,
)
from bitworth.recipe.recipe import Scheme

Arrays = dict[str, NDArray[np.float32]]


def options(script: ClockScript, streams: int = 1) -> EngineOptions:
    return EngineOptions(threads=1, extra={"script": script.dump()}, streams=streams)


def loaded(
    model: Path,
    folder: Path,
    script: ClockScript,
    label: str = "v",
    precision: str = "fp32",
    streams: int = 1,
) -> Runner:
    plan = ENGINE.build(LoweredModel(model, label, precision), options(script, streams))
    path = folder / label / "plan.bin"
    plan.save(path)
    return ENGINE.open(path, precision, options(script, streams)).load()


def test_two_processes_of_one_label_draw_differently(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block(process: str) -> list[int]:
        monkeypatch.setenv("BITWORTH_WORKER", process)
        return loaded(small, tmp_path, ClockScript()).time_block(5)

    first = block("0/0")
    assert block("0/0") == first
    assert block("0/1") != first
    assert block("1/0") != first


def test_outputs_are_those_of_the_model(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    import onnxruntime as ort

    runner = loaded(small, tmp_path, ClockScript())
    runner.bind(small_x)
    runner.run()
    session = ort.InferenceSession(str(small), providers=["CPUExecutionProvider"])
    want = session.run(None, small_x)[0]
    assert np.allclose(runner.outputs()["y"], want, atol=1e-4)
    ops = ENGINE.open(tmp_path / "v" / "plan.bin", "fp32", options(ClockScript())).layers()
    layers = runner.profile(3)
    assert tuple(layer.op for layer in layers) == ops
    assert layers[0].time_ns > layers[-1].time_ns > 0
    assert loaded(small, tmp_path, ClockScript(), "b", "bf16").precision() == "bf16"


def test_faults_by_label(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    script = ClockScript(
        faults={"no": "build", "nan": "nan", "back": "backwards", "bad": "raise_run"},
        fault_after=2,
    )
    with pytest.raises(EngineError, match="scripted build failure"):
        ENGINE.build(LoweredModel(small, "no"), options(script))
    assert min(loaded(small, tmp_path, script, "fine").time_block(4)) > 0
    assert max(loaded(small, tmp_path, script, "back").time_block(4)) < 0
    nan = loaded(small, tmp_path, script, "nan")
    nan.bind(small_x)
    nan.run()
    assert np.isnan(nan.outputs()["y"]).all()
    bad = loaded(small, tmp_path, script, "bad")
    assert len(bad.time_block(1) + bad.time_block(1)) == 2
    with pytest.raises(RuntimeError, match="scripted failure"):
        bad.time_block(1)


def test_bound_inputs_are_a_copy_that_runs_leave_alone(
    small: Path, small_x: Arrays, tmp_path: Path
) -> None:
    runner = loaded(small, tmp_path, ClockScript())
    before = small_x["x"].copy()
    runner.bind(small_x)
    small_x["x"][:] = 7
    assert np.array_equal(runner.inputs()["x"], before)
    runner.inputs()["x"][:] = 8
    runner.run()
    runner.time_block(3)
    assert np.array_equal(runner.inputs()["x"], before)


@pytest.mark.parametrize("call", ["run", "time_block", "both"])
@pytest.mark.parametrize(
    "value", [np.zeros((1, 8, 24, 24), np.float32), np.ones((1, 8, 24, 24), np.float32)]
)
def test_runs_may_overwrite_their_inputs(
    small: Path, tmp_path: Path, call: str, value: NDArray[np.float32]
) -> None:
    runner = loaded(small, tmp_path, ClockScript(faults={"v": "alias"}))
    inputs = {"x": value, "scalar": np.float32(1).reshape(())}
    runner.bind(inputs)
    # An even number of runs must not put back what the first one did.
    for _ in range(2):
        if call != "run":
            runner.time_block(3)
        if call != "time_block":
            runner.bind({"x": runner.inputs()["x"]})
            runner.run()
    assert not np.array_equal(runner.inputs()["x"], value)
    assert np.array_equal(inputs["x"], value)


def test_a_sample_of_several_streams_is_as_many_inferences(small: Path, tmp_path: Path) -> None:
    script = ClockScript(sigma=0, stream_ratio=0.6)
    assert loaded(small, tmp_path, script).time_block(1) == [1_000_000]
    assert loaded(small, tmp_path, script, streams=4).time_block(1) == [2_400_000]


def test_an_own_process_has_an_own_machine(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block noise differs from block to block, and nothing else of a shared machine shows."""
    monkeypatch.setenv("BITWORTH_WORKER", "0/0")
    shared = {"drift": 0.5, "position_effect": 0.5, "carry_over": 0.5}
    runner = loaded(small, tmp_path, ClockScript(sigma=0, **shared))
    assert runner.time_block(2) + runner.time_block(2) == [1_000_000] * 4
    noisy = loaded(small, tmp_path, ClockScript(sigma=0, block_sigma=0.1))
    first, second = noisy.time_block(2), noisy.time_block(2)
    assert first[0] == first[1] != second[0] == second[1]


def test_a_plan_that_was_not_saved_does_not_load(small: Path) -> None:
    plan = ENGINE.build(LoweredModel(small, "v"), options(ClockScript()))
    assert plan.size_bytes == small.stat().st_size
    with pytest.raises(EngineError, match="save the plan"):
        plan.load()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_registry_finds_every_engine(name: str) -> None:
    engine = engine_named(name)
    assert engine.name == name
    info = engine.probe()
    assert info.name == name
    assert info.version
    assert info.device
    # Whatever a recipe can ask for, an engine says what it does with it.
    schemes = get_args(Scheme)
    quantized = [f.name for f in FORMATS.values() if f.role == "quantized"]
    entries = [
        replace(
            Quantize("all", name, natural_weights(name), natural_activations(name)), scheme=scheme
        )
        for name in quantized
        for scheme in schemes
    ]
    asked = {support_key(e.format, e.scheme) for e in entries if fault(e) is None}
    assert set(info.formats) == {"fp32", "bf16", "fp16"} | asked
    assert all(f.state == "native" or f.reason for f in info.formats.values())


def test_the_registry_does_not_know_others() -> None:
    with pytest.raises(KeyError):
        engine_named("tensorrt")


def test_a_sample_of_several_calls_is_their_sum(small: Path, tmp_path: Path) -> None:
    script = ClockScript(base_ns=1e4, sigma=0.0)
    assert loaded(small, tmp_path, script).time_block(3, inner=30) == [300_000] * 3
