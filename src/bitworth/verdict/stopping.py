"""Whether the timing of a cell may stop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.comparison import Comparison, check_labels
from bitworth.verdict.decide import judge_cell, variant_labels
from bitworth.verdict.estimate import session_estimates, t_interval
from bitworth.verdict.looks import level, looks
from bitworth.verdict.rules import TimingRules

#: Checks that more sessions cannot mend.
_LOST = ("data", "clock")


def settled(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    rules: TimingRules,
    *,
    min_speedup: float | None = None,
    hidden: int = 1,
) -> bool:
    """Whether timing may stop: its goal is reached, or ``rules.max_sessions`` are."""
    reached = goal_reached(sessions, labels, rules, min_speedup=min_speedup, hidden=hidden)
    return reached or len(sessions) >= rules.max_sessions


def goal_reached(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    rules: TimingRules,
    *,
    min_speedup: float | None = None,
    hidden: int = 1,
) -> bool:
    """Whether there are enough sessions, and they reach what the rules ask for.

    That is, every half-width within ``rules.precision``, whatever the size or sign of an estimate.
    With ``rules.until_settled`` it is, at the sessions of ``looks`` only, that every comparison is
    settled: its verdict is neither open nor void and, with ``min_speedup``, the interval of its
    speed-up lies on one side of that.

    A variant with missing data or a broken clock is void whatever follows, so it keeps no session
    going. With no variant it is the hidden copy's precision that counts. Raises ValueError for
    labels that do not fit the sessions.
    """
    check_labels(sessions, labels, hidden, 0)
    if len(sessions) < rules.min_sessions:
        return False
    targets = variant_labels(labels, hidden)
    if not targets or not rules.until_settled:
        return _precise(sessions, targets or [hidden], rules)
    if len(sessions) not in looks(rules):
        return False
    found = judge_cell(sessions, labels, rules=rules, hidden=hidden)
    return all(_is_settled(comparison, min_speedup) for comparison in found.comparisons)


def _precise(sessions: Sequence[SessionBlocks], targets: Sequence[int], rules: TimingRules) -> bool:
    pairs = [(label, 0) for label in targets]
    alpha = level(rules.alpha / len(targets), rules)
    for values in zip(*(session_estimates(blocks, pairs) for blocks in sessions), strict=True):
        if not all(math.isfinite(value) for value in values):
            continue
        if t_interval(values, alpha).half_width > math.log1p(rules.precision):
            return False
    return True


def _is_settled(comparison: Comparison, min_speedup: float | None) -> bool:
    if any(gate.state == "failed" and gate.name in _LOST for gate in comparison.gates):
        return True
    low, high = comparison.time_ratio_low, comparison.time_ratio_high
    if comparison.verdict in ("void", "not distinguishable") or low is None or high is None:
        return False
    # As the policy's criterion: pass from the limit on, fail under it.
    return min_speedup is None or not 1 / high < min_speedup <= 1 / low
