"""The verdicts of a cell's timing jobs, from their samples and from what was seen meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bitworth.record.names import AS_GIVEN
from bitworth.record.schema import CellFacts
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.verdict import (
    CellVerdict,
    Comparison,
    CycleRatio,
    Gate,
    SessionBlocks,
    TimingRules,
    balance_gate,
    blocks_from_samples,
    clock_estimates,
    compare,
    cycle_ratio,
    frequency_gate,
    judge_cell,
    level,
    per_item,
    throttled,
    throttling_gate,
)

#: Share of CPU time that others may take without a word.
INTERFERENCE_LIMIT = 0.05
#: Clocks of which the labels are compared, the device's own first, and their gates' names.
_CLOCKS = {"sm_mhz": "sm clock", "cpu_mhz": "cpu frequency"}


def job_blocks(job: TimingJob, quantile: float | None = None) -> list[SessionBlocks]:
    """The blocks of a job's sessions, those on a throttled device left out.

    Where calls take several samples of the data, times are those of one.
    """
    return [
        per_item(blocks_from_samples(session.order, _kept(session, bad), quantile), job.items)
        for session, bad in zip(job.sessions, _throttled(job), strict=True)
    ]


def judge_job(
    job: TimingJob,
    rules: TimingRules,
    total: int,
    gates: Mapping[str, Sequence[Gate]],
    quantile: float | None = None,
) -> CellVerdict:
    """Judge one job; alpha is shared by the comparisons of all jobs of the cell."""
    here = max(1, len(job.labels) - 2)
    shared = replace(rules, alpha=rules.alpha * here / max(total, here))
    return judge_cell(
        job_blocks(job, quantile),
        job.labels,
        rules=shared,
        extra_gates={
            label: [
                *gates.get(label, ()),
                *_failures(job, index),
                *_throttling(job, index, rules),
                # What concerns the whole job stands with its baseline.
                *((_interference(job), *_machine(job)) if index == 0 else ()),
                *(_against(job, index, 0, rules) if index > 1 else ()),
            ]
            for index, label in enumerate(job.labels)
        },
    )


def against_rival(
    cell: CellFacts,
    rules: TimingRules,
    rival: str | None,
    variant: str,
    total: int,
    verdicts: Sequence[CellVerdict],
    gates: Mapping[str, Sequence[Gate]],
) -> Comparison | None:
    """The variant against the best passing free win, from the job that timed both."""
    if rival is None or variant in (rival, AS_GIVEN):
        return None
    for job, verdict in zip(cell.jobs, verdicts, strict=True):
        if rival in job.labels and variant in job.labels:
            index, other = job.labels.index(variant), job.labels.index(rival)
            return compare(
                job_blocks(job, cell.quantile),
                job.labels,
                index,
                other,
                rules=rules,
                comparisons=max(1, total),
                gates=(
                    *verdict.gates,
                    *gates.get(variant, ()),
                    *_failures(job, index),
                    *_failures(job, other),
                    *_throttling(job, index, rules),
                    *_throttling(job, other, rules),
                    *_against(job, index, other, rules),
                ),
            )
    return None


def cycle_ratios(cell: CellFacts, rules: TimingRules) -> tuple[CycleRatio, ...]:
    """Comparisons with the baseline in clock cycles, of the variants that ran at another clock.

    A variant that stands in several jobs has that of the first. None for a quantile: a block has
    one clock, and a quantile is not of one block.
    """
    total = sum(len(job.labels) - 2 for job in cell.jobs)
    found: dict[str, CycleRatio] = {}
    if cell.quantile is not None:
        return ()
    for job in cell.jobs:
        for index, label in enumerate(job.labels[2:], start=2):
            ratio = _cycles(job, index, level(rules.alpha / max(1, total), rules), rules)
            if ratio is not None:
                found.setdefault(label, ratio)
    return tuple(found.values())


def _cycles(job: TimingJob, index: int, alpha: float, rules: TimingRules) -> CycleRatio | None:
    for gate, name in zip(_frequencies(job, index, 0, rules), _shown(job, _CLOCKS), strict=True):
        if gate.state == "warning":
            mhz = [_column(s, name) for s in job.sessions]
            return cycle_ratio(job_blocks(job), mhz, job.labels, index, 0, name, alpha)
    return None


def _column(session: SessionFacts, name: str) -> NDArray[np.float64]:
    """A quantity of a session's blocks, shape (rounds, k) by position; NaN where not observed."""
    values = np.full((len(session.order), len(session.order[0])), np.nan)
    for i, row in enumerate(session.clocks.get(name, ())):
        values[i] = [np.nan if value is None else value for value in row]
    return values


