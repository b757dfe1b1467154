"""Checks that void a comparison, or warn about it.

Each gate is a pure function. A gate that cannot see what it looks at says ``not_observable``; it
never passes unseen. The A/A' and the warm-up gate work at ``TimingRules.gate_alpha``, so that each
troubles at most 1% of sound comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.estimate import Interval, round_location, t_interval
from bitworth.verdict.rounding import number_text
from bitworth.verdict.rules import TimingRules

GateState = Literal["passed", "failed", "not_observable", "warning"]


@dataclass(frozen=True)
class Gate:
    """The outcome of one check: ``failed`` voids the comparison, the other states do not."""

    name: str
    state: GateState
    detail: str


def percent(log_ratio: float) -> str:
    """Write a log ratio as a signed change in percent."""
    # Clipped, as expm1 overflows on what only a broken clock gives.
    return f"{math.expm1(min(log_ratio, 700.0)) * 100:+.3g}%"


def data_gate(estimates: Sequence[float]) -> Gate:
    """Fail when there is no session or one has no estimate (NaN: under half of its rounds).

    Shape: (sessions,), log ratios.
    """
    missing = [str(i) for i, value in enumerate(estimates) if not math.isfinite(value)]
    if not estimates:
        return Gate("data", "failed", "no session was timed")
    if missing:
        return Gate(
            "data",
            "failed",
            f"session {', '.join(missing)} of {len(estimates)} (counted from 0) has times for "
            "under half of its rounds",
        )
    return Gate("data", "passed", f"{len(estimates)} sessions with times")


def clock_gate(sessions: Sequence[SessionBlocks], labels: Sequence[int]) -> Gate:
    """Fail when a block of these labels took no time, a negative or an infinite one.

    A clock that went backwards once is no measure of the other blocks either.
    """
    bad = 0
    for blocks in sessions:
        value = blocks.by_label(blocks.value_ns)[:, list(labels)]
        bad += int(np.sum((value <= 0) | np.isinf(value)))
    if bad:
        return Gate("clock", "failed", f"{bad} blocks have a time that is not positive and finite")
    return Gate("clock", "passed", "every block has a positive time")


def sessions_gate(n: int, rules: TimingRules) -> Gate:
    """Fail under ``rules.min_sessions`` sessions."""
    state: GateState = "passed" if n >= rules.min_sessions else "failed"
    return Gate("sessions", state, f"{n} sessions, at least {rules.min_sessions} needed")


def dropped_gate(
    sessions: Sequence[SessionBlocks], variant: int, baseline: int, rules: TimingRules
) -> Gate:
    """Fail when over ``rules.drop_limit`` of the rounds lack a block of either label."""
    total = sum(blocks.rounds for blocks in sessions)
    dropped = 0
    for blocks in sessions:
        value = blocks.by_label(blocks.value_ns)[:, [variant, baseline]]
        dropped += int(np.sum(~np.all(np.isfinite(value) & (value > 0), axis=1)))
    if total == 0:
        return Gate("dropped", "not_observable", "no rounds")
    state: GateState = "failed" if dropped > rules.drop_limit * total else "passed"
    limit = number_text(rules.drop_limit * 100)
    return Gate("dropped", state, f"{dropped} of {total} rounds dropped, at most {limit}% allowed")


def aa_gate(estimates: Sequence[float], rules: TimingRules) -> Gate:
    """Fail when the hidden copy of the baseline differs from it by over eps.

    Shape: (sessions,), log ratios of A' over A. Fails when their interval at
    ``rules.gate_alpha`` lies wholly beyond eps on one side, and when the copy has no data: without
    the check there is no verdict.
    """
    if len(estimates) < 2 or not all(math.isfinite(value) for value in estimates):
        return Gate("aa", "failed", "the hidden copy of the baseline lacks data: no A/A check")
    interval = t_interval(estimates, rules.gate_alpha)
    limit = math.log1p(rules.eps)
    state: GateState = "failed" if interval.low > limit or interval.high < -limit else "passed"
    return Gate(
        "aa",
        state,
        f"identical plans differ by {percent(interval.estimate)} ({percent(interval.low)} to "
        f"{percent(interval.high)}), ±{number_text(rules.eps * 100)}% allowed",
    )


@dataclass(frozen=True)
class WarmUp:
    """How otherwise a variant warms up within its blocks than the baseline does.

    Attributes:
        change: log of first over second half of a block, variant less baseline, over the sessions;
            None where it cannot be seen.
        widening: log ratio by which this may have biased the medians of blocks; 0 unless the
            change is real: over ``TimingRules.warmup_limit`` in size, its interval at
            ``TimingRules.gate_alpha`` without 0. Then it is the far end of that interval.
        unseen: why it cannot be seen.
    """

    change: Interval | None
    widening: float = 0.0
    unseen: str = ""


def warm_up(
    sessions: Sequence[SessionBlocks], variant: int, baseline: int, rules: TimingRules
) -> WarmUp:
    """Measure the difference in warm-up, per session by Hodges-Lehmann over its rounds.

    Not observable with one sample a block, and for a quantile, which is taken over all samples of
    a session, the early ones of each block among them.
    """
    if any(blocks.quantile is not None for blocks in sessions):
        return WarmUp(None, unseen="a quantile is taken over all samples, the early ones too")
    changes = [_warmup(blocks, variant, baseline) for blocks in sessions]
    usable = [change for change in changes if math.isfinite(change)]
    if len(usable) < 2:
        return WarmUp(None, unseen="too few blocks with two halves")
    interval = t_interval(usable, rules.gate_alpha)
    excludes_zero = interval.low > 0 or interval.high < 0
    over = abs(interval.estimate) > math.log1p(rules.warmup_limit)
    far = max(abs(interval.low), abs(interval.high))
    return WarmUp(interval, far if over and excludes_zero else 0.0)


def warmup_gate(found: WarmUp, kept: bool) -> Gate:
    """Warn of a difference in warm-up, or fail where it could turn the verdict.

    ``kept`` says whether the interval, widened by ``found.widening`` on both sides, is classified
    as without it. A wide interval of a large effect is worth more than no answer.
    """
    if found.change is None:
        return Gate("warmup", "not_observable", found.unseen)
    interval = found.change
    text = (
        f"first over second half of a block differs from the baseline's by "
        f"{percent(interval.estimate)} ({percent(interval.low)} to {percent(interval.high)})"
    )
    if not found.widening:
        return Gate("warmup", "passed", text)
    width = f"widened by ±{percent(found.widening).lstrip('+')}"
    if kept:
        return Gate("warmup", "warning", f"{text}: the interval is {width}, its verdict the same")
    return Gate("warmup", "failed", f"{text}: the interval {width} would have another verdict")


def _warmup(blocks: SessionBlocks, variant: int, baseline: int) -> float:
    first, second = blocks.first_half_ns, blocks.second_half_ns
    ratio: NDArray[np.float64] = np.full(first.shape, np.nan)
    usable = np.isfinite(first) & np.isfinite(second) & (first > 0) & (second > 0)
    ratio[usable] = np.log(first[usable]) - np.log(second[usable])
    by_label = blocks.by_label(ratio)
    return round_location(by_label[:, variant] - by_label[:, baseline])


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation; NaN for under 4 values or values that are all equal.

    Shape: (n,), finite.
    """
    centred = np.asarray(values, dtype=np.float64)
    if centred.size < 4:
        return math.nan
    centred = centred - np.mean(centred)
    total = float(np.sum(centred**2))
    return float(np.sum(centred[1:] * centred[:-1])) / total if total > 0 else math.nan


def autocorrelation_gate(estimates: Sequence[float], rules: TimingRules) -> Gate:
    """Warn when session estimates follow one another: the interval is then too narrow.

    Shape: (sessions,), log ratios.
    """
    usable = [value for value in estimates if math.isfinite(value)]
    value = lag1_autocorrelation(usable)
    if math.isnan(value):
        return Gate("autocorrelation", "not_observable", "too few sessions, or no spread")
    state: GateState = "warning" if value > rules.autocorrelation_limit else "passed"
    return Gate("autocorrelation", state, f"lag-1 {value:.2f} over sessions")
