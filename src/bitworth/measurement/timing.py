"""One timing session: fresh workers, interleaved blocks, every sample kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.clocks import (
    Interference,
    NoClocks,
    Observed,
    OpenClocks,
    as_columns,
    interference,
    machine_clocks,
    read_cpu,
)
from bitworth.measurement.plans import load_plan
from bitworth.measurement.workers import TimingWorker, Worker, WorkerFailed
from bitworth.verdict.schedule import SessionSchedule

#: A block lasts about this long. The noise of a shared machine outlasts a block, so that many short
#: blocks cancel more of it than few long ones: docs/timing.md has the curve.
BLOCK_NS = 20_000_000
#: Calls of the same variant that are thrown away before a block, in time: a process that continues
#: runs slower for about 16 ms, until its threads lie on CPUs of their own.
LEAD_IN_NS = 20_000_000
#: The same on a GPU, whose clocks NVML renews every 100 ms: what is read at the end of a block is
#: then that block's own.
GPU_LEAD_IN_NS = 150_000_000
#: Above this a call is a block of its own.
LONG_CALL_NS = 100_000_000
MAX_SAMPLES = 64
#: Calls shorter than this are timed several at once: reading the clock costs a quarter of a
#: microsecond, and is to be under a thousandth of a sample.
SHORTEST_SAMPLE_NS = 300_000
WARM_UP_CALLS = 3


#: Starts the worker of the plan with this index.
StartWorker = Callable[[int], AbstractContextManager[TimingWorker]]


@dataclass(frozen=True)
class TimedPlan:
    """A saved plan under its variant's label.

    Attributes:
        label: the variant's name.
        path: its file.
        precision: that it was built with.
        sha256: of its bytes.
        options: its own; None: those of the target.
        inputs: its own; None: those of the target.
        items: samples of the data in one call.
    """

    label: str
    path: Path
    precision: str
    sha256: str = ""
    options: EngineOptions | None = None
    inputs: Arrays | None = None
    items: int = 1


@dataclass(frozen=True)
class TimingTarget:
    """What all sessions of a job share.

    Attributes:
        engine: engine name.
        options: the cell's options.
        inputs: the inputs that every call runs on.
        log: file that takes what engines print.
        timeout_s: longest wait for a block.
        gpu: NVML's index of the NVIDIA GPU that it runs on; None for an engine on the CPU.
    """

    engine: str
    options: EngineOptions
    inputs: Arrays
    log: Path
    timeout_s: float = 600.0
    gpu: int | None = None


@dataclass(frozen=True)
class BlockShape:
    """Calls of one block.

    Attributes:
        lead_in: discarded calls before the samples.
        iterations: samples.
        call_ns: median time of one call of the baseline, from which all were chosen.
        inner: calls of one sample.
    """

    lead_in: int
    iterations: int
    call_ns: int
    inner: int = 1


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
        clocks: what was observed in each block, ``[round][position]``, by quantity; see
            ``CpuClocks`` and ``GpuClocks``.
        not_observable: quantities that this machine does not show, and why.
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
    clocks: Mapping[str, tuple[tuple[float | None, ...], ...]] = field(default_factory=dict)
    not_observable: Mapping[str, str] = field(default_factory=dict)


def block_shape(call_ns: float, *, gpu: bool = False, singly: bool = False) -> BlockShape:
    """Lead-in and samples for a call of ``call_ns``.

    Args:
        call_ns: its time.
        gpu: it runs on one.
        singly: every call is a sample of its own, however short, as a quantile needs it.
    """
    if call_ns > LONG_CALL_NS:
        return BlockShape(1, 1, round(call_ns))
    call = max(call_ns, 1.0)
    inner = 1 if singly else max(1, math.ceil(SHORTEST_SAMPLE_NS / call))
    iterations = min(max(round(BLOCK_NS / (call * inner)), 2), MAX_SAMPLES)
    lead_in_ns = GPU_LEAD_IN_NS if gpu else LEAD_IN_NS
    return BlockShape(max(1, round(lead_in_ns / call)), iterations, round(call_ns), inner)


def measure_call_ns(target: TimingTarget, plan: TimedPlan) -> float:
    """Median time of one call of ``plan`` in ns, to choose the block's shape.

    Raises:
        WorkerFailed: it does not load or run, or the clock went backwards.
    """
    with Worker("calibrate/0", target.log) as worker:
        _load(worker, target, plan)
        samples = _block(worker, target, 1, 3)
        if median(samples) < LONG_CALL_NS:
            samples = _block(worker, target, 5, 15)
    _check_clock(samples, "while its calls were measured")
    return median(samples)


def run_session(
    target: TimingTarget,
    plans: Sequence[TimedPlan],
    schedule: SessionSchedule,
    shape: BlockShape,
    session: int,
    on_round: Callable[[], None] | None = None,
    failed: Mapping[int, str] | None = None,
    start_worker: StartWorker | None = None,
    clocks: OpenClocks | None = machine_clocks,
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
        start_worker: what starts the worker of a plan; by default a process of its own for each.
        clocks: what observes the machine, in the session and around each block; None for nothing.
    """
    start_worker = start_worker or _own_process(target, session)
    failures: dict[int, str] = dict(failed or {})
    load_ns: dict[int, int] = {}
    before_bytes: dict[int, int] = {}
    peaks: dict[int, _Peak] = {}
    with ExitStack() as stack:
        workers: dict[int, TimingWorker] = {}
        # All interpreters start at once; plans are loaded one after another, in random order.
        started = [
            (i, stack.enter_context(start_worker(i)))
            for i in schedule.start_order
            if i not in failures
        ]
        for index, worker in started:  # imports of one would slow the load of another
            try:
                worker.ask("ping", timeout_s=target.timeout_s)
            except WorkerFailed as failure:
                failures[index] = str(failure)
        ready = [(i, w) for i, w in started if i not in failures]
        for index, found in _loaded(ready, target, plans).items():
            if isinstance(found, WorkerFailed):
                failures[index] = str(found)
                continue
            load_ns[index], before_bytes[index], peaks[index] = found
            workers[index] = dict(ready)[index]
        pids = [w.pid for w in workers.values()]
        clock = stack.enter_context(clocks(target.gpu, pids) if clocks else nullcontext(NoClocks()))
        start = read_cpu(pids) if clocks else None
        rounds: list[tuple[tuple[int, ...], ...]] = []
        observed: list[list[Observed]] = []
        for done, order in enumerate(schedule.rounds, start=1):
            row: list[tuple[int, ...]] = []
            seen: list[Observed] = []
            for index in order:
                samples: tuple[int, ...] = ()
                block: Observed = {}
                if index not in failures:
                    # Read while the worker is stopped: it would spin, and slow the reading.
                    end_block = clock.begin(workers[index].pid)
                    try:
                        workers[index].resume()
                        samples = _block(
                            workers[index], target, shape.lead_in, shape.iterations, shape.inner
                        )
                        block = end_block()
                    except WorkerFailed as failure:
                        failures[index] = f"round {done}: {failure}"
                    workers[index].stop()
                row.append(samples)
                seen.append(block)
            rounds.append(tuple(row))
            observed.append(seen)
            if on_round is not None:
                on_round()
        load = interference(start, read_cpu(pids)) if start else Interference(None, None)
        resident = {i: _final_peak(worker, peaks.get(i)) for i, worker in workers.items()}
        for index in [i for i in workers if i not in failures]:
            try:
                workers[index].resume()
                _check_inputs(workers[index], target)
            except WorkerFailed as failure:
                failures[index] = f"after the last round: {failure}"
            workers[index].stop()
        columns, not_observable = as_columns(observed, clock.not_observable)
    return SessionSamples(
        session=session,
        start_order=schedule.start_order,
        order=schedule.rounds,
        samples=tuple(rounds),
        failures=failures,
        load_ns=load_ns,
        peak_bytes=resident,
        engine_bytes={
            i: None if peak is None else max(0, peak - before_bytes[i])
            for i, peak in resident.items()
        },
        interference=load,
        clocks=columns,
        not_observable=not_observable,
    )