def _orders(job: TimingJob) -> list[NDArray[np.int64]]:
    return [np.asarray(session.order, dtype=np.int64) for session in job.sessions]


def _shown(job: TimingJob, names: Iterable[str]) -> list[str]:
    return [name for name in names if any(name in s.clocks for s in job.sessions)]


def _why_not(job: TimingJob, name: str) -> str:
    reasons = [s.not_observable[name] for s in job.sessions if name in s.not_observable]
    return reasons[0] if reasons else "the sessions did not record it"


def _on_gpu(job: TimingJob) -> bool:
    return any("sm_mhz" in {**s.clocks, **s.not_observable} for s in job.sessions)


def _throttled(job: TimingJob) -> list[NDArray[np.bool_]]:
    clocks, bits = (
        [_column(s, name) for s in job.sessions] for name in ("sm_mhz", "throttle_bits")
    )
    return throttled(_orders(job), clocks, bits)


def _kept(session: SessionFacts, bad: NDArray[np.bool_]) -> list[list[tuple[int, ...]]]:
    # A block in which the clock failed stays: it voids whatever else was wrong with it.
    return [
        [() if bad[i, j] and block and min(block) > 0 else block for j, block in enumerate(row)]
        for i, row in enumerate(session.samples_ns)
    ]


def _throttling(job: TimingJob, index: int, rules: TimingRules) -> list[Gate]:
    if not _shown(job, ("sm_mhz", "throttle_bits")):
        return []
    return [throttling_gate(_orders(job), _throttled(job), index, rules)]


def _machine(job: TimingJob) -> list[Gate]:
    """What cannot be observed here, and who else is on the GPU."""
    gpu = _on_gpu(job)
    watched = [name for name in _CLOCKS if gpu or name != "sm_mhz"]
    gates = [
        Gate(_CLOCKS[name], "not_observable", _why_not(job, name))
        for name in watched
        if not _shown(job, [name])
    ]
    if gpu and not _shown(job, ["throttle_bits"]):
        gates.append(Gate("throttling", "not_observable", _why_not(job, "throttle_bits")))
    if gpu:
        gates.append(_gpu_processes(job))
    return gates


def _gpu_processes(job: TimingJob) -> Gate:
    name = "gpu processes"
    if not _shown(job, ["other_processes"]):
        return Gate(name, "not_observable", _why_not(job, "other_processes"))
    counts = np.concatenate([_column(s, "other_processes").ravel() for s in job.sessions])
    seen = counts[np.isfinite(counts)]
    shared = int(np.sum(seen > 0))
    text = f"another process was on the GPU in {shared} of {seen.size} blocks"
    return Gate(name, "warning" if shared else "passed", text)


def _against(job: TimingJob, index: int, other: int, rules: TimingRules) -> list[Gate]:
    """Whether the machine treated two labels alike."""
    gates = _frequencies(job, index, other, rules)
    if _shown(job, ["others_ratio"]):
        # Where steal time is not shown, other processes alone are compared.
        elsewhere = [
            _column(s, "others_ratio") + np.nan_to_num(_column(s, "steal_ratio"))
            for s in job.sessions
        ]
        name = job.labels[other]
        gates.append(balance_gate(_orders(job), elsewhere, index, other, name, rules))
    return gates


def _frequencies(job: TimingJob, index: int, other: int, rules: TimingRules) -> list[Gate]:
    gates = []
    for name in _shown(job, _CLOCKS):
        mhz = [_column(session, name) for session in job.sessions]
        estimates = clock_estimates(_orders(job), mhz, index, other)
        gates.append(frequency_gate(_CLOCKS[name], estimates, job.labels[other], rules))
    return gates


def _interference(job: TimingJob) -> Gate:
    """Whether something else used the CPUs; interleaving spreads it evenly, so it only warns."""
    name = "interference"
    others = [s.others_ratio for s in job.sessions if s.others_ratio is not None]
    steal = [s.steal_ratio for s in job.sessions if s.steal_ratio is not None]
    if not others or not steal:
        return Gate(name, "not_observable", "the system does not tell who used the CPUs")
    text = (
        f"median share of CPU time of other processes {median(others):.1%}, "
        f"of other machines (steal) {median(steal):.1%}"
    )
    disturbed = max(median(others), median(steal)) > INTERFERENCE_LIMIT
    return Gate(name, "warning" if disturbed else "passed", text)


def _failures(job: TimingJob, index: int) -> list[Gate]:
    return [
        Gate("run", "failed", f"session {s.session}: {s.failures[index]}")
        for s in job.sessions
        if index in s.failures
    ][:1]
