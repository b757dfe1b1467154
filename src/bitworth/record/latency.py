"""Absolute times of a cell's variants: median and tail of a call, or throughput.

They are those of one run and comparable with no other: a machine is faster at one hour than at
another, which a ratio of interleaved blocks does not see and a time does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.record.losses import QUALITY_LEVEL
from bitworth.record.schema import CellFacts, Latency, Throughput
from bitworth.verdict import (
    CellVerdict,
    QuantileInterval,
    label_samples,
    quantile_interval,
    sig6,
    t_interval,
)

#: What is shown of the tail where the cell does not say.
TAIL_QUANTILE = 0.99
#: Index of the baseline's copy among a job's labels.
_COPY = 1
_Samples = NDArray[np.float64]


def latencies(cell: CellFacts, verdicts: Sequence[CellVerdict]) -> tuple[Latency, ...]:
    """Absolute times of every timed variant, from all sessions that timed it.

    A void comparison has no time either, and a job whose own checks failed has none at all.

    Args:
        cell: its facts.
        verdicts: of its jobs, in their order.
    """
    found: dict[str, list[tuple[int, _Samples]]] = {}
    for job, verdict in zip(cell.jobs, verdicts, strict=True):
        if any(gate.state == "failed" for gate in verdict.gates):
            continue
        void = {c.variant for c in verdict.comparisons if c.verdict == "void"}
        for index, label in enumerate(job.labels):
            if index != _COPY and label not in void:
                found.setdefault(label, []).extend(
                    (job.inner, label_samples(s.order, s.samples_ns, index)) for s in job.sessions
                )
    rows = (_latency(cell, label, sessions) for label, sessions in found.items())
    return tuple(row for row in rows if row is not None)


def _latency(
    cell: CellFacts, label: str, sessions: Sequence[tuple[int, _Samples]]
) -> Latency | None:
    if not sessions or any(samples.size == 0 for _, samples in sessions):
        return None
    items = cell.batch or 1
    if cell.mode == "throughput":
        return Latency(variant=label, p50=None, tail=None, throughput=rate(items, sessions))
    times = [samples / inner for inner, samples in sessions]
    singly = all(inner == 1 for inner, _ in sessions)
    return Latency(
        variant=label,
        p50=quantile_interval(times, 0.5, 1 - QUALITY_LEVEL),
        # The mean of several calls hides the slow one among them.
        tail=_tail(times, cell.quantile or TAIL_QUANTILE) if singly else None,
        throughput=None,
    )


def _tail(sessions: Sequence[_Samples], quantile: float) -> QuantileInterval | None:
    """None where a session is too short to hold one call beyond the quantile."""
    fewest = min(samples.size for samples in sessions)
    if round(fewest * (1 - quantile), 6) < 1:
        return None
    return quantile_interval(sessions, quantile, 1 - QUALITY_LEVEL)


def rate(items: int, sessions: Sequence[tuple[int, NDArray[np.float64]]]) -> Throughput:
    """Items of all samples over the time of all samples, by session.

    Args:
        items: of one inference.
        sessions: inferences of one sample, and the samples in ns, shape (n,), none of them empty.
    """
    rates = [items * inner * samples.size / (samples.sum() / 1e9) for inner, samples in sessions]
    interval = t_interval([math.log(rate) for rate in rates], 1 - QUALITY_LEVEL)
    known = interval.n > 1
    return Throughput(
        items_per_s=sig6(math.exp(interval.estimate)),
        items_per_s_low=sig6(math.exp(interval.low)) if known else None,
        items_per_s_high=sig6(math.exp(interval.high)) if known else None,
        n=interval.n,
    )
