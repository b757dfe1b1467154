"""Error rates of the whole chain on synthetic cells, seeded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bitworth.verdict import TimingRules, judge_cell, settled, t_interval

RULES = TimingRules()
LABELS = ("a", "a again", "x")
MODELS = ["normal", "spikes", "ar", "drift", "position", "carry-over", "session bias"]


@pytest.mark.parametrize("model", MODELS)
def test_identical_plans_get_no_verdict(cell, model: str) -> None:
    trials, false, void = 120, 0, 0
    for seed in range(trials):
        verdict = judge_cell(cell(seed, model=model), LABELS, rules=RULES).comparisons[0].verdict
        false += verdict in ("faster", "slower")
        void += verdict == "void"
    assert false <= 0.06 * trials
    assert void <= 0.05 * trials  # two gates of 1% each, and the chance of few trials


@pytest.mark.parametrize("model", ["normal", "spikes"])
@pytest.mark.parametrize("ratio", [0.6, 1.05])
def test_interval_covers_an_injected_ratio(cell, model: str, ratio: float) -> None:
    trials = 150
    covered = 0
    for seed in range(trials):
        sessions = cell(seed + 10_000, ratios=(1, 1, ratio), model=model)
        (item,) = judge_cell(sessions, LABELS, rules=RULES).comparisons
        covered += item.time_ratio_low <= ratio <= item.time_ratio_high
    assert covered >= 0.92 * trials


def test_stopping_on_precision_keeps_coverage() -> None:
    # Session estimates drawn directly: the rule as ``settled`` applies it, at its worst spread.
    generator = np.random.default_rng(4)
    trials, missed = 1000, 0
    for _ in range(trials):
        values = generator.normal(0, 0.03, RULES.max_sessions).tolist()
        for n in range(RULES.min_sessions, RULES.max_sessions + 1):
            interval = t_interval(values[:n], RULES.alpha)
            if interval.half_width <= math.log1p(RULES.precision):
                break
        missed += not interval.low <= 0 <= interval.high
    assert missed <= 0.07 * trials


def test_power_at_the_detectable_effect(cell) -> None:
    """At the detectable effect of a typical record, 80% of repeats get a verdict."""
    widths = [
        judge_cell(cell(seed), LABELS, rules=RULES).comparisons[0].detectable_ratio
        for seed in range(60)
    ]
    effect = float(np.mean(widths))
    trials = 250
    found = sum(
        judge_cell(cell(seed + 500, ratios=(1, 1, effect)), LABELS, rules=RULES)
        .comparisons[0].verdict == "slower"
        for seed in range(trials)
    )  # fmt: skip
    interval = stats.binomtest(found, trials).proportion_ci(0.99)
    assert interval.low <= 0.80 <= interval.high


def test_a_study_stops_and_is_judged(cell) -> None:
    sessions = cell(2, ratios=(1, 1, 0.9), sessions=60, noise=0.06)
    n = next(n for n in range(1, 61) if settled(sessions[:n], LABELS, RULES))
    assert 6 < n < 60
    (item,) = judge_cell(sessions[:n], LABELS, rules=RULES).comparisons
    assert item.half_width_ratio <= RULES.precision
    assert item.verdict == "faster"
