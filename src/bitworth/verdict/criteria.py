"""The criteria of a policy, each judged by the end of an interval that crosses its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bitworth.verdict.comparison import Comparison
from bitworth.verdict.estimate import sessions_to_reach
from bitworth.verdict.rounding import number_text, sig6, sig6_or_none
from bitworth.verdict.rules import TimingRules

CriterionState = Literal["pass", "fail", "open"]

# The outside gate that says a variant's output is wrong: more timing cannot mend that.
QUALITY_GATE = "quality"
NOT_RUN = "not run: "


@dataclass(frozen=True)
class Policy:
    """What a variant must reach to be shipped.

    Raises ValueError for a limit that is not finite, a speed-up of 0 or less, or a metric that is
    named twice.

    Attributes:
        min_speedup: least speed-up, against the lower end of its interval.
        max_loss: pairs of metric and its largest loss, against the upper end of its interval; the
            first metric comes first where variants are ranked.
        max_rel_l2: largest relative L2 error against the reference.
        max_error_over_floor: largest error as a multiple of the baseline's own.
    """

    min_speedup: float = 1.05
    max_loss: tuple[tuple[str, float], ...] = ()
    max_rel_l2: float | None = None
    max_error_over_floor: float | None = None

    def __post_init__(self) -> None:
        limits = [self.min_speedup, *(limit for _, limit in self.max_loss)]
        limits += [x for x in (self.max_rel_l2, self.max_error_over_floor) if x is not None]
        if not all(math.isfinite(limit) for limit in limits) or self.min_speedup <= 0:
            raise ValueError("the limits of a policy are finite, and its speed-up is over 0")
        if len({metric for metric, _ in self.max_loss}) != len(self.max_loss):
            raise ValueError("the policy names a metric twice")

    @property
    def limits_quality(self) -> bool:
        """Whether any criterion but speed is set."""
        return bool(self.max_loss) or not (
            self.max_rel_l2 is None and self.max_error_over_floor is None
        )


@dataclass(frozen=True)
class MetricLoss:
    """Loss of one task metric with its interval over n paired samples; over 0 is worse."""

    metric: str
    loss: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Candidate:
    """What is known of one variant in one cell.

    Attributes:
        name: the variant.
        comparison: its verdict against the baseline; None when it was not timed.
        losses: losses of the task metrics.
        rel_l2: relative L2 error against the reference; None when not measured.
        error_over_floor: its error over the baseline's own; None when not measured or when the
            baseline is the reference itself.
        plan_bytes: size of the built plan.
        runs: whether the engine runs it at all.
        not_run_reason: why not; empty when it runs.
    """

    name: str
    comparison: Comparison | None
    losses: tuple[MetricLoss, ...] = ()
    rel_l2: float | None = None
    error_over_floor: float | None = None
    plan_bytes: int | None = None
    runs: bool = True
    not_run_reason: str = ""


@dataclass(frozen=True)
class Criterion:
    """One criterion of one candidate; numbers have 6 significant digits, None where unknown.

    Attributes:
        name: ``speed-up``, ``<metric> loss``, ``relative L2``, ``error over floor``, ``quality
            evidence``, ``task metric`` or ``quality limit``.
        value: estimate.
        low: lower end of its interval; the value itself where there is none.
        high: upper end.
        limit: the policy's.
        state: ``open`` when the interval crosses the limit or evidence is missing.
        text: a phrase with the numbers and, when open, with what would settle it.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    limit: float | None
    state: CriterionState
    text: str


@dataclass(frozen=True)
class CandidateCriteria:
    """All criteria of one candidate: ``fail`` when any fails, ``pass`` when all pass."""

    name: str
    state: CriterionState
    criteria: tuple[Criterion, ...]


def evaluate(
    candidate: Candidate,
    policy: Policy,
    rules: TimingRules,
    *,
    has_quality_evidence: bool,
    has_task_metric: bool,
) -> CandidateCriteria:
    """Judge one candidate by every criterion of the policy.

    Missing evidence leaves a criterion open and never passes it. Three criteria stand for evidence
    that the whole study lacks: without held-out data ``quality evidence`` is open, without a task
    metric ``task metric`` (unless ``max_rel_l2`` stands in for it), and with a metric that no
    limit applies to ``quality limit``, as speed alone is no reason to ship.
    """
    criteria = [speed_criterion(candidate, policy.min_speedup, rules)]
    if not has_quality_evidence:
        criteria.append(_missing("quality evidence", "no quality evidence: give held-out data"))
    else:
        if not has_task_metric and policy.max_rel_l2 is None:
            text = "no task metric: give one, or set max_rel_l2"
            criteria.append(_missing("task metric", text))
        elif not policy.limits_quality:
            text = "no quality limit: set max_loss or max_rel_l2 in the policy"
            criteria.append(_missing("quality limit", text))
        by_metric = {loss.metric: loss for loss in candidate.losses}
        criteria += [
            _loss_criterion(metric, by_metric.get(metric), limit)
            for metric, limit in policy.max_loss
        ]
        criteria += [
            _point_criterion(name, value, limit)
            for name, value, limit in (
                ("relative L2", candidate.rel_l2, policy.max_rel_l2),
                ("error over floor", candidate.error_over_floor, policy.max_error_over_floor),
            )
            if limit is not None
        ]
    states = {criterion.state for criterion in criteria}
    state: CriterionState = "fail" if "fail" in states else "open" if "open" in states else "pass"
    return CandidateCriteria(candidate.name, state, tuple(criteria))


