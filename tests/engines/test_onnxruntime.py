from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from bitworth.engines import onnxruntime as module
from bitworth.engines.base import EngineError, EngineOptions, LoweredModel
from bitworth.engines.onnxruntime import ENGINE, layer_times
from bitworth.engines.plan_file import plan_bytes, plan_files, plan_sha256
from bitworth.measurement.profile import map_layers
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import find_sites

Arrays = dict[str, NDArray[np.float32]]
ONE = EngineOptions(threads=1)


def direct(model: Path, inputs: Arrays, level: str = "ORT_ENABLE_ALL") -> NDArray[np.float32]:
    """The model's first output in a session that was never saved."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    result: NDArray[np.float32] = session.run(None, inputs)[0]
    return result


def saved(model: Path, folder: Path, options: EngineOptions = ONE) -> Path:
    path = folder / "plans" / "plan.bin"
    ENGINE.build(LoweredModel(model, "v"), options).save(path)
    return path


def run(plan: Path, inputs: Arrays, options: EngineOptions = ONE) -> NDArray[np.generic]:
    runner = ENGINE.open(plan, "fp32", options).load()
    runner.bind(inputs)
    runner.run()
    return next(iter(runner.outputs().values()))


def test_a_saved_plan_is_bit_equal_to_the_optimized_session(
    small: Path, small_x: Arrays, tmp_path: Path
) -> None:
    plan = saved(small, tmp_path)
    assert np.array_equal(run(plan, small_x), direct(small, small_x))
    # Not because nothing was optimized.
    layers = ENGINE.open(plan, "fp32", ONE).layers()
    assert "Relu" not in layers
    assert layers != tuple(n.op_type for n in onnx.load(small).graph.node)


def test_the_real_recogniser_is_bit_equal(
    recogniser: Path, recogniser_x: Arrays, tmp_path: Path
) -> None:
    plan = saved(recogniser, tmp_path)
    assert np.array_equal(run(plan, recogniser_x), direct(recogniser, recogniser_x))


def test_unoptimized_is_the_graph_as_it_is(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    options = EngineOptions(threads=1, optimization="none")
    plan = saved(small, tmp_path, options)
    assert np.array_equal(run(plan, small_x, options), direct(small, small_x, "ORT_DISABLE_ALL"))
    names = tuple(n.op_type for n in onnx.load(small).graph.node)
    assert ENGINE.open(plan, "fp32", options).layers() == names


@pytest.mark.parametrize("level", ["extended", "basic"])
def test_each_level_is_the_engines_own(
    recogniser: Path, recogniser_x: Arrays, tmp_path: Path, level: Literal["extended", "basic"]
) -> None:
    options = EngineOptions(1, level)
    plan = saved(recogniser, tmp_path, options)
    expected = direct(recogniser, recogniser_x, f"ORT_ENABLE_{level.upper()}")
    assert np.array_equal(run(plan, recogniser_x, options), expected)
    # The layout for this machine comes with ``all`` alone.
    layers = ENGINE.open(plan, "fp32", options).layers()
    assert not any(op.startswith("Reorder") for op in layers)
    whole = ENGINE.build(LoweredModel(recogniser, "v"), ONE).layers()
    assert any(op.startswith("Reorder") for op in whole)


def test_bytes_and_hash(small: Path, tmp_path: Path) -> None:
    built = ENGINE.build(LoweredModel(small, "v"), ONE)
    first, second = tmp_path / "a" / "plan.bin", tmp_path / "b" / "plan.bin"
    built.save(first)
    data = first.read_bytes()
    opened = ENGINE.open(first, "fp32", ONE)
    assert built.size_bytes == opened.size_bytes == plan_bytes(first) == len(data)
    assert plan_sha256(first) == hashlib.sha256(data).hexdigest()
    opened.save(second)
    assert second.read_bytes() == data
    assert {p.name for p in first.parent.iterdir()} == {"plan.bin"}


def test_threads_are_those_asked_for(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    plan = saved(small, tmp_path)

    def started(threads: int) -> int:
        before = len(list(Path("/proc/self/task").iterdir()))
        runner = ENGINE.open(plan, "fp32", EngineOptions(threads=threads)).load()
        runner.bind(small_x)
        runner.run()
        return len(list(Path("/proc/self/task").iterdir())) - before

    # The calling thread is the first.
    assert started(1) == 0
    assert started(3) == 2


def test_blocks_and_outputs(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    runner = ENGINE.open(saved(small, tmp_path), "fp32", ONE).load()
    runner.bind(small_x)
    samples = runner.time_block(5)
    assert len(samples) == 5
    assert all(type(s) is int for s in samples)
    assert min(samples) > 0
    before = runner.outputs()["y"]
    runner.bind({"x": small_x["x"] * 2})
    runner.run()
    assert not np.array_equal(before, runner.outputs()["y"])
    assert runner.precision() == "fp32"


def test_a_scalar_input_stays_a_scalar(write: Callable[..., Path], tmp_path: Path) -> None:
    model = write("g (float[2] x, float s) => (float[2] y) { y = Mul(x, s) }")
    plan = saved(model, tmp_path)
    inputs = {"x": np.array([1, 2], np.float32), "s": np.array(3, np.float32)}
    assert run(plan, inputs).tolist() == [3, 6]
    runner = ENGINE.open(plan, "fp32", ONE).load()
    runner.bind({**inputs, "s": np.array(4, np.float32)})
    assert {layer.op for layer in runner.profile(1)} == {"Mul"}


def test_an_input_that_is_not_contiguous(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    turned = np.asfortranarray(small_x["x"])
    plan = saved(small, tmp_path)
    assert np.array_equal(run(plan, {"x": turned}), run(plan, small_x))


def test_a_profile_has_every_layer(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    plan = ENGINE.open(saved(small, tmp_path), "fp32", ONE)
    runner = plan.load()
    runner.bind(small_x)
    layers = runner.profile(4)
    assert sorted(layer.op for layer in layers) == sorted(plan.layers())
    assert all(layer.time_ns > 0 for layer in layers)
    assert {layer.precision for layer in layers} == {"float"}
    assert all(layer.kernel == layer.op and len(layer.origins) == 1 for layer in layers)


def event(name: str, us: float, **more: object) -> dict[str, object]:
    args = {"op_name": "Conv", "output_type_shape": [{"float": [1, 2]}]}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "args": args, **more}


def one_after_another(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, each starting where the one before ends."""
    ends = accumulate(float(e["dur"]) for e in events)
    return [{**e, "ts": end - e["dur"]} for e, end in zip(events, ends, strict=True)]


