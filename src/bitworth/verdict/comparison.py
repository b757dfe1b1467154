"""One label against another: its interval, its checks and its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.estimate import (
    Interval,
    detectable,
    session_estimates,
    sessions_to_settle,
    t_interval,
)
from bitworth.verdict.gates import (
    Gate,
    autocorrelation_gate,
    clock_gate,
    data_gate,
    dropped_gate,
    percent,
    sessions_gate,
    warm_up,
    warmup_gate,
)
from bitworth.verdict.looks import level
from bitworth.verdict.rounding import number_text, sig6
from bitworth.verdict.rules import TimingRules

Verdict = Literal["faster", "slower", "equivalent", "not distinguishable", "void"]

# exp overflows beyond 709; no ratio of two times is as large, so such a number is unknown.
_MAX_LOG = 700.0


@dataclass(frozen=True)
class Comparison:
    """The verdict on one variant; derived numbers have 6 significant digits.

    Attributes:
        variant: label of the variant.
        baseline: label of what it is compared with.
        verdict: see ``classify``.
        reason: one sentence.
        time_ratio: time of the variant over the baseline's. This and the four next are None where
            data are missing or one session leaves them unknown.
        time_ratio_low: lower end of its interval, widened where the two labels warm up otherwise.
        time_ratio_high: upper end.
        half_width_ratio: half-width of that interval as a fraction, exp(half-width) - 1.
        detectable_ratio: smallest ratio over 1 (and, inverted, largest under 1) that these
            sessions would have called with ``TimingRules.power``.
        sessions: sessions with an estimate.
        more_sessions: sessions that a verdict still needs at this estimate and spread; 0 where
            there is one; None where sessions alone will not bring it within the rules' maximum.
        gates: every check, passed ones too.
        alpha: error rate of the interval before it was widened; see ``looks.level``.
        widened_ratio: by how much it was widened on each side, a fraction as ``half_width_ratio``.
    """

    variant: str
    baseline: str
    verdict: Verdict
    reason: str
    time_ratio: float | None
    time_ratio_low: float | None
    time_ratio_high: float | None
    half_width_ratio: float | None
    detectable_ratio: float | None
    sessions: int
    more_sessions: int | None
    gates: tuple[Gate, ...]
    alpha: float
    widened_ratio: float


@dataclass(frozen=True)
class RatioInterval:
    """A time ratio with its interval over n sessions, 6 significant digits; ends None for n = 1."""

    time_ratio: float | None
    time_ratio_low: float | None
    time_ratio_high: float | None
    half_width_ratio: float | None
    n: int


def classify(interval: Interval, rules: TimingRules) -> Verdict:
    """Name an interval of the log time ratio, gates aside.

    ``equivalent`` when it lies inside delta, else ``faster`` or ``slower`` when it lies beyond eps,
    else ``not distinguishable``; ``void`` when an end is NaN. Both limits are symmetric in the log,
    so that exchanging the two labels exchanges faster and slower and nothing else.
    """
    if math.isnan(interval.low) or math.isnan(interval.high):
        return "void"
    eps, delta = math.log1p(rules.eps), math.log1p(rules.delta)
    if -delta < interval.low and interval.high < delta:
        return "equivalent"
    if interval.high < -eps:
        return "faster"
    if interval.low > eps:
        return "slower"
    return "not distinguishable"


def compare(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    variant: int,
    against: int = 0,
    *,
    rules: TimingRules,
    comparisons: int = 1,
    gates: Sequence[Gate] = (),
) -> Comparison:
    """Judge one label against another, such as a variant against the best passing one.

    Args:
        sessions: sessions of one cell, k labels each.
        labels: names of the k labels, all different.
        variant: index of the label that is judged.
        against: index of the label that it is compared with.
        rules: the constants.
        comparisons: how many comparisons share ``rules.alpha``.
        gates: checks from outside, such as the A/A' gate of the cell, quality, or a fallback of
            the engine; a failed one voids the comparison.

    Raises ValueError for labels that do not fit the sessions or are the same.
    """
    check_labels(sessions, labels, variant, against)
    if comparisons < 1:
        raise ValueError(f"alpha is shared by at least one comparison, got {comparisons}")
    pair = [(variant, against)]
    estimates = [session_estimates(blocks, pair)[0] for blocks in sessions]
    share = rules.alpha / comparisons
    return judge_pair(sessions, labels, variant, against, estimates, rules, share, gates)


def check_labels(
    sessions: Sequence[SessionBlocks], labels: Sequence[str], variant: int, against: int
) -> None:
    """Raise ValueError for labels that do not fit the sessions, are not two, or share a name.

    Sessions that judge different quantiles fit no labels.
    """
    if len(set(labels)) != len(labels):
        raise ValueError(f"labels must differ, got {', '.join(labels)}")
    for i, blocks in enumerate(sessions):
        if blocks.labels != len(labels):
            raise ValueError(f"session {i} has {blocks.labels} labels, the cell {len(labels)}")
        if blocks.quantile != sessions[0].quantile:
            raise ValueError(f"session {i} judges another quantile than session 0")
    if variant == against or not all(0 <= label < len(labels) for label in (variant, against)):
        raise ValueError(f"{variant} and {against} are not two of the {len(labels)} labels")


def judge_pair(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    variant: int,
    against: int,
    estimates: Sequence[float],
    rules: TimingRules,
    share: float,
    outside: Sequence[Gate],
) -> Comparison:
    """Judge one label against another by the estimates of the sessions.

    Args:
        sessions: as for ``compare``.
        labels: as for ``compare``.
        variant: as for ``compare``.
        against: as for ``compare``.
        estimates: log ratio of each session, as ``session_estimates`` gives it.
        rules: the constants.
        share: of alpha, that this comparison has.
        outside: checks from outside.
    """
    alpha = level(share, rules)
    n = sum(math.isfinite(value) for value in estimates)
    data, clock = data_gate(estimates), clock_gate(sessions, (variant, against))
    # Numbers from a cell with holes would look like a measurement, so there are none.
    known = "failed" not in (data.state, clock.state)
    interval = t_interval(estimates, alpha) if known else None
    warm = warm_up(sessions, variant, against, rules)
    wide = None if interval is None else widened(interval, warm.widening)
    verdict: Verdict = "void" if wide is None else classify(wide, rules)
    kept = interval is None or classify(interval, rules) == verdict
    gates = (
        data,
        clock,
        sessions_gate(n, rules),
        dropped_gate(sessions, variant, against, rules),
        warmup_gate(warm, kept),
        autocorrelation_gate(estimates, rules),
        *outside,
    )
    failed = [gate for gate in gates if gate.state == "failed"]
    more: int | None = None
    effect = None
    if interval is not None:
        effect = detectable(interval.half_width, n, alpha, rules) + warm.widening
    if failed or interval is None or wide is None or effect is None:
        verdict = "void"
        reason = "; ".join(f"{gate.name}: {gate.detail}" for gate in failed) or "no data"
        if {gate.name for gate in failed} == {"sessions"}:
            more = rules.min_sessions - n
    else:
        open_ = verdict == "not distinguishable"
        more = sessions_to_settle(interval, alpha, rules, warm.widening) if open_ else 0
        reason = _reason(verdict, wide, labels[against], more, effect, rules)
    return Comparison(
        variant=labels[variant],
        baseline=labels[against],
        verdict=verdict,
        reason=reason,
        time_ratio=_ratio(wide.estimate) if wide else None,
        time_ratio_low=_ratio(wide.low) if wide else None,
        time_ratio_high=_ratio(wide.high) if wide else None,
        half_width_ratio=_width(wide.half_width) if wide else None,
        detectable_ratio=_ratio(effect) if effect is not None else None,
        sessions=n,
        more_sessions=more,
        gates=gates,
        alpha=sig6(alpha),
        widened_ratio=_width(warm.widening) or 0.0,
    )


def widened(interval: Interval, by: float) -> Interval:
    """An interval that reaches farther by ``by`` on both sides; unit: log ratio."""
    return replace(
        interval,
        low=interval.low - by,
        high=interval.high + by,
        half_width=interval.half_width + by,
    )


def ratio_interval(estimates: Sequence[float], alpha: float) -> RatioInterval | None:
    """A t interval of log ratios as time ratios; None without data or with a session missing."""
    if not estimates or not all(math.isfinite(value) for value in estimates):
        return None
    interval = t_interval(estimates, alpha)
    return RatioInterval(
        _ratio(interval.estimate),
        _ratio(interval.low),
        _ratio(interval.high),
        _width(interval.half_width),
        interval.n,
    )


def _width(half_width: float) -> float | None:
    return sig6(math.expm1(half_width)) if half_width < _MAX_LOG else None


def _ratio(log_ratio: float) -> float | None:
    return sig6(math.exp(log_ratio)) if abs(log_ratio) < _MAX_LOG else None


def _reason(
    verdict: Verdict,
    interval: Interval,
    baseline: str,
    more: int | None,
    effect: float,
    rules: TimingRules,
) -> str:
    measured = (
        f"time {percent(interval.estimate)} against {baseline} "
        f"({percent(interval.low)} to {percent(interval.high)})"
    )
    eps, delta = number_text(rules.eps * 100), number_text(rules.delta * 100)
    if verdict == "equivalent":
        return f"{measured}: wholly within ±{delta}%"
    if verdict in ("faster", "slower"):
        return f"{measured}: wholly beyond ±{eps}%"
    outlook = (
        f"about {more} more sessions would settle it at this estimate and spread"
        if more is not None
        else f"{rules.max_sessions} sessions would not settle it at this estimate and spread"
    )
    return (
        f"{measured}: neither beyond ±{eps}% nor within ±{delta}%; a change of "
        f"{percent(effect).lstrip('+')} would be found with {number_text(rules.power * 100)}% "
        f"power; {outlook}"
    )
