"""Faults while timing: whatever goes wrong, there is a reason and never a verdict."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from bitworth.engines.base import Arrays, EngineOptions, LayerTime
from bitworth.engines.mock import ClockScript
from bitworth.measurement.timing import (
    BlockShape,
    SessionSamples,
    TimedPlan,
    TimingTarget,
    measure_call_ns,
    run_session,
)
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.verdict import Comparison, session_schedule

from .conftest import InProcess, in_process

Scripted = Callable[[ClockScript], EngineOptions]
PlanOf = Callable[..., Path]
Judge = Callable[[list[SessionSamples], tuple[str, ...]], dict[str, Comparison]]
LABELS = ("baseline", "baseline again", "sick", "sound")
SHAPE = BlockShape(lead_in=1, iterations=5, call_ns=1_000_000)
ROUNDS = 8


@pytest.fixture
def mock(log: Path, plan_of: PlanOf, scripted: Scripted) -> Callable[..., SessionSamples]:
    """Run a session of four plans on the mock engine, in real processes."""

    def run(script: ClockScript, index: int = 0, timeout_s: float = 60.0, **options: Any) -> Any:
        inputs = {"x": np.ones(2, np.float32)}
        target = TimingTarget("mock", scripted(script), inputs, log, timeout_s=timeout_s)
        plans = [TimedPlan(label, plan_of(label.split(" ")[0]), "fp32") for label in LABELS]
        schedule = session_schedule(4, seed=3, session=index, minimum_rounds=ROUNDS)
        return run_session(target, plans, schedule, SHAPE, index, clocks=None, **options)

    return run


def only_sick_is_void(found: dict[str, Comparison], words: str) -> None:
    """The fault voids its own plan, for its own reason, and nobody else."""
    assert found["sick"].verdict == "void"
    assert words in found["sick"].reason
    assert found["sound"].verdict in ("equivalent", "faster", "slower", "not distinguishable")


def test_a_runner_that_raises_in_round_seven(mock: Any, judge: Judge) -> None:
    # The warm-up and each block run the clock twice, for the lead-in and for the samples.
    script = ClockScript(faults={"sick": "raise_run"}, fault_after=2 + 2 * 6, sigma=0.001)
    sessions = [mock(script, 0), mock(ClockScript(sigma=0.001), 1)]
    only_sick_is_void(
        judge(sessions, LABELS), "session 0: round 7: raised: RuntimeError: scripted failure"
    )


def test_a_hang(mock: Any, judge: Judge, log: Path) -> None:
    @contextmanager
    def started(index: int) -> Iterator[Worker]:
        with Worker(f"0/{index}", log, "mock") as worker:
            worker.ask("ping", timeout_s=60)  # its imports are no hang
            yield worker

    script = ClockScript(faults={"sick": "hang_run"}, fault_after=2 + 2 * 3, sigma=0.001)
    first = mock(script, timeout_s=3.0, start_worker=started)
    sessions = [first, mock(ClockScript(sigma=0.001), 1)]
    only_sick_is_void(judge(sessions, LABELS), "round 4: timed out: block: no answer")


class Killer:
    """Starts workers and remembers them, to kill the one of a plan."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.workers: dict[int, Worker] = {}

    @contextmanager
    def __call__(self, index: int) -> Iterator[Worker]:
        with Worker(f"0/{index}", self._log, "mock") as worker:
            self.workers[index] = worker
            yield worker

    def state(self, index: int) -> str:
        text = Path(f"/proc/{self.workers[index].pid}/stat").read_text(encoding="ascii")
        return text.rpartition(")")[2].split()[0]

    def kill(self, index: int) -> None:
        os.kill(self.workers[index].pid, signal.SIGKILL)


