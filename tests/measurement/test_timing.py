from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.engines.base import EngineOptions
from bitworth.engines.mock import ClockScript
from bitworth.measurement import timing
from bitworth.measurement.clocks import Interference
from bitworth.measurement.timing import (
    BLOCK_NS,
    LONG_CALL_NS,
    MAX_SAMPLES,
    BlockShape,
    SessionSamples,
    TimedPlan,
    TimingTarget,
    block_shape,
    measure_call_ns,
    run_session,
)
from bitworth.measurement.workers import WorkerFailed
from bitworth.verdict.schedule import SessionSchedule, session_schedule

Scripted = Callable[[ClockScript], EngineOptions]
PlanOf = Callable[..., Path]
Run = Callable[..., SessionSamples]
LABELS = ("baseline", "baseline again", "fast", "other")
SHAPE = BlockShape(lead_in=1, iterations=5, call_ns=1_000_000)
#: The first block of a worker that loads is the warm-up.
SCHEDULE = SessionSchedule(
    start_order=(2, 0, 3, 1), rounds=((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
)


@pytest.fixture
def run(log: Path, plan_of: PlanOf, scripted: Scripted) -> Run:
    """Run sessions of four plans on the mock; the first two share one plan."""

    def make(
        script: ClockScript,
        session: int = 0,
        schedule: SessionSchedule = SCHEDULE,
        on_round: Callable[[], None] | None = None,
        gpu: int | None = None,
        **options: Any,
    ) -> SessionSamples:
        inputs = {"x": np.ones(2, np.float32)}
        target = TimingTarget("mock", scripted(script), inputs, log, gpu=gpu)
        files = ("baseline", "baseline", "fast", "other")
        plans = [
            TimedPlan(label, plan_of(file), "fp32")
            for label, file in zip(LABELS, files, strict=True)
        ]
        return run_session(target, plans, schedule, SHAPE, session, on_round, **options)

    return make


def by_plan(found: SessionSamples, plan: int) -> list[tuple[int, ...]]:
    """The blocks of a plan, round by round."""
    return [row[order.index(plan)] for order, row in zip(found.order, found.samples, strict=True)]


def test_a_session(run: Run) -> None:
    rounds: list[int] = []
    script = ClockScript(base_ns=1e6, ratios={"fast": 0.5}, sigma=0.01)
    found = run(script, session=3, on_round=lambda: rounds.append(1))
    assert len(rounds) == 4
    assert (found.session, found.start_order, found.order) == (
        3,
        SCHEDULE.start_order,
        SCHEDULE.rounds,
    )
    assert [[len(block) for block in row] for row in found.samples] == [[5] * 4] * 4
    assert found.failures == {}
    base, again, fast = (np.array(by_plan(found, plan)) for plan in (0, 1, 2))
    assert np.median(fast) / np.median(base) == pytest.approx(0.5, rel=0.02)
    # The copy is a process of its own over the same plan.
    assert np.median(again) / np.median(base) == pytest.approx(1, rel=0.02)
    assert not set(base.flat) & set(again.flat)
    assert set(found.load_ns) == set(found.peak_bytes) == set(found.engine_bytes) == set(range(4))
    assert all(ns > 0 for ns in found.load_ns.values())
    for plan in range(4):
        peak, engine = found.peak_bytes[plan], found.engine_bytes[plan]
        assert peak is not None
        assert engine is not None
        assert 0 <= engine < peak
    shares = (found.interference.steal_ratio, found.interference.others_ratio)
    assert all(share is None or 0 <= share <= 1 for share in shares)


def test_a_failure_keeps_what_came_before(run: Run) -> None:
    # A block asks for two runs of the clock, lead-in and samples; the warm-up comes first.
    script = ClockScript(faults={"fast": "raise_run"}, fault_after=2 + 2 * 2)
    found = run(script)
    assert list(found.failures) == [2]
    assert found.failures[2] == "round 3: raised: RuntimeError: scripted failure"
    assert [len(block) for block in by_plan(found, 2)] == [5, 5, 0, 0]
    for plan in (0, 1, 3):
        assert [len(block) for block in by_plan(found, plan)] == [5] * 4


def test_a_failure_in_round_seven(run: Run) -> None:
    schedule = session_schedule(4, seed=1, session=0, minimum_rounds=8)
    found = run(
        ClockScript(faults={"other": "crash_run"}, fault_after=2 + 2 * 6), schedule=schedule
    )
    assert found.failures[3] == "round 7: crashed: block: the worker process died of SIGSEGV"
    assert [len(block) for block in by_plan(found, 3)] == [5] * 6 + [0, 0]
    assert [len(block) for block in by_plan(found, 0)] == [5] * 8
    assert found.peak_bytes[3] is None
    assert found.engine_bytes[3] is None
    # One of its processes is gone, so nobody knows what the others used.
    assert found.interference.others_ratio is None


def test_a_failure_while_warming_up_and_one_while_loading(
    run: Run, log: Path, plan_of: PlanOf, scripted: Scripted
) -> None:
    script = ClockScript(faults={"fast": "crash_run", "other": "raise_run"})
    found = run(script)
    assert set(found.failures) == {2, 3}
    assert "SIGSEGV" in found.failures[2]
    assert found.failures[3] == "raised: RuntimeError: scripted failure"
    assert [len(block) for plan in (2, 3) for block in by_plan(found, plan)] == [0] * 8
    assert [len(block) for plan in (0, 1) for block in by_plan(found, plan)] == [5] * 8

    plans = [
        TimedPlan("baseline", plan_of("baseline"), "fp32"),
        TimedPlan("lost", log.parent / "nowhere.bin", "fp32"),
    ]
    target = TimingTarget("mock", scripted(ClockScript()), {}, log)
    schedule = session_schedule(2, seed=0, session=0, minimum_rounds=2)
    lost = run_session(target, plans, schedule, SHAPE, 0)
    assert "No such file" in lost.failures[1]
    assert 1 not in lost.load_ns
    assert 1 not in lost.peak_bytes
    assert [len(block) for block in by_plan(lost, 1)] == [0, 0]


def test_plans_of_a_gpu_are_loaded_at_once_and_fail_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiles for seconds; one that fails while the others load takes none of them along."""
    inside, most, lock = 0, 0, threading.Lock()
    real = timing.load_plan

    def watched(*args: Any) -> dict[str, Any]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        gathered.wait(timeout=30)
        try:
            return real(*args)
        finally:
            with lock:
                inside -= 1

    gathered = threading.Barrier(4)
    monkeypatch.setattr(timing, "load_plan", watched)
    script = ClockScript(faults={"fast": "crash_run", "other": "raise_run"})
    found = run(script, gpu=0, clocks=None)
    assert most == 4
    assert set(found.failures) == {2, 3}
    assert "SIGSEGV" in found.failures[2]
    assert [len(block) for plan in (0, 1) for block in by_plan(found, plan)] == [5] * 8


def test_what_was_observed_stands_beside_each_block(run: Run) -> None:
    script = ClockScript(faults={"fast": "raise_run"}, fault_after=2 + 2 * 2)
    gpus: list[tuple[int | None, int]] = []
    closed: list[bool] = []

    class Clocks:
        """The third reading of a session shows nothing."""

        not_observable: Mapping[str, str] = {"sm_mhz": "no GPU"}

        def __init__(self) -> None:
            self.begun: list[int] = []

        def begin(self, pid: int) -> Callable[[], dict[str, float | None]]:
            self.begun.append(pid)
            number = len(self.begun)
            return lambda: {"reading": None if number == 3 else number, "nothing": None}

    clocks = Clocks()

    @contextmanager
    def opened(gpu: int | None, pids: Sequence[int]) -> Iterator[Clocks]:
        gpus.append((gpu, len(pids)))
        yield clocks
        closed.append(True)

    found = run(script, clocks=opened)
    assert (gpus, closed) == ([(None, 4)], [True])
    # Round by round in the order of the blocks; where there was no block, nothing was seen.
    expected = [[1, 2, None, 4], [5, 6, 7, 8], [None, 10, 11, 12], [13, 14, None, 15]]
    # The block in which plan 2 failed was begun (the ninth), but what it showed is no block's.
    assert [list(row) for row in found.clocks["reading"]] == expected
    assert len(set(clocks.begun)) == 4
    assert found.not_observable == {
        "sm_mhz": "no GPU",
        "nothing": "no block of the session showed it",
    }
    assert [order.index(2) for order in SCHEDULE.rounds] == [3, 1, 0, 2]


def test_without_clocks_nothing_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitworth.measurement.timing.read_cpu", None)
    found = run(ClockScript(), clocks=None)
    assert (found.clocks, found.not_observable) == ({}, {})
    assert found.interference == Interference(None, None)


def test_this_machine_is_observed_by_default(run: Run) -> None:
    found = run(ClockScript())
    assert {*found.clocks, *found.not_observable} == {"steal_ratio", "others_ratio", "cpu_mhz"}
    for column in found.clocks.values():
        assert [len(row) for row in column] == [4] * 4
    for reason in found.not_observable.values():
        assert len(reason) > 20


def test_the_call_time_is_measured(log: Path, plan_of: PlanOf, scripted: Scripted) -> None:
    plan = TimedPlan("v", plan_of("v"), "fp32")

    def measured(script: ClockScript) -> float:
        return measure_call_ns(TimingTarget("mock", scripted(script), {}, log), plan)

    assert measured(ClockScript(base_ns=3e6, sigma=0.001)) == pytest.approx(3e6, rel=0.01)
    with pytest.raises(WorkerFailed, match="scripted"):
        measured(ClockScript(faults={"v": "raise_run"}))


@given(st.floats(1, 1e12))
@settings(max_examples=50, deadline=None)
def test_block_shapes(call_ns: float) -> None:
    shape = block_shape(call_ns)
    assert shape.call_ns == round(call_ns)
    assert shape.lead_in >= 1
    if call_ns > LONG_CALL_NS:
        assert (shape.lead_in, shape.iterations) == (1, 1)
    else:
        assert 2 <= shape.iterations <= MAX_SAMPLES == 64
        # Reading the clock is under a thousandth of a sample, however short the call.
        assert shape.inner * call_ns >= 300_000
        assert shape.inner == 1 or (shape.inner - 1) * call_ns < 300_000
        # About the wanted time of samples unless the call is too long for that.
        block = shape.iterations * shape.inner * call_ns
        assert shape.iterations == 2 or 0.75 <= block / BLOCK_NS <= 1.25
    alone = block_shape(call_ns, singly=True)
    assert alone.inner == 1
    assert alone.iterations <= MAX_SAMPLES


def test_block_shapes_at_the_ends() -> None:
    assert block_shape(0).iterations == MAX_SAMPLES
    assert block_shape(300_000).inner == 1
    assert block_shape(299_999).inner == 2
    assert block_shape(LONG_CALL_NS) == BlockShape(1, 2, LONG_CALL_NS)
    # A GPU's clocks are renewed too rarely for a short lead-in.
    assert block_shape(1e6, gpu=True) == BlockShape(150, 20, 1_000_000)
    assert block_shape(LONG_CALL_NS + 1) == BlockShape(1, 1, LONG_CALL_NS + 1)
