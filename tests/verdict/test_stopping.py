from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.verdict import SessionBlocks, TimingRules, goal_reached, judge_cell, looks, settled

RULES = TimingRules()
UNTIL = TimingRules(until_settled=True)
LABELS = ("fp32", "fp32 again", "int8")


def without(sessions: list[SessionBlocks], label: int, which: slice) -> list[SessionBlocks]:
    """Sessions that lost all blocks of a label."""
    result = list(sessions)
    for i in range(len(sessions))[which]:
        value = np.where(sessions[i].order == label, math.nan, sessions[i].value_ns)
        result[i] = replace(sessions[i], value_ns=value)
    return result


def test_stopping_looks_at_precision_only(cell) -> None:
    quiet, loud = cell(3, noise=0.005), cell(3, noise=0.10)
    assert settled(quiet, LABELS, RULES)
    assert not settled(quiet[:5], LABELS, RULES)
    assert not settled(loud, LABELS, RULES)
    # At the last session timing may stop, though the goal is not reached.
    short = replace(RULES, max_sessions=6)
    assert settled(loud, LABELS, short)
    assert not goal_reached(loud, LABELS, short)
    # The same noise around another ratio stops at the same session.
    for ratio in (0.5, 0.995, 1.0, 1.3):
        for n in (5, 6):
            sessions = cell(11, ratios=(1, 1, ratio), noise=0.02, sessions=n)
            same = cell(11, ratios=(1, 1, 1), noise=0.02, sessions=n)
            assert settled(sessions, LABELS, RULES) == settled(same, LABELS, RULES)


@pytest.mark.parametrize("rules", [RULES, UNTIL])
def test_stopping_waits_for_every_variant_but_not_for_a_dead_one(cell, rules) -> None:
    sessions = cell(3, ratios=(1, 1, 0.5, 0.6), noise=0.005)
    labels = (*LABELS, "bf16")
    assert settled(without(sessions, 3, slice(2, 3)), labels, rules)
    loud = cell(4, noise=0.10)
    assert not settled(loud, LABELS, rules)
    assert settled(without(loud, 2, slice(None)), LABELS, rules)
    mixed = cell(3, ratios=(1, 1, 0.5, 1.02), noise=0.10)
    assert not settled(mixed, labels, rules)


@pytest.mark.parametrize("rules", [RULES, UNTIL])
def test_without_a_variant_precision_counts(cell, rules) -> None:
    assert settled(cell(3, ratios=(1, 1), noise=0.005), LABELS[:2], rules)
    assert not settled(cell(3, ratios=(1, 1), noise=0.10), LABELS[:2], rules)
    with pytest.raises(ValueError, match="not two"):
        settled([], ("a",), rules)


def test_a_verdict_settles_whatever_its_width(cell) -> None:
    sessions = cell(3, ratios=(1, 1, 0.5), noise=0.10)
    (found,) = judge_cell(sessions, LABELS, rules=UNTIL).comparisons
    assert found.verdict == "faster"
    assert found.half_width_ratio > UNTIL.precision
    assert settled(sessions, LABELS, UNTIL)
    assert not settled(sessions, LABELS, RULES)


def test_precision_does_not_settle_an_open_verdict(cell) -> None:
    sessions = cell(5, ratios=(1, 1, 1.008), noise=0.03)
    (found,) = judge_cell(sessions, LABELS, rules=UNTIL).comparisons
    assert found.verdict == "not distinguishable"
    assert not settled(sessions, LABELS, UNTIL)


def test_the_policy_has_to_be_settled_too(cell) -> None:
    sessions = cell(3, ratios=(1, 1, 1 / 1.1), noise=0.02)
    (found,) = judge_cell(sessions, LABELS, rules=UNTIL).comparisons
    low, high = 1 / found.time_ratio_high, 1 / found.time_ratio_low
    assert found.verdict == "faster"
    for limit, done in ((low - 0.001, True), ((low + high) / 2, False), (high + 0.001, True)):
        assert settled(sessions, LABELS, UNTIL, min_speedup=limit) == done


def test_between_looks_nothing_is_settled(cell) -> None:
    sessions = cell(3, ratios=(1, 1, 0.5), noise=0.01, sessions=60)
    stops = [n for n in range(1, 60) if settled(sessions[:n], LABELS, UNTIL)]
    assert stops == [look for look in looks(UNTIL) if look < 60]


def test_a_failed_check_that_may_pass_keeps_it_going(cell) -> None:
    biased = cell(3, ratios=(1, 1.05, 0.5), noise=0.01)
    (found,) = judge_cell(biased, LABELS, rules=UNTIL).comparisons
    assert found.verdict == "void"
    assert not settled(biased, LABELS, UNTIL)


@given(st.integers(0, 10**6), st.floats(0.8, 1.25), st.floats(0.002, 0.1))
def test_what_is_settled_has_a_verdict_on_one_side_of_the_policy(
    cell, seed: int, ratio: float, noise: float
) -> None:
    sessions = cell(seed, ratios=(1, 1, ratio), noise=noise, sessions=9)
    (found,) = judge_cell(sessions, LABELS, rules=UNTIL).comparisons
    surely = not 1 / found.time_ratio_high < 1.05 <= 1 / found.time_ratio_low
    open_ = found.verdict in ("not distinguishable", "void")
    assert settled(sessions, LABELS, UNTIL, min_speedup=1.05) == (surely and not open_)