@dataclass(frozen=True)
class _Peak:
    """A worker's peak memory before and after the copy that a check of its inputs makes."""

    before: int | None
    after: int | None


def _check_inputs(worker: TimingWorker, target: TimingTarget) -> _Peak:
    """Fail where runs have changed what they run on: the times would belong to other inputs."""
    before = worker.peak_resident_bytes()
    worker.ask("check", timeout_s=target.timeout_s)
    return _Peak(before, worker.peak_resident_bytes())


def _loaded(
    ready: Sequence[tuple[int, TimingWorker]], target: TimingTarget, plans: Sequence[TimedPlan]
) -> dict[int, tuple[int, int, _Peak] | WorkerFailed]:
    """Load each worker's plan; on a GPU all at once: each compiles for seconds on its own core.

    Elsewhere one after another: they would slow each other's load, which is measured.
    """

    def start(index: int, worker: TimingWorker) -> tuple[int, int, _Peak] | WorkerFailed:
        try:
            return _start(worker, target, plans[index])
        except WorkerFailed as failure:
            return failure

    if target.gpu is None:
        return {index: start(index, worker) for index, worker in ready}
    pool = ThreadPoolExecutor(max(1, len(ready)))
    try:
        running = {index: pool.submit(start, index, worker) for index, worker in ready}
        return {index: found.result() for index, found in running.items()}
    finally:
        # After a Ctrl-C the workers are ended, and with them what the threads wait for.
        pool.shutdown(wait=False, cancel_futures=True)


def _start(worker: TimingWorker, target: TimingTarget, plan: TimedPlan) -> tuple[int, int, _Peak]:
    """Load, warm up and check a plan, and stop its worker: time to load, bytes before, peak."""
    try:
        loaded = _load(worker, target, plan)
        _check_clock(_block(worker, target, WARM_UP_CALLS, 1), "in the warm-up")
        peak = _check_inputs(worker, target)
    finally:
        worker.stop()
    return loaded["load_ns"], loaded["resident_before_bytes"], peak


def _final_peak(worker: TimingWorker, checked: _Peak | None) -> int | None:
    """Peak memory of the runs alone: where none went beyond what the check took, that before it."""
    last = worker.peak_resident_bytes()
    if last is None or checked is None or checked.before is None or checked.after is None:
        return last
    return last if last > checked.after else checked.before


def _check_clock(samples: Sequence[int], when: str) -> None:
    if min(samples) < 0:
        raise WorkerFailed("invalid", f"the clock went backwards {when}")


def _own_process(target: TimingTarget, session: int) -> StartWorker:
    return lambda index: Worker(f"{session}/{index}", target.log, target.engine)


def _load(worker: TimingWorker, target: TimingTarget, plan: TimedPlan) -> dict[str, int]:
    options = plan.options or target.options
    loaded = load_plan(worker, target.engine, plan.path, plan.precision, options)
    inputs = target.inputs if plan.inputs is None else plan.inputs
    worker.ask("bind", inputs, timeout_s=target.timeout_s)
    return loaded


def _block(
    worker: TimingWorker, target: TimingTarget, lead_in: int, count: int, inner: int = 1
) -> tuple[int, ...]:
    header, _ = worker.ask(
        "block", timeout_s=target.timeout_s, lead_in=lead_in, iterations=count, inner=inner
    )
    return tuple(header["samples"])
