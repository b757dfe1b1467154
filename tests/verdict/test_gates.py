from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bitworth.verdict import SessionBlocks, TimingRules, session_estimate
from bitworth.verdict.gates import (
    aa_gate,
    autocorrelation_gate,
    clock_gate,
    data_gate,
    dropped_gate,
    lag1_autocorrelation,
    percent,
    sessions_gate,
    warm_up,
    warmup_gate,
)

RULES = TimingRules()


def spoil(blocks: SessionBlocks, label: int, count: int, value: float) -> SessionBlocks:
    """Replace the first ``count`` blocks of a label."""
    values = blocks.by_label(blocks.value_ns)
    values[:count, label] = value
    by_position = np.take_along_axis(values, blocks.order, axis=1)
    return SessionBlocks(blocks.order, by_position, blocks.first_half_ns, blocks.second_half_ns)


def test_data_gate() -> None:
    assert data_gate([0.1, 0.2]).state == "passed"
    assert data_gate([]).state == "failed"
    gate = data_gate([0.1, math.nan, 0.2, math.nan])
    assert gate.state == "failed"
    assert "session 1, 3 of 4" in gate.detail


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_clock_gate_fails_on_one_bad_block(cell, value: float) -> None:
    sessions = cell(0, sessions=2)
    assert clock_gate(sessions, [0, 2]).state == "passed"
    sessions[1] = spoil(sessions[1], 2, 1, value)
    assert clock_gate(sessions, [0, 2]).state == "failed"
    assert clock_gate(sessions, [0, 1]).state == "passed"


def test_clock_gate_leaves_dropped_blocks_to_the_other_gates(cell) -> None:
    assert clock_gate([spoil(cell(0, sessions=1)[0], 2, 3, math.nan)], [0, 2]).state == "passed"


def test_sessions_gate() -> None:
    assert [sessions_gate(n, RULES).state for n in (0, 5, 6, 7)] == [
        "failed", "failed", "passed", "passed",
    ]  # fmt: skip


def test_dropped_gate_limit(cell) -> None:
    sessions = cell(0, ratios=(1, 1), sessions=2)  # 20 rounds
    assert sum(blocks.rounds for blocks in sessions) == 20
    for count, state in ((0, "passed"), (2, "passed"), (3, "failed")):
        holed = [spoil(sessions[0], 1, count, math.nan), sessions[1]]
        assert dropped_gate(holed, 1, 0, RULES).state == state
        assert f"{count} of 20" in dropped_gate(holed, 1, 0, RULES).detail
    # A drop of the baseline's block drops the round as well, and a round only once.
    both = spoil(spoil(sessions[0], 1, 2, math.nan), 0, 2, math.nan)
    assert dropped_gate([both, sessions[1]], 1, 0, RULES).state == "passed"
    assert dropped_gate([], 1, 0, RULES).state == "not_observable"


def test_aa_gate() -> None:
    steady = [0.0001, -0.0001, 0.0002, 0.0, -0.0002, 0.0001]
    assert aa_gate(steady, RULES).state == "passed"
    assert aa_gate([x + 0.01 for x in steady], RULES).state == "failed"
    assert aa_gate([x - 0.01 for x in steady], RULES).state == "failed"
    assert aa_gate([x + 0.005 for x in steady], RULES).state == "passed"  # touches the limit
    assert aa_gate([0.2, -0.2, 0.1, -0.1, 0.0, 0.05], RULES).state == "passed"
    for values in ([], [0.0], [0.0, math.nan, 0.0]):
        assert aa_gate(values, RULES).state == "failed"


