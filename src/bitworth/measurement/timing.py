"""One timing session: fresh workers, interleaved blocks, every sample kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.clocks import Interference, interference, read_cpu
from bitworth.measurement.plans import load_plan
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.verdict.schedule import SessionSchedule

#: A block lasts about this long: long against the switch between workers, short against drift.
BLOCK_NS = 60_000_000
#: Calls of the same variant that are thrown away before a block, in time.
LEAD_IN_NS = 20_000_000
#: Above this a call is a block of its own.
LONG_CALL_NS = 100_000_000
MAX_SAMPLES = 64
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class TimedPlan:
    """A saved plan under its variant's label; ``sha256`` is that of its bytes."""

    label: str
    path: Path
    precision: str
    sha256: str = ""


@dataclass(frozen=True)
class TimingTarget:
    """What all sessions of a job share.

    Attributes:
        engine: engine name.
        options: the cell's options.
        inputs: the inputs that every call runs on.
        log: file that takes what engines print.
        timeout_s: longest wait for a block.
    """

    engine: str
    options: EngineOptions
    inputs: Arrays
    log: Path
    timeout_s: float = 600.0


@dataclass(frozen=True)
class BlockShape:
    """Calls of one block.

    Attributes:
        lead_in: discarded calls before the samples.
        iterations: samples.
        call_ns: median time of one call of the baseline, from which both were chosen.
    """

    lead_in: int
    iterations: int
    call_ns: int


@dataclass(frozen=True)
class SessionSamples:
    """All that one session measured.

    Attributes:
        session: index of the session.
        start_order: plan indices in the order in which their workers started.
        order: for each round the plan indices in the order of their blocks.
        samples: ns, ``[round][position][sample]``; empty where the worker had failed.
        failures: plan index to what happened.
        load_ns, peak_bytes, engine_bytes: by plan index; the peak of the whole process, and of
            that what came after the interpreter and the engine's library were loaded; None where
            not observable.
        interference: what else the machine did.
    """

    session: int
    start_order: tuple[int, ...]
    order: tuple[tuple[int, ...], ...]
    samples: tuple[tuple[tuple[int, ...], ...], ...]
    failures: Mapping[int, str]
    load_ns: Mapping[int, int]
    peak_bytes: Mapping[int, int | None]
    engine_bytes: Mapping[int, int | None]
    interference: Interference


def block_shape(call_ns: float) -> BlockShape:
    """Lead-in and samples for a call of ``call_ns``."""
    if call_ns > LONG_CALL_NS:
        return BlockShape(1, 1, round(call_ns))
    call = max(call_ns, 1.0)
    iterations = min(max(round(BLOCK_NS / call), 2), MAX_SAMPLES)
    return BlockShape(max(1, round(LEAD_IN_NS / call)), iterations, round(call_ns))


def measure_call_ns(target: TimingTarget, plan: TimedPlan) -> float:
    """Median time of one call of ``plan`` in ns, to choose the block's shape.

    Raises:
        WorkerFailed: it does not load or run.
    """
    with Worker("calibrate/0", target.log) as worker:
        _load(worker, target, plan)
        samples = _block(worker, target, 1, 3)
        if median(samples) < LONG_CALL_NS:
            samples = _block(worker, target, 5, 15)
    return median(samples)


def run_session(
    target: TimingTarget,
    plans: Sequence[TimedPlan],
    schedule: SessionSchedule,
    shape: BlockShape,
    session: int,
    on_round: Callable[[], None] | None = None,
    failed: Mapping[int, str] | None = None,
) -> SessionSamples:
    """Run one session.

    Args:
        target: engine, options and inputs.
        plans: the plans, index 0 the baseline; a plan may appear twice (the A/A check).
        schedule: start order and rounds, as indices into ``plans``.
        shape: calls of one block.
        session: index of the session.
        on_round: called after each round.
        failed: plans that failed in an earlier session, and how. They are void whatever comes, and
            one that hangs would hang again: they get no worker.
    """
    failures: dict[int, str] = dict(failed or {})
    load_ns: dict[int, int] = {}
    before_bytes: dict[int, int] = {}
    with ExitStack() as stack:
        workers: dict[int, Worker] = {}
        # All interpreters start at once; plans are loaded one after another, in random order.
        started = [
            (i, stack.enter_context(Worker(f"{session}/{i}", target.log, target.engine)))
            for i in schedule.start_order
            if i not in failures
        ]
        for index, worker in started:  # imports of one would slow the load of another
            try:
                worker.ask("ping", timeout_s=target.timeout_s)
            except WorkerFailed as failure:
                failures[index] = str(failure)
        for index, worker in started:
            if index in failures:
                continue
            try:
                loaded = _load(worker, target, plans[index])
                load_ns[index] = loaded["load_ns"]
                before_bytes[index] = loaded["resident_before_bytes"]
                workers[index] = worker
                _block(worker, target, WARM_UP_CALLS, 1)
            except WorkerFailed as failure:
                failures[index] = str(failure)
            worker.stop()
        pids = [w.pid for w in workers.values()]
        start = read_cpu(pids)
        rounds = []
        for done, order in enumerate(schedule.rounds, start=1):
            row: list[tuple[int, ...]] = []
            for index in order:
                samples: tuple[int, ...] = ()
                if index not in failures:
                    try:
                        workers[index].resume()
                        samples = _block(workers[index], target, shape.lead_in, shape.iterations)
                    except WorkerFailed as failure:
                        failures[index] = f"round {done}: {failure}"
                    workers[index].stop()
                row.append(samples)
            rounds.append(tuple(row))
            if on_round is not None:
                on_round()
        load = interference(start, read_cpu(pids))
        peaks = {index: worker.peak_resident_bytes() for index, worker in workers.items()}
    return SessionSamples(
        session=session,
        start_order=schedule.start_order,
        order=schedule.rounds,
        samples=tuple(rounds),
        failures=failures,
        load_ns=load_ns,
        peak_bytes=peaks,
        engine_bytes={
            i: None if peak is None else max(0, peak - before_bytes[i]) for i, peak in peaks.items()
        },
        interference=load,
    )


def _load(worker: Worker, target: TimingTarget, plan: TimedPlan) -> dict[str, int]:
    loaded = load_plan(worker, target.engine, plan.path, plan.precision, target.options)
    worker.ask("bind", target.inputs, timeout_s=target.timeout_s)
    return loaded


def _block(worker: Worker, target: TimingTarget, lead_in: int, count: int) -> tuple[int, ...]:
    header, _ = worker.ask("block", timeout_s=target.timeout_s, lead_in=lead_in, iterations=count)
    return tuple(header["samples"])