def test_layer_times_leave_the_first_call_out() -> None:
    events = [
        {"cat": "Session", "name": "model_loading_uri", "dur": 99999, "args": {}},
        event("conv_nchwc", 5000),
        event("conv_nchwc", 10),
        {"cat": "Node", "name": "conv_nchwc_fence_before", "dur": 7, "args": {}},
        event("conv_nchwc", 21),
    ]
    (layer,) = layer_times(one_after_another(events), calls=2)
    assert layer.time_ns == 15_500
    assert (layer.name, layer.op, layer.precision) == ("conv_nchwc", "Conv", "float")
    assert layer.origins == ("conv",)


def test_layer_times_of_a_loop_and_of_an_output_without_type() -> None:
    looped = [event("body", us) for us in (1000, 1000, 1, 2, 3, 4)]
    bare = [event("bare", 3, args={"op_name": "Print", "output_type_shape": []}) for _ in "abc"]
    body, print_ = layer_times(one_after_another([*looped, *bare]), calls=2)
    assert (body.time_ns, body.calls) == (5_000, 2)
    assert (print_.time_ns, print_.precision) == (3_000, "")
    assert layer_times([], calls=2) == []


def test_recogniser_layers_map_to_sites(
    recogniser: Path, recogniser_x: Arrays, tmp_path: Path
) -> None:
    prepared = prepare(load(recogniser), 13)
    model = tmp_path / "prepared.onnx"
    save(prepared.model, model)
    runner = ENGINE.open(saved(model, tmp_path), "fp32", ONE).load()
    runner.bind(recogniser_x)
    sites = find_sites(prepared).sites
    nodes = list(prepared.model.graph)
    mapped = map_layers(
        runner.profile(1),
        sites,
        {str(v.name): str(n.name) for n in nodes for v in n.outputs},
        {str(n.name): tuple(str(v.name) for v in n.inputs if v is not None) for n in nodes},
    )
    convs = [m for m in mapped if "conv" in m.layer.op.lower()]
    assert len(convs) > 40
    assert sum(len(m.sites) == 1 for m in convs) > 0.95 * len(convs)
    found = [s for m in mapped for s in m.sites]
    assert len(set(found)) > 0.9 * len(sites)


@pytest.mark.parametrize("content", [b"no protobuf \xff\xff", b""])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"^onnxruntime: ") as refused:
        ENGINE.build(LoweredModel(path, "v"), ONE)
    assert "\n" not in str(refused.value)


