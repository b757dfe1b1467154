from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.engines.base import EngineError, EngineOptions, LoweredModel, Runner
from bitworth.engines.mock import ENGINE, ClockScript, Fault, ScriptedClock
from bitworth.engines.registry import MODULES, engine_named

Arrays = dict[str, NDArray[np.float32]]
FAULTS: list[Fault] = ["build", "crash_build", "crash_run", "raise_run", "hang_run", "nan"]
positive = st.floats(1e-3, 1e9)


def options(script: ClockScript) -> EngineOptions:
    return EngineOptions(threads=1, extra={"script": script.dump()})


def loaded(
    model: Path, folder: Path, script: ClockScript, label: str = "v", precision: str = "fp32"
) -> Runner:
    plan = ENGINE.build(LoweredModel(model, label, precision), options(script))
    path = folder / label / "plan.bin"
    plan.save(path)
    return ENGINE.open(path, precision, options(script)).load()


@given(
    st.builds(
        ClockScript,
        base_ns=positive,
        ratios=st.dictionaries(st.text(max_size=8), positive, max_size=3),
        sigma=st.floats(0, 1),
        spike_share=st.floats(0, 1),
        spike_ratio=positive,
        session_bias=st.floats(0, 1),
        faults=st.dictionaries(st.text(max_size=8), st.sampled_from(FAULTS), max_size=3),
        fault_after=st.integers(0, 99),
        seed=st.integers(0, 2**31),
    )
)
@settings(max_examples=50, deadline=None)
def test_a_script_survives_its_text(script: ClockScript) -> None:
    assert ClockScript.parse(script.dump()) == script
    assert ClockScript.parse("{}") == ClockScript()


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        ClockScript.parse(json.dumps({"speed": 2}))


def test_the_scripted_ratio_is_recovered() -> None:
    script = ClockScript(base_ns=2e6, ratios={"fast": 0.8}, sigma=0.02, seed=1)
    base = np.median(ScriptedClock(script, "baseline", "0/0").draw(4000))
    fast = np.median(ScriptedClock(script, "fast", "0/1").draw(4000))
    assert base == pytest.approx(2e6, rel=0.003)
    assert fast / base == pytest.approx(0.8, rel=0.003)


def test_spikes_and_bias() -> None:
    script = ClockScript(sigma=0, spike_share=0.25, spike_ratio=4)
    samples = np.array(ScriptedClock(script, "v", "0/0").draw(4000))
    assert set(samples.tolist()) == {1_000_000, 4_000_000}
    assert np.mean(samples > 2e6) == pytest.approx(0.25, abs=0.03)
    biased = ClockScript(sigma=0, session_bias=0.1)
    centers = {ScriptedClock(biased, "v", f"{session}/0").draw(1)[0] for session in range(9)}
    assert len(centers) == 9


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
    assert set(info.formats) == {"fp32", "bf16", "int8", "fp8_e4m3"}
    assert all(f.state == "native" or f.reason for f in info.formats.values())


def test_the_registry_does_not_know_others() -> None:
    with pytest.raises(KeyError):
        engine_named("tensorrt")
