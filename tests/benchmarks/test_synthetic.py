from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.timing.synthetic import (
    InjectedTruth,
    SequentialCounts,
    identical_plans,
    injected_truth,
    trial_scripts,
)
from benchmarks.timing.synthetic_machine import (
    HIDDEN,
    NOISE,
    SHAPE,
    as_blocks,
    play,
    play_cell,
    play_fixed_order,
    play_session,
    samples_of,
    variant_names,
)
from benchmarks.timing.synthetic_power import CurvePoint, detected_ratio, power
from benchmarks.timing.synthetic_stopping import play_until_settled, stopping
from bitworth.engines.mock_clock import ClockScript, Fault
from bitworth.verdict import (
    TimingRules,
    blocks_from_samples,
    judge_cell,
    looks,
    session_schedule,
)

LABELS = variant_names(2)
SILENT = ClockScript(sigma=0)


def test_a_session_follows_its_schedule() -> None:
    script = replace(SILENT, ratios={"v1": 2, "v2": 3}, seed=5)
    found = play_session(script, LABELS, 4)
    schedule = session_schedule(4, seed=5, session=4)
    assert (found.order, found.start_order) == (schedule.rounds, schedule.start_order)
    times = {0: 1_000_000, 1: 1_000_000, 2: 2_000_000, 3: 3_000_000}
    for order, row in zip(found.order, found.samples, strict=True):
        assert list(row) == [(times[i],) * SHAPE.iterations for i in order]
    assert found.failures == {}
    assert found.session == 4


def test_the_copy_of_the_baseline_is_another_process_of_the_same_plan() -> None:
    script = ClockScript(ratios={"baseline": 2, HIDDEN: 9}, sigma=0.01)
    found = play_session(script, LABELS, 0)
    first, again = samples_of(found, 0), samples_of(found, 1)
    assert np.median(again) / np.median(first) == pytest.approx(1, abs=0.01)
    assert not set(first) & set(again)


def test_sessions_are_repeatable_and_differ() -> None:
    script = NOISE["AR(0.5)"]
    assert play_session(script, LABELS, 1) == play_session(script, LABELS, 1)
    assert play_session(script, LABELS, 1).samples != play_session(script, LABELS, 2).samples
    other = replace(script, seed=1)
    assert play_session(script, LABELS, 1).samples != play_session(other, LABELS, 1).samples


def test_the_machine_is_shared_by_the_session() -> None:
    """The drift runs through all blocks, whoever's they are, the warm-up of each included."""
    script = replace(SILENT, drift=0.10)
    found = play(script, LABELS, session_schedule(4, seed=0, session=0))
    times = np.array([block[0] for row in found.samples for block in row])
    count = times.size + 4
    assert times / 1e6 == pytest.approx(1 + 0.10 * np.arange(4, count) / (count - 1), rel=1e-5)


def test_a_fixed_order_is_one_label_and_then_the_other() -> None:
    baseline, variant = play_fixed_order(replace(SILENT, drift=0.10), 1.5, 10)
    assert baseline.size == variant.size == 10 * SHAPE.iterations
    assert baseline.max() < 1.06e6
    assert 1.5 * 1.05e6 < variant.min() < variant.max() <= 1.5 * 1.1e6


@pytest.mark.parametrize(
    ("fault", "after", "kind"),
    [
        ("raise_run", 1 + 6, "round 7: raised"),
        ("crash_run", 1 + 6, "round 7: crashed"),
        ("hang_run", 1 + 6, "round 7: timed out"),
        ("raise_run", 0, "raised"),
        ("alias", 0, "invalid"),
        ("backwards", 0, "invalid"),
    ],
)
def test_a_variant_that_fails_is_void(fault: Fault, after: int, kind: str) -> None:
    script = ClockScript(ratios={"v1": 0.5, "v2": 0.5}, faults={"v1": fault}, fault_after=after)
    sessions = [play_session(script, LABELS, i) for i in range(6)]
    assert all(list(s.failures) == [2] for s in sessions)
    assert all(s.failures[2].startswith(kind) for s in sessions)
    cell = judge_cell([as_blocks(s) for s in sessions], LABELS, rules=TimingRules())
    assert [c.verdict for c in cell.comparisons] == ["void", "faster"]


@pytest.mark.parametrize("fault", [None, "raise_run", "backwards"])
def test_blocks_are_those_of_the_verdict(fault: Fault | None) -> None:
    faults = {"v1": fault} if fault else {}
    script = replace(NOISE["one-sided spikes"], faults=faults, fault_after=4)
    found = play_session(script, LABELS, 0)
    fast, plain = as_blocks(found), blocks_from_samples(found.order, found.samples)
    for name in ("order", "value_ns", "first_half_ns", "second_half_ns"):
        assert np.array_equal(getattr(fast, name), getattr(plain, name), equal_nan=True)


