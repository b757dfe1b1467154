"""Sessions on the mock engine's scripted machine, through the session loop that studies use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import EngineOptions
from bitworth.engines.mock_clock import ClockScript, ScriptedClock, ScriptedMachine
from bitworth.measurement.timing import (
    BlockShape,
    SessionSamples,
    TimedPlan,
    TimingTarget,
    run_session,
)
from bitworth.measurement.workers import FailureKind, WorkerFailed
from bitworth.verdict import SessionBlocks, SessionSchedule, blocks_from_samples, session_schedule

BASELINE, HIDDEN = "baseline", "baseline again"
#: A block of few samples: the noise of a block as a whole is what a verdict has to cope with.
SHAPE = BlockShape(lead_in=1, iterations=8, call_ns=1_000_000)
_BLOCK = 0.03
_SAMPLE = 0.01
#: The ways in which a machine disturbs a measurement, each upon block noise of 3%. The last one is
#: so loud that it is the interval, and not ``TimingRules.eps``, that keeps false verdicts away.
NOISE: Mapping[str, ClockScript] = {
    "normal": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK),
    "one-sided spikes": ClockScript(
        sigma=_SAMPLE, block_sigma=_BLOCK / 3, block_spike_share=0.15, block_spike_mean=0.3,
        spike_share=0.05, spike_ratio=2.0,
    ),
    "AR(0.5)": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK, autocorrelation=0.5),
    "10% drift": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK, drift=0.10),
    "2% position effect": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK, position_effect=0.02),
    "0.6% carry-over": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK, carry_over=0.006),
    "0.5% session bias": ClockScript(sigma=_SAMPLE, block_sigma=_BLOCK, session_bias=0.005),
    "normal, 10%": ClockScript(sigma=_SAMPLE, block_sigma=0.10),
}  # fmt: skip
_FAILURES: Mapping[str, FailureKind] = {
    "raise_run": "raised", "crash_run": "crashed", "hang_run": "timed out",
}  # fmt: skip
_TARGET = TimingTarget("mock", EngineOptions(threads=1), {}, Path(os.devnull))


class SlotWorker:
    """One place on a scripted machine, in this process, as the session loop sees a worker.

    The lead-in takes its turn in the block and is not drawn: it would be thrown away.
    """

    def __init__(self, script: ClockScript, label: str, clock: ScriptedClock) -> None:
        self._clock = clock
        self._fault = script.faults.get(label)
        self._left = script.fault_after

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: Any,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Answer what a session asks of a worker; raises ``WorkerFailed`` as scripted."""
        match op:
            case "ping" | "bind":
                return {}, {}
            case "load":
                precision = request["precision"]
                return {"load_ns": 1, "resident_before_bytes": 0, "precision": precision}, {}
            case "check":
                if self._fault == "alias":
                    raise WorkerFailed("invalid", "scripted runs overwrite their inputs")
                return {}, {}
            case "block":
                self._maybe_fail()
                self._clock.begin_block()
                samples = self._clock.draw(request["iterations"])
                if self._fault == "backwards":
                    samples = [-sample for sample in samples]
                return {"samples": samples}, {}
            case unknown:
                raise WorkerFailed("refused", f"unknown command {unknown}")

    def stop(self) -> None:
        """Nothing: what does not run draws no times."""

    def resume(self) -> None:
        """Nothing."""

    def peak_resident_bytes(self) -> int | None:
        """Not known."""
        return None

    def _maybe_fail(self) -> None:
        kind = _FAILURES.get(self._fault or "")
        if kind is not None:
            if self._left <= 0:
                raise WorkerFailed(kind, "scripted failure")
            self._left -= 1


def variant_names(count: int) -> tuple[str, ...]:
    """Labels of a cell: the baseline, its copy, and ``count`` variants."""
    return (BASELINE, HIDDEN, *(f"v{i}" for i in range(1, count + 1)))


