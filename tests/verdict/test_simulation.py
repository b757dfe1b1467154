"""Error rates of the whole chain on the scripted machine, seeded.

Sessions run through the session loop that studies use. Each test also shows that it can fail: what
it asks of the method, a wrong rule on the same samples does not give.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.timing.sequential import pooled, welch
from benchmarks.timing.synthetic import judged, trial_scripts
from benchmarks.timing.synthetic_machine import (
    NOISE,
    as_blocks,
    play,
    play_cell,
    play_fixed_order,
    play_session,
    variant_names,
)
from benchmarks.timing.synthetic_power import power
from bitworth.engines.mock_clock import ClockScript
from bitworth.verdict import SessionSchedule, TimingRules, judge_cell, settled, t_interval

RULES = TimingRules()
LABELS = variant_names(1)


@pytest.mark.parametrize("noise", list(NOISE))
def test_identical_plans_get_no_verdict(noise: str) -> None:
    trials, false, void, sequential = 100, 0, 0, 0
    for script in trial_scripts(noise, trials, 0):
        cell = play_cell(script, (1.0,))
        verdict = judged(cell).verdict
        false += verdict in ("faster", "slower")
        void += verdict == "void"
        sequential += pooled(cell.samples(0), cell.samples(2)).verdict != "no difference"
    assert false <= 0.06 * trials
    assert void <= 0.05 * trials  # two gates of 1% each, and the chance of few trials
    # Samples of one block share its noise; who takes them as independent finds differences.
    assert sequential > 0.20 * trials


@pytest.mark.parametrize("effect", [{"position_effect": 0.02}, {"carry_over": 0.006}])
def test_an_order_that_never_changes_gives_false_verdicts(effect: dict[str, float]) -> None:
    """The same machine under a balanced and under a constant order of the rounds."""
    trials, false, constant = 20, 0, 0
    # The variant always follows the baseline.
    schedule = SessionSchedule((0, 2, 1), ((0, 2, 1),) * 12)
    for seed in range(trials):
        script = replace(ClockScript(sigma=0.0005, block_sigma=0.0005, seed=seed), **effect)
        false += judged(play_cell(script, (1.0,))).verdict in ("faster", "slower")
        sessions = [as_blocks(play(script, LABELS, schedule, i)) for i in range(6)]
        estimates = [float(np.median(_log_ratio(blocks))) for blocks in sessions]
        interval = t_interval(estimates, RULES.alpha)
        constant += interval.low > math.log1p(RULES.eps)
    assert false == 0
    assert constant == trials


def _log_ratio(blocks) -> np.ndarray:
    logs = blocks.by_label(np.log(blocks.value_ns))
    return logs[:, 2] - logs[:, 0]


def test_a_drift_makes_the_second_command_slower() -> None:
    for script in trial_scripts("10% drift", 20, 0):
        assert welch(*play_fixed_order(script, 1.0, 72)).verdict == "slower"


@pytest.mark.parametrize("noise", ["normal", "one-sided spikes"])
@pytest.mark.parametrize("ratio", [0.6, 1.05])
def test_interval_covers_an_injected_ratio(noise: str, ratio: float) -> None:
    trials, covered, sequential = 120, 0, 0
    for script in trial_scripts(noise, trials, 1):
        cell = play_cell(script, (ratio,))
        item = judged(cell)
        covered += item.time_ratio_low <= ratio <= item.time_ratio_high
        other = pooled(cell.samples(0), cell.samples(2))
        sequential += other.low <= ratio <= other.high
    assert covered >= 0.92 * trials
    assert sequential < 0.90 * trials


def test_stopping_on_precision_keeps_coverage() -> None:
    # Session estimates drawn directly: the rule as ``settled`` applies it, at its worst spread.
    generator = np.random.default_rng(4)
    trials, missed, missed_by_sign = 1000, 0, 0
    for trial in range(trials):
        values = generator.normal(0, 0.03, RULES.max_sessions).tolist()
        for n in range(RULES.min_sessions, RULES.max_sessions + 1):
            interval = t_interval(values[:n], RULES.alpha)
            if interval.half_width <= math.log1p(RULES.precision):
                break
        missed += not interval.low <= 0 <= interval.high
        if trial >= 300:
            continue
        # To stop at the first interval that excludes 0 is the rule that this one must not be.
        for n in range(RULES.min_sessions, RULES.max_sessions + 1):
            interval = t_interval(values[:n], RULES.alpha)
            if interval.low > 0 or interval.high < 0:
                missed_by_sign += 1
                break
    assert missed <= 0.07 * trials
    assert missed_by_sign > 0.12 * 300


def test_power_at_the_detectable_effect() -> None:
    """At the detectable effect of a typical record, 80% of repeats get a verdict."""
    found = power(1, 6, 120, 5)
    interval = stats.binomtest(found.detected, found.trials).proportion_ci(0.99)
    assert interval.low <= RULES.power <= interval.high
    assert abs(found.error) <= 0.20
    # A prediction that is a fifth too small would be told from it.
    least = found.curve[0]
    assert stats.binomtest(least.detected, least.trials).proportion_ci(0.99).high < RULES.power


def test_a_study_stops_and_is_judged() -> None:
    script = replace(NOISE["normal"], block_sigma=0.06, ratios={"v1": 0.9}, seed=2)
    sessions = [as_blocks(play_session(script, LABELS, i)) for i in range(60)]
    n = next(n for n in range(1, 61) if settled(sessions[:n], LABELS, RULES))
    assert 6 < n < 60
    (item,) = judge_cell(sessions[:n], LABELS, rules=RULES).comparisons
    assert item.half_width_ratio <= RULES.precision
    assert item.verdict == "faster"
    (before,) = judge_cell(sessions[: n - 1], LABELS, rules=RULES).comparisons
    assert before.half_width_ratio > RULES.precision
