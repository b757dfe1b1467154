from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino as ov
import pytest
from numpy.typing import NDArray

from bitworth.engines.base import EngineError, EngineOptions, LoweredModel
from bitworth.engines.openvino import ENGINE
from bitworth.measurement.plans import load_plan
from bitworth.measurement.profile import MappedLayer, map_layers
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import find_sites

Arrays = dict[str, NDArray[np.float32]]
ONE = EngineOptions(threads=1)


def has_bf16() -> bool:
    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def saved(model: Path, folder: Path, precision: str = "fp32") -> Path:
    path = folder / "plans" / f"{precision}.bin"
    plan = ENGINE.build(LoweredModel(model, "v", precision), ONE)
    plan.save(path)
    assert plan.size_bytes == path.stat().st_size
    assert [p.name for p in path.parent.iterdir() if p.suffix == ".part"] == []
    return path


def reference(model: Path, inputs: Arrays) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    result: NDArray[np.float32] = session.run(None, inputs)[0]
    return result


def rel_l2(want: NDArray[np.generic], got: NDArray[np.generic]) -> float:
    return float(np.linalg.norm(np.subtract(got, want)) / np.linalg.norm(np.asarray(want)))


def hint_of(compiled: Any) -> str:
    hint = compiled.get_property("INFERENCE_PRECISION_HINT")
    return str(hint.get_type_name())


def test_an_f32_plan_is_f32_when_loaded(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    path = saved(small, tmp_path)
    runner = ENGINE.open(path, "fp32", ONE).load()
    assert runner.precision() == "fp32"
    runner.bind(small_x)
    runner.run()
    got = runner.outputs()["y"]
    assert np.isfinite(got).all()
    assert rel_l2(reference(small, small_x), got) < 1e-4
    # Left alone, the plugin takes what it likes best.
    alone = ov.Core().import_model(path.read_bytes(), "CPU", {})
    assert hint_of(alone) == ("bf16" if has_bf16() else "f32")


def test_the_real_recogniser(recogniser: Path, recogniser_x: Arrays, tmp_path: Path) -> None:
    """An f32 plan gives the right numbers, and its layers map to sites."""
    prepared = prepare(load(recogniser), 13)
    model = tmp_path / "prepared.onnx"
    save(prepared.model, model)
    runner = ENGINE.open(saved(model, tmp_path), "fp32", ONE).load()
    assert runner.precision() == "fp32"
    runner.bind(recogniser_x)
    runner.run()
    got = next(iter(runner.outputs().values()))
    assert np.isfinite(got).all()
    assert rel_l2(reference(recogniser, recogniser_x), got) < 1e-4

    sites = find_sites(prepared).sites
    nodes = list(prepared.model.graph)
    mapped = map_layers(
        runner.profile(2),
        sites,
        {str(v.name): str(n.name) for n in nodes for v in n.outputs},
        {str(n.name): tuple(str(v.name) for v in n.inputs if v is not None) for n in nodes},
    )

    def time(layers: list[MappedLayer]) -> float:
        return sum(m.layer.time_ns for m in layers)

    heavy = [m for m in mapped if m.layer.op in ("Convolution", "FullyConnected", "MatMul")]
    assert heavy
    assert time([m for m in heavy if m.sites]) > 0.8 * time(heavy) > 0
    assert len({s for m in mapped for s in m.sites}) > 0.9 * len(sites)


def test_bf16_is_what_the_probe_says(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    support = ENGINE.probe().formats["bf16"]
    if not has_bf16():
        assert support.state == "emulated"
        assert "bf16" in support.reason
        assert "FP32" in support.reason
        return
    assert support.state == "native"
    runner = ENGINE.open(saved(small, tmp_path, "bf16"), "bf16", ONE).load()
    assert runner.precision() == "bf16"
    runner.bind(small_x)
    runner.run()
    error = rel_l2(reference(small, small_x), runner.outputs()["y"])
    assert 1e-5 < error < 0.05


def test_a_hint_that_this_cpu_lacks_is_not_read_back(small: Path, tmp_path: Path) -> None:
    """The precision comes from the loaded plan, not from what was asked for."""
    runner = ENGINE.open(saved(small, tmp_path, "bf16"), "bf16", ONE).load()
    layers = {layer for layer in _types(runner, small) if layer != "undef"}
    if has_bf16():
        assert runner.precision() == "bf16"
        assert any("bf16" in layer.lower() for layer in layers)
    else:
        assert not any("bf16" in layer.lower() for layer in layers)


def _types(runner: Any, model: Path) -> list[str]:
    runner.bind({"x": np.ones((1, 8, 24, 24), np.float32)})
    return [layer.precision for layer in runner.profile(1)]


def test_a_profile_of_a_small_model(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    plan = ENGINE.open(saved(small, tmp_path), "fp32", ONE)
    runner = plan.load()
    runner.bind(small_x)
    layers = runner.profile(3)
    convs = [layer for layer in layers if layer.op == "Convolution"]
    assert len(convs) == 2
    assert all(layer.time_ns > 0 for layer in convs)
    assert all(layer.precision == "f32" and layer.kernel for layer in convs)
    assert ["conv_0" in c.origins or "a" in c.origins for c in convs].count(True) == 1
    assert len({layer.name for layer in layers}) == len(layers)
    assert "Convolution" in plan.layers()


def test_layers_are_those_of_the_build(small: Path, tmp_path: Path) -> None:
    built = ENGINE.build(LoweredModel(small, "v"), ONE)
    path = tmp_path / "plan.bin"
    built.save(path)
    again = ENGINE.open(path, "fp32", ONE)
    assert sorted(again.layers()) == sorted(built.layers())
    assert again.size_bytes == built.size_bytes
    again.save(tmp_path / "copy" / "plan.bin")
    assert (tmp_path / "copy" / "plan.bin").read_bytes() == path.read_bytes()


def test_threads_are_those_asked_for(small: Path, tmp_path: Path) -> None:
    path = saved(small, tmp_path)
    for threads in {1, min(2, len(os.sched_getaffinity(0)))}:
        runner: Any = ENGINE.open(path, "fp32", EngineOptions(threads=threads)).load()
        compiled = runner._compiled
        assert compiled.get_property("INFERENCE_NUM_THREADS") == threads
        assert compiled.get_property("NUM_STREAMS") == 1


def test_streams_are_read_back_from_the_loaded_plan(
    small: Path, small_x: Arrays, tmp_path: Path
) -> None:
    """A blob that was compiled for two streams has them only if the import asks for them too."""
    two = EngineOptions(threads=2, streams=2)
    path = tmp_path / "plan.bin"
    ENGINE.build(LoweredModel(small, "v"), two).save(path)
    runner: Any = ENGINE.open(path, "fp32", two).load()
    assert runner._compiled.get_property("NUM_STREAMS") == 2
    assert runner.precision() == "fp32"
    runner.bind(small_x)
    runner.run()
    assert rel_l2(reference(small, small_x), runner.outputs()["y"]) < 1e-4
    assert {layer.op for layer in runner.profile(1)} > {"Convolution"}
    alone = ov.Core().import_model(path.read_bytes(), "CPU", {})
    assert alone.get_property("NUM_STREAMS") == 1
    # What the plugin does not give is an error, not another measurement under the same name.
    with pytest.raises(EngineError, match="asked for 2 streams, the loaded plan reports 1"):
        ENGINE.open(path, "fp32", EngineOptions(1, extra={"NUM_STREAMS": "1"}, streams=2)).load()


def test_the_plugin_decides_what_it_is_left(small: Path, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    model = LoweredModel(small, "v")
    found = ENGINE.decided(model, EngineOptions(threads=0, streams=0))
    assert found.threads == cores
    assert 1 <= found.streams <= cores
    path = tmp_path / "plan.bin"
    ENGINE.build(model, found).save(path)
    ENGINE.open(path, "fp32", found).load()
    given = EngineOptions(threads=1, streams=3)
    assert ENGINE.decided(model, given) == given
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no protobuf \xff\xff")
    with pytest.raises(EngineError, match=r"^openvino: "):
        ENGINE.decided(LoweredModel(broken, "v"), EngineOptions(threads=1, streams=0))


def test_blocks_and_outputs(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    runner = ENGINE.open(saved(small, tmp_path), "fp32", ONE).load()
    frozen = small_x["x"].copy()
    frozen.setflags(write=False)  # as an array that came over the wire
    runner.bind({"x": frozen})
    samples = runner.time_block(4)
    assert len(samples) == 4
    assert all(type(s) is int for s in samples)
    assert min(samples) > 0
    before = runner.outputs()["y"]
    runner.bind({"x": np.asfortranarray(small_x["x"] * 2)})
    runner.run()
    after = runner.outputs()["y"]
    assert rel_l2(reference(small, {"x": small_x["x"] * 2}), after) < 1e-4
    assert not np.array_equal(before, after)


def test_a_scalar_input_stays_a_scalar(write: Callable[..., Path], tmp_path: Path) -> None:
    model = write("g (float[2] x, float s) => (float[2] y) { y = Mul(x, s) }")
    runner = ENGINE.open(saved(model, tmp_path), "fp32", ONE).load()
    runner.bind({"x": np.array([1, 2], np.float32), "s": np.array(3, np.float32)})
    runner.run()
    assert runner.outputs()["y"].tolist() == [3, 6]


@pytest.mark.parametrize("content", [b"garbage" * 100, b""])
def test_a_plan_of_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.bin"
    path.write_bytes(content)
    with (
        Worker("0/0", tmp_path / "log") as worker,  # if it crashes, then not here
        pytest.raises(WorkerFailed, match="openvino: ") as failed,
    ):
        load_plan(worker, "openvino", path, "fp32", ONE)
    assert failed.value.kind == "refused"
    assert "\n" not in str(failed.value)


def test_a_model_that_it_does_not_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no protobuf \xff\xff")
    with pytest.raises(EngineError, match=r"^openvino: ") as refused:
        ENGINE.build(LoweredModel(path, "v"), ONE)
    assert "\n" not in str(refused.value)