def test_a_difference_in_warm_up_widens(cell) -> None:
    warm = (0.0, 0.0, 0.02)
    assert warm_up(cell(1, warmup=None), 2, 0, RULES).widening == 0
    found = warm_up(cell(1, warmup=warm), 2, 0, RULES)
    assert found.change is not None
    assert found.widening == max(found.change.high, -found.change.low)
    assert 0.02 < found.widening < 0.04
    back = warm_up(cell(1, warmup=warm), 0, 2, RULES)
    assert back.widening == pytest.approx(found.widening)
    assert warm_up(cell(1, warmup=warm), 1, 0, RULES).widening == 0
    # Both warm up alike: the ratio is not touched.
    assert warm_up(cell(1, warmup=(0.02, 0.02, 0.02)), 2, 0, RULES).widening == 0
    # Under the limit, however surely; and over it, but not surely.
    assert warm_up(cell(1, warmup=(0, 0, 0.004), noise=1e-4), 2, 0, RULES).widening == 0
    unsure = warm_up(cell(1, warmup=(0, 0, 0.006), noise=0.2), 2, 0, RULES)
    assert unsure.change is not None
    assert unsure.widening == 0


def test_warmup_gate_says_by_how_much(cell) -> None:
    found = warm_up(cell(1, warmup=(0.0, 0.0, 0.02)), 2, 0, RULES)
    width = f"±{percent(found.widening)[1:]}"
    for kept, state in ((True, "warning"), (False, "failed")):
        gate = warmup_gate(found, kept)
        assert gate.state == state
        assert width in gate.detail
    assert warmup_gate(warm_up(cell(1), 2, 0, RULES), True).state == "passed"


def test_warmup_gate_does_not_pass_what_it_cannot_see(cell) -> None:
    unseen = []
    for blocks in cell(1):
        nothing = np.full(blocks.order.shape, np.nan)
        unseen.append(SessionBlocks(blocks.order, blocks.value_ns, nothing, nothing))
    tails = [replace(b, quantile=0.99, tail_ns=np.ones(b.labels)) for b in cell(1)]
    for sessions in (unseen, [], tails):
        found = warm_up(sessions, 2, 0, RULES)
        assert found.widening == 0
        gate = warmup_gate(found, True)
        assert gate.state == "not_observable"
        assert gate.detail
    assert "quantile" in gate.detail


def test_autocorrelation() -> None:
    assert lag1_autocorrelation([1.0, 2, 3, 4]) == pytest.approx(0.25)
    assert math.isnan(lag1_autocorrelation([1.0, 2, 3]))
    assert math.isnan(lag1_autocorrelation([1.0] * 8))
    assert autocorrelation_gate([float(i) for i in range(20)], RULES).state == "warning"
    assert autocorrelation_gate([0.0, 1.0] * 6, RULES).state == "passed"
    assert autocorrelation_gate([0.0, 0.0, math.nan], RULES).state == "not_observable"


def voided(noise: float, sessions: int, rules: TimingRules) -> int:
    """Sound cells of 1,000 that the A/A' gate voids."""
    estimates = np.random.default_rng(20).normal(0, noise, (1000, sessions)).tolist()
    return sum(aa_gate(row, rules).state == "failed" for row in estimates)


@pytest.mark.parametrize("sessions", [6, 20])
@pytest.mark.parametrize("noise", [0.003, 0.01, 0.05, 0.3])
def test_a_gate_voids_under_2_percent_of_sound_cells(noise: float, sessions: int) -> None:
    # The worst case is a spread far over eps, stopped by a budget.
    assert voided(noise, sessions, RULES) <= 20


def test_the_gate_needs_an_error_rate_of_its_own() -> None:
    # At the error rate of the verdict it would void more.
    assert voided(0.3, 6, TimingRules(gate_alpha=RULES.alpha)) > 20


def test_aa_gate_finds_a_bias_of_the_harness(cell) -> None:
    # 3% on the copy, block noise 1%: found nearly always.
    found = 0
    for seed in range(40):
        sessions = cell(seed, ratios=(1, 1.03, 1), noise=0.01)
        estimates = [session_estimate(blocks, 1) for blocks in sessions]
        found += aa_gate(estimates, RULES).state == "failed"
    assert found >= 36