def speed_criterion(candidate: Candidate, limit: float, rules: TimingRules) -> Criterion:
    """Judge the speed-up, 1 over the time ratio, by its interval.

    A variant that the engine does not run fails: there is nothing to ship. A void comparison is
    open, as a sound timing could still pass, unless the quality gate voided it: then it fails.
    """
    name = "speed-up"
    if not candidate.runs:
        reason = candidate.not_run_reason or "no reason recorded"
        return Criterion(name, None, None, None, sig6(limit), "fail", f"{NOT_RUN}{reason}")
    comparison = candidate.comparison
    if comparison is None:
        return Criterion(name, None, None, None, sig6(limit), "open", "not timed: time it")
    value, low, high = (
        1 / ratio if ratio else None
        for ratio in (
            comparison.time_ratio,
            comparison.time_ratio_high,
            comparison.time_ratio_low,
        )
    )
    if comparison.verdict == "void" or value is None or low is None or high is None:
        broken = any(
            gate.name == QUALITY_GATE and gate.state == "failed" for gate in comparison.gates
        )
        text = f"timing void ({comparison.reason})"
        if not broken:
            more = comparison.more_sessions
            text += f": add {more} sessions" if more else ": mend that and time it again"
        return Criterion(name, None, None, None, sig6(limit), "fail" if broken else "open", text)
    state = _state(low >= limit, high < limit)
    write = _writer(limit, low, high)
    text = (
        f"speed-up {write(value)} ({write(low)} to {write(high)}, {comparison.sessions} sessions) "
        f"against at least {write(limit)}"
    )
    if state == "open":
        # In logs, where the interval is symmetric.
        text += _more_sessions(
            comparison, abs(math.log(value / limit)), math.log(high / low) / 2, rules
        )
    return Criterion(name, sig6(value), sig6(low), sig6(high), sig6(limit), state, text)


def _loss_criterion(metric: str, loss: MetricLoss | None, limit: float) -> Criterion:
    name = f"{metric} loss"
    numbers = () if loss is None else (loss.loss, loss.low, loss.high)
    if loss is None or not all(math.isfinite(number) for number in numbers):
        text = f"{name} not measured: measure it"
        return Criterion(name, None, None, None, sig6(limit), "open", text)
    state = _state(loss.high <= limit, loss.low > limit)
    write = _writer(limit, loss.low, loss.high)
    text = (
        f"{name} {write(loss.loss)} ({write(loss.low)} to {write(loss.high)}, n = {loss.n}) "
        f"against at most {write(limit)}"
    )
    if state == "open":
        text += _more_samples(loss.n, limit - loss.loss, loss.high - loss.low)
    return Criterion(
        name, sig6(loss.loss), sig6(loss.low), sig6(loss.high), sig6(limit), state, text
    )


def _point_criterion(name: str, value: float | None, limit: float) -> Criterion:
    if value is None:
        text = f"{name} not measured: measure it"
        return Criterion(name, None, None, None, sig6(limit), "open", text)
    number = sig6_or_none(value)
    if number is None:  # NaN or infinite: measured, and wrong
        return Criterion(name, None, None, None, sig6(limit), "fail", f"{name} is not finite")
    write = _writer(limit, value, value)
    return Criterion(
        name, number, number, number, sig6(limit), _state(value <= limit, value > limit),
        f"{name} {write(value)} against at most {write(limit)}",
    )  # fmt: skip


def _missing(name: str, text: str) -> Criterion:
    return Criterion(name, None, None, None, None, "open", text)


def _state(passes: bool, fails: bool) -> CriterionState:
    return "pass" if passes else "fail" if fails else "open"


def _writer(limit: float, *ends: float) -> Callable[[float], str]:
    """Take more digits where an end would otherwise be written like a limit that it misses."""
    clash = any(end != limit and number_text(end) == number_text(limit) for end in ends)
    return (lambda value: f"{value:.6g}") if clash else number_text


def _more_sessions(
    comparison: Comparison, distance: float, half_width: float, rules: TimingRules
) -> str:
    """Say how many more are needed until the interval keeps clear of the limit; unit: log ratio."""
    widening = math.log1p(comparison.widened_ratio)
    if distance <= widening:
        within = "within the warm-up difference of" if widening else "at"
        return f"; more sessions would not settle it, as the estimate lies {within} the limit"
    spread, n = max(half_width - widening, 0.0), comparison.sessions
    more = sessions_to_reach(spread, n, distance - widening, comparison.alpha, rules)
    if more is None:
        return f"; {rules.max_sessions} sessions would not settle it at this estimate and spread"
    # None more can only be due to rounding: the interval crosses the limit.
    return f"; about {max(1, more)} more sessions would settle it if the estimate stays"


def _more_samples(n: int, distance: float, width: float) -> str:
    """Say how many more are needed until half of the width fits into the distance."""
    if distance == 0 or width <= 0:
        return "; more samples would not settle it, as the estimate lies at the limit"
    more = max(1, math.ceil(n * (width / 2 / distance) ** 2) - n)
    if more > 100 * n:
        return f"; over {100 * n} more samples would be needed"
    return f"; about {more} more samples would settle it if the estimate stays"