def test_a_process_that_is_killed_in_the_middle_of_a_block(
    mock: Any, judge: Judge, log: Path
) -> None:
    killer = Killer(log)
    done: list[int] = []

    def kill_soon() -> None:
        # Once round 3 has begun, the sick one sleeps in its block, and the others are stopped.
        for _ in range(1200):
            if len(done) == 3 and killer.state(2) == "S":
                time.sleep(0.1)
                if killer.state(2) == "S":
                    killer.kill(2)
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=kill_soon)
    thread.start()
    script = ClockScript(faults={"sick": "hang_run"}, fault_after=2 + 2 * 3, sigma=0.001)
    first = mock(script, start_worker=killer, on_round=lambda: done.append(1))
    thread.join()
    assert [len(block) for block in blocks_of(first, 2)] == [5, 5, 5, 0, 0, 0, 0, 0]
    sessions = [first, mock(ClockScript(sigma=0.001), 1)]
    only_sick_is_void(
        judge(sessions, LABELS), "round 4: crashed: block: the worker process died of SIGKILL"
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (2, "round 3: crashed: block: the worker process died of SIGKILL"),
        (ROUNDS, "after the last round: crashed: check: the worker process died of SIGKILL"),
    ],
)
def test_a_process_that_is_killed_while_it_is_stopped(
    mock: Any, judge: Judge, log: Path, after: int, words: str
) -> None:
    killer = Killer(log)
    done: list[int] = []

    def kill() -> None:
        done.append(1)
        if len(done) == after:
            assert killer.state(2) in ("T", "t")
            killer.kill(2)

    sessions = [
        mock(ClockScript(sigma=0.001), start_worker=killer, on_round=kill),
        mock(ClockScript(sigma=0.001), 1),
    ]
    only_sick_is_void(judge(sessions, LABELS), words)


class Scripted1ms:
    """Calls of about 1 ms; ``faults`` gives the sample of a call by its number."""

    def __init__(self, faults: dict[int, int], seed: int) -> None:
        self._faults = faults
        self._calls = 0
        self._random = np.random.default_rng(seed)

    def bind(self, inputs: Arrays) -> None:
        self._inputs = {name: np.array(value) for name, value in inputs.items()}

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        return dict(self._inputs)

    def run(self) -> None:
        self._calls += 1

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        samples = []
        for _ in range(iterations):
            self.run()
            noise = self._random.integers(-2000, 2000)
            samples.append(self._faults.get(self._calls, 1_000_000 + int(noise)))
        return samples

    def profile(self, calls: int) -> list[LayerTime]:
        return []

    def precision(self) -> str:
        return "fp32"


def timed(fake_engine: Any, runners: dict[str, Any], index: int = 0, **options: Any) -> Any:
    target, plans = fake_engine(runners)
    schedule = session_schedule(len(plans), seed=5, session=index, minimum_rounds=ROUNDS)
    options = {"start_worker": in_process, "clocks": None, **options}
    return run_session(target, plans, schedule, SHAPE, index, **options)


#: Calls of a session: 3 and 1 in the warm-up, then 1 and 5 a block.
WARM_UP, LEAD_IN, SAMPLE = 2, 4 + 6 * 2 + 1, 4 + 6 * 2 + 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (WARM_UP, "the clock went backwards in the lead-in of a block"),
        (4, "the clock went backwards in the warm-up"),
        (LEAD_IN, "round 3: invalid: the clock went backwards in the lead-in of a block"),
        (SAMPLE, "clock: 1 blocks have a time that is not positive and finite"),
    ],
)
def test_a_clock_that_goes_backwards_once(
    fake_engine: Any, judge: Judge, call: int, words: str
) -> None:
    sessions = []
    for index in range(2):
        faults = {call: -5} if index == 0 else {}
        runners = {
            label: lambda i=i, faults=faults: Scripted1ms(faults if i == 2 else {}, i)
            for i, label in enumerate(LABELS)
        }
        sessions.append(timed(fake_engine, runners, index))
    only_sick_is_void(judge(sessions, LABELS), words)


def test_a_clock_that_goes_backwards_while_the_call_is_measured(fake_engine: Any) -> None:
    class Backwards(Scripted1ms):
        def time_block(self, iterations: int, inner: int = 1) -> list[int]:
            return [-value for value in super().time_block(iterations)]

    target, plans = fake_engine({"baseline": lambda: Backwards({}, 0)})
    with in_process(0) as worker, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitworth.measurement.timing.Worker", lambda *_: _entered(worker))
        with pytest.raises(WorkerFailed, match="went backwards"):
            measure_call_ns(target, plans[0])


