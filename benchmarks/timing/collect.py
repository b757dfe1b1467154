"""Gather sessions for the banks: identical plans, injected work, long blocks, one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, perf_counter_ns

from benchmarks.timing.bank import Bank, as_session
from benchmarks.timing.shared_process import SharedProcess
from benchmarks.timing.units import units_as_one
from bitworth.errors import UserError
from bitworth.measurement.tail import tail_shape
from bitworth.measurement.timing import (
    BlockShape,
    StartWorker,
    TimedPlan,
    TimingTarget,
    block_shape,
    measure_call_ns,
    run_session,
)
from bitworth.measurement.workers import TimingWorker
from bitworth.verdict import session_schedule

Say = Callable[[str], None]
#: Rounds of a session at least, as in a study.
ROUNDS = 10


@dataclass(frozen=True)
class Design:
    """How the sessions of one bank are made.

    Attributes:
        bank: name of its file.
        model: what is timed.
        engine: on what.
        labels: plans of a session.
        units: calls timed as one, by label; empty for one each.
        sessions: how many are wanted.
        long_block_ns: samples of one block in time where the block is to be longer than usual.
        shared: one process for all labels in place of one each.
        quantile: what is compared in the tail; None for medians.
    """

    bank: str
    model: str
    engine: str
    labels: int
    sessions: int
    units: tuple[int, ...] = ()
    long_block_ns: int | None = None
    shared: bool = False
    quantile: float | None = None


def shape_of(design: Design, call_ns: float, streams: int) -> tuple[BlockShape, int]:
    """Calls of one block of the design, and rounds of a session at least."""
    if design.quantile is not None:
        return tail_shape(call_ns, design.quantile, design.labels, ROUNDS)
    if design.long_block_ns is not None:
        calls = max(2, round(design.long_block_ns / call_ns))
        return BlockShape(1, calls, round(call_ns)), ROUNDS
    return block_shape(call_ns * max(design.units, default=1), singly=streams > 1), ROUNDS


def gather(
    design: Design,
    target: TimingTarget,
    plan: TimedPlan,
    folder: Path,
    until: float,
    seed: int,
    say: Say,
) -> int:
    """Run sessions until the bank is full or the time is over; returns how many it holds.

    Raises UserError when a plan fails: a bank holds sound sessions alone.

    Args:
        design: what to run.
        target: engine, options and inputs.
        plan: the one plan that every label runs.
        folder: of the bank's file.
        until: ``time.monotonic`` beyond which no session is begun.
        seed: of the schedules.
        say: takes one line a session.
    """
    bank = Bank(folder / f"{design.bank}.jsonl.gz")
    if len(bank.sessions) >= design.sessions or monotonic() >= until:
        return len(bank.sessions)
    shape, rounds = shape_of(design, measure_call_ns(target, plan), target.options.streams)
    plans = [replace(plan, label=f"{plan.label} {i}") for i in range(design.labels)]
    while len(bank.sessions) < design.sessions and monotonic() < until:
        index = len(bank.sessions)
        schedule = session_schedule(design.labels, seed=seed, session=index, minimum_rounds=rounds)
        begin = perf_counter_ns()
        first: list[int] = []

        def on_round(first: list[int] = first) -> None:
            first.append(perf_counter_ns())

        found = run_session(
            target, plans, schedule, shape, index, on_round,
            start_worker=_starter(design, target, index),
        )  # fmt: skip
        end = perf_counter_ns()
        if found.failures:  # a bank holds sound sessions alone
            raise UserError(f"{design.bank}: session {index} failed: {dict(found.failures)}")
        # Rounds are alike: the first one took about as long as the mean of the others.
        each = (first[-1] - first[0]) / max(1, len(first) - 1)
        start_ns = max(0, round(first[0] - each - begin))
        bank.add(as_session(found, shape, end - begin, start_ns))
        say(
            f"{design.bank}: session {index + 1} of {design.sessions}, "
            f"{(end - begin) / 1e9:.1f} s, others {found.interference.others_ratio}, "
            f"steal {found.interference.steal_ratio}"
        )
    return len(bank.sessions)


def _starter(design: Design, target: TimingTarget, session: int) -> StartWorker | None:
    if design.shared:
        return SharedProcess(target.log, target.engine, f"{session}")
    if design.units:

        def start(index: int) -> AbstractContextManager[TimingWorker]:
            return units_as_one(f"{session}/{index}", target, design.units[index])

        return start
    return None