def test_a_cell_has_its_ratios() -> None:
    cell = play_cell(replace(SILENT, sigma=0.001), (0.8, 1.2), sessions=6)
    assert cell.labels == ("baseline", HIDDEN, "v1", "v2")
    ratios = [
        c.time_ratio for c in judge_cell(cell.blocks, cell.labels, rules=TimingRules()).comparisons
    ]
    assert ratios == pytest.approx([0.8, 1.2], rel=0.001)
    assert [s.size for s in cell.samples(2)] == [12 * SHAPE.iterations] * 6


def test_no_two_trials_are_alike() -> None:
    seeds = [
        script.seed
        for noise in NOISE
        for purpose in ((), (10,), (20,))
        for script in trial_scripts(noise, 20, 3, *purpose)
    ]
    assert len(set(seeds)) == len(NOISE) * 3 * 20
    assert seeds[:20] != [script.seed for script in trial_scripts("normal", 20, 4)]


def test_counts_add_up_and_repeat() -> None:
    found = identical_plans("10% drift", 12, 1)
    kinds = (found.equivalent, found.not_distinguishable, found.void, found.false_verdicts)
    assert sum(kinds) == found.trials == 12
    assert found == identical_plans("10% drift", 12, 1)
    # A machine that slows by a tenth makes whatever comes second slower.
    assert found.sequential.fixed_order == 12
    covered = injected_truth("normal", 20, 12, 1)
    assert covered.time_ratio == 1.05
    assert 0.005 < covered.half_width_ratio < 0.05
    assert covered == injected_truth("normal", 20, 12, 1)


def test_limits() -> None:
    none = SequentialCounts(0, 0, 0)
    at = replace(identical_plans("normal", 1, 0), trials=1000, faster=30, slower=30)
    assert at.passed
    assert not replace(at, slower=31).passed
    covered = InjectedTruth("normal", 1.05, 100, 92, 0.01, none)
    assert covered.passed
    assert not replace(covered, covered=91).passed


def test_a_power_curve_is_read_where_it_reaches_the_power() -> None:
    # Normal scores on a line: 80% lies 0.8416 standard deviations above the middle.
    curve = [CurvePoint(1.02, 50_000, 100_000), CurvePoint(1.03, 84_134, 100_000)]
    assert detected_ratio(curve, 0.80) == pytest.approx(1.02 + 0.01 * 0.8416, abs=1e-5)
    assert detected_ratio(curve, 0.50) == pytest.approx(1.02, abs=1e-5)
    # All or none of the trials are no infinite score.
    ends = [CurvePoint(1.01, 0, 50), CurvePoint(1.02, 40, 50), CurvePoint(1.03, 50, 50)]
    assert 1.015 < detected_ratio(ends, 0.80) < 1.025
    with pytest.raises(ValueError, match="two points"):
        detected_ratio(curve[:1], 0.80)


@pytest.mark.parametrize("comparisons", [1, 3])
def test_power_counts(comparisons: int) -> None:
    found = power(comparisons, 6, 8, 2)
    assert found == power(comparisons, 6, 8, 2)
    trials = [point.trials for point in found.curve]
    assert trials == ([4, 4, 8, 4, 4] if comparisons == 1 else [8] * 3)
    (at,) = [p for p in found.curve if p.time_ratio == found.predicted_ratio]
    assert (at.detected, at.trials) == (found.detected, found.trials)
    assert found.low <= found.detected / found.trials <= found.high
    assert not replace(found, low=0.81, high=0.9).passed
    assert not replace(found, low=0.7, high=0.9, observed_ratio=found.predicted_ratio + 1).passed


def test_a_study_stops_where_its_rule_says() -> None:
    quiet = play_until_settled(replace(NOISE["normal"], block_sigma=0.005))
    assert len(quiet.sessions) == 6
    loud = play_until_settled(replace(NOISE["normal"], block_sigma=0.1, seed=3))
    assert 6 < len(loud.sessions) < 60
    found = stopping(4, 1)
    assert found == stopping(4, 1)
    assert 6 <= found.sessions[0] <= found.sessions[1] <= found.sessions[2] <= 60
    assert found.trials == 4
    # Until settled: identical plans settle once they are known to be equivalent.
    rules = TimingRules(until_settled=True)
    settled = play_until_settled(replace(NOISE["normal"], seed=3), rules)
    assert len(settled.sessions) in looks(rules)
    verdict = judge_cell(settled.blocks, settled.labels, rules=rules).comparisons[0].verdict
    assert verdict != "not distinguishable" or len(settled.sessions) == 60
