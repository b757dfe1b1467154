"""What the harness itself costs: within a sample, after a process continues, and between blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import Any

from benchmarks.timing.render_real import table
from bitworth.engines.onnxruntime import OrtRunner
from bitworth.measurement.clocks import CpuClocks
from bitworth.measurement.plans import load_plan
from bitworth.measurement.timing import (
    BLOCK_NS,
    LEAD_IN_NS,
    MAX_SAMPLES,
    BlockShape,
    TimedPlan,
    TimingTarget,
    block_shape,
    measure_call_ns,
    run_session,
)
from bitworth.measurement.workers import Worker
from bitworth.verdict import SessionSchedule, williams_square

#: Share of a block that the harness may take.
LIMIT = 0.001


@dataclass(frozen=True)
class SampleOverhead:
    """What an empty call adds to each sample.

    Attributes:
        empty_ns: median sample of a call that does nothing.
        block_share: of a block with as many samples as there can be, what they add.
    """

    empty_ns: float
    block_share: float


@dataclass(frozen=True)
class FirstSample:
    """The first sample after a process continues, over the median of the others of its block.

    Attributes:
        without_lead_in: median over the blocks, nothing thrown away.
        with_lead_in: the same after the usual lead-in.
        call_ns: median sample.
        blocks: of each kind.
    """

    without_lead_in: float
    with_lead_in: float
    call_ns: float
    blocks: int


@dataclass(frozen=True)
class BetweenBlocks:
    """Time that a session spends and no sample sees, once its workers run.

    Attributes:
        gap_ns: from the last sample of a block to the first call of the next one: answer, clocks,
            stop, continue and command.
        clocks_ns: of that, for reading the clocks.
        unseen_share: the gap and the lead-in together, of the time of a block with both.
        blocks: that were timed.
    """

    gap_ns: float
    clocks_ns: float
    unseen_share: float
    blocks: int


@dataclass(frozen=True)
class Overhead:
    """All of it, for one engine."""

    engine: str
    sample: SampleOverhead
    first: FirstSample
    between: BetweenBlocks


class _EmptySession:
    """As much of an onnxruntime session as its runner uses; a run enters C and does nothing."""

    run_with_iobinding = staticmethod(id)

    def io_binding(self) -> Any:
        return self

    def get_outputs(self) -> list[Any]:
        return []


def sample_overhead(blocks: int = 200) -> SampleOverhead:
    """Time an empty call with the loop of the engine's own runner."""
    session: Any = _EmptySession()
    plan: Any = None
    runner = OrtRunner(session, plan)
    runner.time_block(MAX_SAMPLES)
    samples = sorted(ns for _ in range(blocks) for ns in runner.time_block(MAX_SAMPLES))
    empty = median(samples)
    return SampleOverhead(
        empty_ns=empty,
        block_share=MAX_SAMPLES * empty / BLOCK_NS,
    )


def first_sample(target: TimingTarget, plan: TimedPlan, blocks: int = 30) -> FirstSample:
    """Let two processes of one plan take turns, as in a session, with a lead-in and without."""
    shape = block_shape(measure_call_ns(target, plan))
    with (
        Worker("0", target.log, target.engine) as one,
        Worker("1", target.log, target.engine) as two,
    ):
        for worker in (one, two):
            load_plan(worker, target.engine, plan.path, plan.precision, target.options)
            worker.ask("bind", target.inputs, timeout_s=target.timeout_s)
            _block(worker, target, shape.lead_in, shape.iterations)
            worker.stop()
        ratios: dict[int, list[float]] = {0: [], shape.lead_in: []}
        calls = []
        for number in range(2 * blocks):
            lead_in = (0, shape.lead_in)[number // 2 % 2]
            worker = (one, two)[number % 2]
            worker.resume()
            samples = _block(worker, target, lead_in, max(shape.iterations, 2))
            worker.stop()
            ratios[lead_in].append(samples[0] / median(samples[1:]))
            calls.append(median(samples[1:]))
    return FirstSample(median(ratios[0]), median(ratios[shape.lead_in]), median(calls), blocks)


def _block(worker: Worker, target: TimingTarget, lead_in: int, count: int) -> list[int]:
    header, _ = worker.ask("block", timeout_s=target.timeout_s, lead_in=lead_in, iterations=count)
    samples: list[int] = header["samples"]
    return samples


def between_blocks(
    target: TimingTarget, plan: TimedPlan, labels: int = 4, squares: int = 5
) -> BetweenBlocks:
    """Run a session without lead-in: what is in no sample is the gap."""
    call_ns = measure_call_ns(target, plan)
    shape = BlockShape(0, block_shape(call_ns).iterations, round(call_ns))
    schedule = SessionSchedule(tuple(range(labels)), williams_square(labels) * squares)
    ends: list[int] = []
    found = run_session(
        target, [plan] * labels, schedule, shape, 0, lambda: ends.append(perf_counter_ns()),
        start_worker=lambda index: _started(target, index),
    )  # fmt: skip
    if found.failures:
        raise RuntimeError(f"the session failed: {dict(found.failures)}")
    # The first round has no begin of its own.
    wall = ends[-1] - ends[0]
    timed = sum(ns for row in found.samples[1:] for block in row for ns in block)
    blocks = (len(ends) - 1) * labels
    gap = (wall - timed) / blocks
    whole = gap + LEAD_IN_NS + BLOCK_NS
    return BetweenBlocks(gap, clocks_ns(), (gap + LEAD_IN_NS) / whole, blocks)


def _started(target: TimingTarget, index: int) -> AbstractContextManager[Worker]:
    return Worker(f"0/{index}", target.log, target.engine)


def clocks_ns(times: int = 200) -> float:
    """Median time that reading the clocks before and after a block takes together."""
    clocks = CpuClocks()
    taken = []
    for _ in range(times):
        start = perf_counter_ns()
        clocks.begin(os.getpid())()
        taken.append(perf_counter_ns() - start)
    return median(taken)


def overhead(target: TimingTarget, plan: TimedPlan) -> Overhead:
    """All of it, for one plan."""
    return Overhead(
        target.engine, sample_overhead(), first_sample(target, plan), between_blocks(target, plan)
    )


def overhead_table(found: Sequence[Overhead]) -> str:
    """What the harness costs, as Markdown."""
    titles = (
        "engine", ">empty call", ">share of a block of 64", ">first sample after a stop",
        ">the same after the lead-in", ">gap between blocks", ">reading the clocks",
        ">gap and lead-in, of a session's rounds",
    )  # fmt: skip
    return table(
        titles,
        [
            [
                o.engine,
                f"{o.sample.empty_ns:.0f} ns",
                f"{100 * o.sample.block_share:.3f}%",
                f"{o.first.without_lead_in:.2f}×",
                f"{o.first.with_lead_in:.2f}×",
                f"{o.between.gap_ns / 1e6:.1f} ms",
                f"{o.between.clocks_ns / 1e6:.2f} ms",
                f"{100 * o.between.unseen_share:.0f}%",
            ]
            for o in found
        ],
    )