def test_an_operator_that_it_does_not_have_is_refused(write: Callable[..., Path]) -> None:
    model = write("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    proto = onnx.load(model)
    proto.graph.node[0].op_type = "Rellu"
    model.write_bytes(proto.SerializeToString())
    with pytest.raises(EngineError, match="Rellu") as refused:
        ENGINE.build(LoweredModel(model, "v"), ONE)
    assert "\n" not in str(refused.value)


def outside(model: Path, name: str) -> Path:
    """The same model with its weights in a file of any name beside it."""
    path = model.with_name("outside.onnx")
    onnx.save(onnx.load(model), path, save_as_external_data=True, location=name, size_threshold=0)
    return path


def test_a_model_with_its_weights_beside_it(small: Path, small_x: Arrays, tmp_path: Path) -> None:
    model = outside(small, "weights.bin")
    assert model.stat().st_size < small.stat().st_size / 4
    plan = saved(model, tmp_path)
    (tmp_path / "weights.bin").unlink()  # the plan has its own
    assert np.array_equal(run(plan, small_x), direct(small, small_x))


def test_a_model_whose_weights_are_missing(small: Path, tmp_path: Path) -> None:
    model = outside(small, "weights.bin")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(EngineError, match=r"weights\.bin"):
        ENGINE.build(LoweredModel(model, "v"), ONE)


def test_a_plan_too_large_for_one_file(
    small: Path, small_x: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = saved(small, tmp_path / "whole")
    monkeypatch.setattr(module, "INLINE_LIMIT_BYTES", 0)
    built = ENGINE.build(LoweredModel(small, "v"), ONE)
    path = tmp_path / "split" / "plan.bin"
    built.save(path)
    size = built.size_bytes
    del built
    gc.collect()  # the folder it was built in is gone
    assert [f.name for f in plan_files(path)] == ["plan.bin", "plan.onnx.data"]
    assert path.stat().st_size < whole.stat().st_size / 2
    assert size == plan_bytes(path) == sum(f.stat().st_size for f in plan_files(path))
    assert np.array_equal(run(path, small_x), run(whole, small_x))
    before = plan_sha256(path)
    data = plan_files(path)[1]
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    assert plan_sha256(path) != before


def test_the_probe() -> None:
    info = ENGINE.probe()
    assert info.version == ort.__version__
    assert info.formats["fp32"].state == "native"
    assert info.formats["bf16"].state == "emulated"
    assert "bf16" in info.formats["bf16"].reason
    assert info.formats["fp8_e4m3"].state == "emulated"
    assert info.device


def test_extra_options_reach_the_session(small: Path, tmp_path: Path) -> None:
    plain = ENGINE.build(LoweredModel(small, "v"), ONE).layers()
    extra = {"optimization.disable_specified_optimizers": "NchwcTransformer"}
    without = ENGINE.build(LoweredModel(small, "v"), EngineOptions(1, extra=extra)).layers()
    assert any(op.startswith("Reorder") for op in plain)
    assert not any(op.startswith("Reorder") for op in without)


def test_an_optimized_form_that_cannot_be_read_back_is_made_at_load(
    recogniser: Path, recogniser_x: Arrays, tmp_path: Path
) -> None:
    """onnxruntime's own quantization of an opset 11 model runs, but its optimized file does not."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [recogniser_x]

        def get_next(self) -> Arrays | None:
            return self.left.pop() if self.left else None

    model = tmp_path / "theirs.onnx"
    quantize_static(recogniser, model, Reader())
    plan = ENGINE.build(LoweredModel(model, "theirs"), ONE)
    assert "optimized each time it is loaded" in plan.note
    path = tmp_path / "saved" / "plan.bin"
    plan.save(path)
    assert ENGINE.open(path, "fp32", ONE).note == plan.note
    np.testing.assert_array_equal(run(path, recogniser_x), direct(model, recogniser_x))
    # A plan that takes the name later is not mistaken for it.
    ENGINE.build(LoweredModel(recogniser, "float"), ONE).save(path)
    assert ENGINE.open(path, "fp32", ONE).note == ""
    np.testing.assert_array_equal(run(path, recogniser_x), direct(recogniser, recogniser_x))


def test_it_decides_what_it_is_left(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    model = LoweredModel(small, "v")

    def decided(threads: int, streams: int) -> tuple[int, int]:
        found = ENGINE.decided(model, EngineOptions(threads=threads, streams=streams))
        return found.threads, found.streams

    assert decided(0, 0) == (1, 8)
    assert decided(2, 0) == (2, 4)
    assert decided(0, 4) == (2, 4)
    assert decided(0, 16) == (1, 16)
    assert decided(16, 0) == (16, 1)
    assert decided(3, 5) == (3, 5)
