"""Several inferences in flight: what a sample is, and that their results are right."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.engines.base import Engine, EngineOptions, LoweredModel
from bitworth.engines.registry import engine_named
from bitworth.engines.streams import StreamRunner, Together, samples_between

Arrays = dict[str, NDArray[np.float32]]
ENGINES = ("onnxruntime", "openvino")


def test_a_sample_lasts_from_one_group_of_completions_to_the_next() -> None:
    # Ramp-up ends at 20; 90 is drain.
    ended = [10, 20, 33, 40, 58, 60, 90]
    assert samples_between(ended, 2, 2, 2) == [20, 20]
    assert samples_between([20, 10, 40, 33, 60, 90, 58], 2, 2, 2) == [20, 20]
    assert samples_between([10, 21, 33], 1, 1, 2) == [11, 12]
    assert samples_between([1, 2, 3, 4, 10, 20], 4, 2, 1) == [16]


class Machine:
    """Calls that take turns as a scripted machine with so many streams would let them."""

    def __init__(self, streams: int) -> None:
        self.meeting = threading.Barrier(streams)
        self.lock = threading.Lock()
        self.inside = self.calls = 0
        self.seen: list[int] = []

    def call(self) -> None:
        with self.lock:
            self.calls += 1
            self.inside += 1
            self.seen.append(self.inside)
        # In the drain fewer come than the meeting needs: they part once it is clear who is there.
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.5)
        with self.lock:
            self.inside -= 1


@pytest.mark.parametrize("iterations", [1, 4])
def test_as_many_are_in_flight_as_there_are_streams(iterations: int) -> None:
    machine = Machine(3)
    samples = Together([machine.call] * 3).time_block(iterations)
    assert len(samples) == iterations
    assert min(samples) >= 0
    assert max(machine.seen) == 3
    # Ramp-up of one each, the samples, and two in flight when the last sample ended.
    assert machine.calls == 3 * (iterations + 1) + 2


def test_the_ramp_up_lasts_until_every_stream_has_ended_one() -> None:
    """One stream that is slow to begin: what the other does meanwhile is in no sample."""
    begun = threading.Event()
    fast_calls: list[int] = []

    def fast() -> None:
        fast_calls.append(1)
        if len(fast_calls) == 50:
            begun.set()

    def slow() -> None:
        assert begun.wait(10)

    assert len(Together([fast, slow]).time_block(2)) == 2
    assert len(fast_calls) >= 50


def test_what_one_call_raises_ends_the_block() -> None:
    calls: list[int] = []

    def fine() -> None:
        calls.append(1)

    def broken() -> None:
        raise ValueError("broken")

    together = Together([fine, broken])
    with pytest.raises(ValueError, match="broken"):
        together.time_block(100_000)
    assert len(calls) < 200_000
    assert len(Together([fine, fine]).time_block(3)) == 3


def _runner(name: str, model: Path, folder: Path, options: EngineOptions) -> Any:
    engine: Engine = engine_named(name)
    path = folder / name / "plan"
    engine.build(LoweredModel(model, "v"), options).save(path)
    return engine.open(path, "fp32", options).load()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("threads", [2, 4])
def test_inferences_in_flight_do_not_touch_each_other(
    name: str, threads: int, small: Path, tmp_path: Path
) -> None:
    """Each stream's outputs are those that its inputs give alone, bit for bit."""
    runner = _runner(name, small, tmp_path, EngineOptions(threads=threads, streams=2))
    random = np.random.default_rng(8)
    inputs = [
        {"x": random.standard_normal((1, 8, 24, 24)).astype(np.float32)} for _ in runner.streams
    ]
    assert len(inputs) == 2
    alone = []
    for x in inputs:
        runner.bind(x)
        runner.run()
        alone.append(runner.outputs()["y"])
    assert not np.array_equal(*alone)
    for stream, x in zip(runner.streams, inputs, strict=True):
        stream.bind(x)
    for _ in range(20):
        assert len(runner.time_block(10)) == 10
        for stream, want in zip(runner.streams, alone, strict=True):
            assert np.array_equal(stream.outputs()["y"], want)


@pytest.mark.parametrize("name", ENGINES)
def test_every_stream_is_bound_to_inputs_of_its_own(
    name: str, small: Path, small_x: Arrays, tmp_path: Path
) -> None:
    runner = _runner(name, small, tmp_path, EngineOptions(threads=2, streams=2))
    runner.bind(small_x)
    samples = runner.time_block(5)
    assert len(samples) == 5
    assert min(samples) > 0
    first, second = (stream.outputs()["y"] for stream in runner.streams)
    assert np.array_equal(first, second)
    assert all(np.array_equal(s.inputs()["x"], small_x["x"]) for s in runner.streams)
    assert runner.streams[0]._inputs["x"] is not runner.streams[1]._inputs["x"]


@pytest.mark.parametrize("name", ENGINES)
def test_a_call_that_fails_in_flight_is_raised(name: str, write: Any, tmp_path: Path) -> None:
    model = write("g (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }")
    runner = _runner(name, model, tmp_path, EngineOptions(threads=2, streams=2))
    runner.bind({"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)})
    assert len(runner.time_block(2)) == 2
    runner.streams[1].bind({"x": np.ones(3, np.float32), "z": np.ones(2, np.float32)})
    with pytest.raises(Exception, match=r"(?i)add|shape|dimension|broadcast"):
        runner.time_block(50)


class Counted:
    """A stream whose runs are counted."""

    def __init__(self) -> None:
        self.runs = 0

    def bind(self, inputs: Arrays) -> None:
        del inputs

    def inputs(self) -> dict[str, np.ndarray]:
        return {}

    def run(self) -> None:
        self.runs += 1

    run_among = run

    def outputs(self) -> dict[str, np.ndarray]:
        return {}


def test_short_calls_are_timed_several_at_once() -> None:
    stream = Counted()
    runner = StreamRunner([stream])
    assert len(runner.time_block(5, inner=4)) == 5
    assert stream.runs == 20
    with pytest.raises(ValueError, match="several streams"):
        StreamRunner([Counted(), Counted()]).time_block(2, inner=2)
