"""From sessions to a verdict for each variant of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.estimate import (
    Interval,
    detectable,
    label_logs,
    round_location,
    sessions_to_settle,
    t_interval,
)
from bitworth.verdict.gates import (
    Gate,
    aa_gate,
    autocorrelation_gate,
    clock_gate,
    data_gate,
    dropped_gate,
    percent,
    sessions_gate,
    warmup_gate,
)
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
        time_ratio_low: lower end of its interval.
        time_ratio_high: upper end.
        half_width_ratio: half-width of the interval as a fraction, exp(half-width) - 1.
        detectable_ratio: smallest ratio over 1 (and, inverted, largest under 1) that these
            sessions would have called with ``TimingRules.power``.
        sessions: sessions with an estimate.
        more_sessions: sessions that a verdict still needs at this estimate and spread; 0 where
            there is one; None where sessions alone will not bring it within the rules' maximum.
        gates: every check, passed ones too.
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


@dataclass(frozen=True)
class RatioInterval:
    """A time ratio with its interval over n sessions, 6 significant digits; ends None for n = 1."""

    time_ratio: float | None
    time_ratio_low: float | None
    time_ratio_high: float | None
    half_width_ratio: float | None
    n: int


@dataclass(frozen=True)
class CellVerdict:
    """Verdicts of one cell.

    Attributes:
        comparisons: one for each label other than the baseline and its hidden copy, in order.
        aa: the hidden copy over the baseline, at ``TimingRules.gate_alpha``; None without data.
        gates: the checks of the cell as a whole; a failed one voids every comparison.
    """

    comparisons: tuple[Comparison, ...]
    aa: RatioInterval | None
    gates: tuple[Gate, ...]


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
    _check(sessions, labels, variant, against)
    if comparisons < 1:
        raise ValueError(f"alpha is shared by at least one comparison, got {comparisons}")
    return _compare(
        sessions, labels, variant, against, _estimates(sessions, variant, against),
        rules, rules.alpha / comparisons, gates,
    )  # fmt: skip


def judge_cell(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    *,
    rules: TimingRules,
    extra_gates: Mapping[str, Sequence[Gate]] | None = None,
    hidden: int = 1,
) -> CellVerdict:
    """Judge every variant of a cell against its baseline, label 0.

    Args:
        sessions: sessions of one cell, k labels each.
        labels: names of the k labels, all different; label 0 is the baseline.
        rules: the constants.
        extra_gates: checks from outside by label name; a failed one voids that label's comparison,
            and those of the baseline and of its copy void the cell.
        hidden: index of the baseline's hidden copy.

    Raises ValueError for labels that do not fit the sessions and for gates of unknown labels.
    """
    _check(sessions, labels, hidden, 0)
    outside = dict(extra_gates or {})
    if unknown := sorted(set(outside) - set(labels)):
        raise ValueError(f"gates for {', '.join(unknown)}, which the cell does not have")
    logs = [label_logs(blocks) for blocks in sessions]
    estimates = {
        label: [round_location(log[:, label] - log[:, 0]) for log in logs]
        for label in range(1, len(labels))
    }
    cell_gates = (
        aa_gate(estimates[hidden], rules),
        *outside.get(labels[0], ()),
        *outside.get(labels[hidden], ()),
    )
    variants = _variants(labels, hidden)
    alpha = rules.alpha / max(1, len(variants))
    comparisons = tuple(
        _compare(
            sessions, labels, label, 0, estimates[label],
            rules, alpha, (*cell_gates, *outside.get(labels[label], ())),
        )
        for label in variants
    )  # fmt: skip
    return CellVerdict(comparisons, _aa_ratio(estimates[hidden], rules), cell_gates)


def settled(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    rules: TimingRules,
    *,
    hidden: int = 1,
) -> bool:
    """Say whether timing may stop: enough sessions, every half-width within ``rules.precision``.

    It never looks at an estimate's size or sign. A variant with missing data is void whatever
    follows, so it keeps no session going. With no variant the hidden copy is what is measured.
    Raises ValueError for labels that do not fit the sessions.
    """
    _check(sessions, labels, hidden, 0)
    if len(sessions) < rules.min_sessions:
        return False
    if len(sessions) >= rules.max_sessions:
        return True
    targets = _variants(labels, hidden) or [hidden]
    logs = [label_logs(blocks) for blocks in sessions]
    for label in targets:
        values = [round_location(log[:, label] - log[:, 0]) for log in logs]
        if not all(math.isfinite(value) for value in values):
            continue
        if t_interval(values, rules.alpha / len(targets)).half_width > math.log1p(rules.precision):
            return False
    return True


def _variants(labels: Sequence[str], hidden: int) -> list[int]:
    return [label for label in range(1, len(labels)) if label != hidden]


def _check(
    sessions: Sequence[SessionBlocks], labels: Sequence[str], variant: int, against: int
) -> None:
    if len(set(labels)) != len(labels):
        raise ValueError(f"labels must differ, got {', '.join(labels)}")
    for i, blocks in enumerate(sessions):
        if blocks.labels != len(labels):
            raise ValueError(f"session {i} has {blocks.labels} labels, the cell {len(labels)}")
    if variant == against or not all(0 <= label < len(labels) for label in (variant, against)):
        raise ValueError(f"{variant} and {against} are not two of the {len(labels)} labels")


def _estimates(sessions: Sequence[SessionBlocks], variant: int, against: int) -> list[float]:
    logs = [label_logs(blocks) for blocks in sessions]
    return [round_location(log[:, variant] - log[:, against]) for log in logs]


def _compare(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    variant: int,
    against: int,
    estimates: Sequence[float],
    rules: TimingRules,
    alpha: float,
    outside: Sequence[Gate],
) -> Comparison:
    n = sum(math.isfinite(value) for value in estimates)
    gates = (
        data_gate(estimates),
        clock_gate(sessions, (variant, against)),
        sessions_gate(n, rules),
        dropped_gate(sessions, variant, against, rules),
        warmup_gate(sessions, variant, against, rules),
        autocorrelation_gate(estimates, rules),
        *outside,
    )
    failed = [gate for gate in gates if gate.state == "failed"]
    # Numbers from a cell with holes would look like a measurement, so there are none.
    known = n > 0 and n == len(estimates) and gates[1].state != "failed"
    interval = t_interval(estimates, alpha) if known else None
    verdict: Verdict = "void"
    more: int | None = None
    if failed or interval is None:
        reason = "; ".join(f"{gate.name}: {gate.detail}" for gate in failed) or "no data"
        if {gate.name for gate in failed} == {"sessions"}:
            more = rules.min_sessions - n
    else:
        verdict = classify(interval, rules)
        open_ = verdict == "not distinguishable"
        more = sessions_to_settle(interval, alpha, rules) if open_ else 0
        reason = _reason(verdict, interval, labels[against], more, alpha, rules)
    return Comparison(
        variant=labels[variant],
        baseline=labels[against],
        verdict=verdict,
        reason=reason,
        time_ratio=_ratio(interval.estimate) if interval else None,
        time_ratio_low=_ratio(interval.low) if interval else None,
        time_ratio_high=_ratio(interval.high) if interval else None,
        half_width_ratio=_width(interval.half_width) if interval else None,
        detectable_ratio=(
            _ratio(detectable(interval.half_width, n, alpha, rules)) if interval else None
        ),
        sessions=n,
        more_sessions=more,
        gates=gates,
    )


def _width(half_width: float) -> float | None:
    return sig6(math.expm1(half_width)) if half_width < _MAX_LOG else None


def _ratio(log_ratio: float) -> float | None:
    return sig6(math.exp(log_ratio)) if abs(log_ratio) < _MAX_LOG else None


def _aa_ratio(estimates: Sequence[float], rules: TimingRules) -> RatioInterval | None:
    if not estimates or not all(math.isfinite(value) for value in estimates):
        return None
    interval = t_interval(estimates, rules.gate_alpha)
    return RatioInterval(
        _ratio(interval.estimate),
        _ratio(interval.low),
        _ratio(interval.high),
        _width(interval.half_width),
        interval.n,
    )


def _reason(
    verdict: Verdict,
    interval: Interval,
    baseline: str,
    more: int | None,
    alpha: float,
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
    effect = percent(detectable(interval.half_width, interval.n, alpha, rules)).lstrip("+")
    outlook = (
        f"about {more} more sessions would settle it at this estimate and spread"
        if more is not None
        else f"{rules.max_sessions} sessions would not settle it at this estimate and spread"
    )
    return (
        f"{measured}: neither beyond ±{eps}% nor within ±{delta}%; a change of {effect} would be "
        f"found with {number_text(rules.power * 100)}% power; {outlook}"
    )