@contextmanager
def _entered(worker: InProcess) -> Iterator[InProcess]:
    yield worker


class Overwriting(Scripted1ms):
    """Writes into its input from call ``first`` on."""

    def __init__(self, first: int) -> None:
        super().__init__({}, 0)
        self._first = first

    def run(self) -> None:
        super().run()
        if self._calls >= self._first:
            self._inputs["x"][0] += 1


@pytest.mark.parametrize(
    ("first", "words"), [(2, "session 0: invalid: its runs"), (30, "after the last round")]
)
def test_runs_that_overwrite_their_input(
    fake_engine: Any, judge: Judge, first: int, words: str
) -> None:
    runners = {label: lambda i=i: Scripted1ms({}, i) for i, label in enumerate(LABELS)}
    sick = {**runners, "sick": lambda: Overwriting(first)}
    sessions = [timed(fake_engine, sick, 0), timed(fake_engine, runners, 1)]
    verdicts = judge(sessions, LABELS)
    only_sick_is_void(verdicts, words)
    assert "overwrite the input x: an output aliases it" in verdicts["sick"].reason


class Bound(Scripted1ms):
    """onnxruntime, its output in memory of its own or in that of its input."""

    def __init__(self, model: Path, aliased: bool, seed: int) -> None:
        super().__init__({}, seed)
        self._session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._aliased = aliased

    def bind(self, inputs: Arrays) -> None:
        super().bind(inputs)
        x = self._inputs["x"]
        self._y = x if self._aliased else np.empty_like(x)
        self._binding = self._session.io_binding()
        self._binding.bind_cpu_input("x", x)
        self._binding.bind_output("y", "cpu", 0, np.float32, x.shape, self._y.ctypes.data)

    def run(self) -> None:
        super().run()
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        return {"y": self._y}


def test_onnxruntime_with_an_output_bound_onto_an_input(
    fake_engine: Any, judge: Judge, double: Path
) -> None:
    """y = x + x, written over x: each call doubles what the next one reads."""
    runners = {
        label: lambda i=i, label=label: Bound(double, label == "sick", i)
        for i, label in enumerate(LABELS)
    }
    sound = Bound(double, False, 0)
    sound.bind({"x": np.array([1, 2, 3], np.float32)})
    sound.run()
    assert sound.outputs()["y"].tolist() == [2, 4, 6]
    sessions = [timed(fake_engine, runners, index) for index in range(2)]
    only_sick_is_void(judge(sessions, LABELS), "invalid: its runs overwrite the input x")


def test_a_check_costs_no_memory_of_the_plan(fake_engine: Any) -> None:
    """The copy of the inputs that a check makes is not counted as what the runs took."""

    class Copying(InProcess):
        def ask(self, op: str, *args: Any, **kwargs: Any) -> Any:
            header, rest = super().ask(op, *args, **kwargs)
            if op == "load":
                header["resident_before_bytes"] = 0
            grown = {"load": 100, "check": self.peak + 40, "block": self.later}.get(op, 0)
            self.peak = max(self.peak, grown)
            return header, rest

        later = 0

    class Growing(Copying):
        later = 500

    kinds = {0: Copying, 1: Growing}

    @contextmanager
    def start(index: int) -> Iterator[InProcess]:
        yield kinds[index]()

    runners = {label: lambda i=i: Scripted1ms({}, i) for i, label in enumerate(LABELS[:2])}
    found = timed(fake_engine, runners, start_worker=start)
    assert found.peak_bytes == {0: 100, 1: 500}
    assert found.engine_bytes == {0: 100, 1: 500}


def blocks_of(found: SessionSamples, plan: int) -> list[tuple[int, ...]]:
    """The blocks of a plan, round by round."""
    return [row[order.index(plan)] for order, row in zip(found.order, found.samples, strict=True)]