def play(
    script: ClockScript, labels: Sequence[str], schedule: SessionSchedule, session: int = 0
) -> SessionSamples:
    """One session of the scripted machine under a schedule.

    Args:
        script: times and noise.
        labels: label of each plan.
        schedule: start order and rounds, as indices into ``labels``.
        session: its number; sessions of one script differ in nothing else.
    """
    warm_up = len(schedule.start_order)
    blocks = warm_up + sum(map(len, schedule.rounds))
    machine = ScriptedMachine(script, str(session), len(labels), blocks)

    @contextmanager
    def start(index: int) -> Iterator[SlotWorker]:
        label = BASELINE if labels[index] == HIDDEN else labels[index]
        clock = ScriptedClock(script, label, f"{session}/{index}", machine, index)
        yield SlotWorker(script, label, clock)

    plans = [TimedPlan(label, Path(label), "fp32") for label in labels]
    return run_session(_TARGET, plans, schedule, SHAPE, session, start_worker=start, clocks=None)


@dataclass(frozen=True)
class Cell:
    """Sessions of one synthetic cell.

    Attributes:
        labels: the baseline, its copy, the variants.
        sessions: what the session loop returned.
        blocks: the same as block medians.
    """

    labels: tuple[str, ...]
    sessions: tuple[SessionSamples, ...]
    blocks: tuple[SessionBlocks, ...]

    def samples(self, label: int) -> list[NDArray[np.float64]]:
        """All samples of one label in ns in the order of time, one array (n,) a session."""
        return [samples_of(session, label) for session in self.sessions]


def play_session(script: ClockScript, labels: Sequence[str], session: int) -> SessionSamples:
    """One session under the schedule that a study would draw, its seed the script's."""
    schedule = session_schedule(len(labels), seed=script.seed, session=session)
    return play(script, labels, schedule, session)


def play_cell(script: ClockScript, ratios: Sequence[float], sessions: int = 6) -> Cell:
    """A cell of variants with these time ratios."""
    labels = variant_names(len(ratios))
    script = replace(script, ratios=dict(zip(labels[2:], ratios, strict=True)))
    played = tuple(play_session(script, labels, session) for session in range(sessions))
    return Cell(labels, played, tuple(as_blocks(session) for session in played))


def play_fixed_order(
    script: ClockScript, ratio: float, blocks: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All samples of the baseline, then all of a variant, each of ``blocks`` blocks in one process.

    What a benchmark that runs one command after the other sees of the same machine.
    """
    script = replace(script, ratios={"v1": ratio})
    rounds = ((0,),) * blocks + ((1,),) * blocks
    found = play(script, (BASELINE, "v1"), SessionSchedule((0, 1), rounds))
    return samples_of(found, 0), samples_of(found, 1)


def samples_of(session: SessionSamples, label: int) -> NDArray[np.float64]:
    """All samples of one plan of a session in ns, in the order of time; shape (n,)."""
    return np.array(
        [
            sample
            for order, row in zip(session.order, session.samples, strict=True)
            for index, block in zip(order, row, strict=True)
            if index == label
            for sample in block
        ],
        dtype=np.float64,
    )


def as_blocks(session: SessionSamples) -> SessionBlocks:
    """``blocks_from_samples``, in one step where blocks are alike: trials are many."""
    lengths = {len(block) for row in session.samples for block in row}
    if len(lengths) != 1 or min(lengths) < 2:
        return blocks_from_samples(session.order, session.samples)
    samples = np.array(session.samples, dtype=np.float64)
    if samples.min() <= 0:
        return blocks_from_samples(session.order, session.samples)
    half = samples.shape[-1] // 2
    return SessionBlocks(
        np.array(session.order, dtype=np.int64),
        _median(samples),
        _median(samples[..., :half]),
        _median(samples[..., -half:]),
    )


def _median(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(samples, axis=-1)
    count = samples.shape[-1]
    middle: NDArray[np.float64] = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle
