from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.verdict import (
    CellVerdict,
    Comparison,
    Gate,
    Interval,
    SessionBlocks,
    TimingRules,
    classify,
    compare,
    judge_cell,
    sig6,
)

RULES = TimingRules()
LABELS = ("fp32", "fp32 again", "int8")


def judge(sessions: list[SessionBlocks], **more: object) -> CellVerdict:
    return judge_cell(sessions, LABELS, rules=RULES, **more)


def failed(verdict: CellVerdict) -> set[str]:
    return {gate.name for gate in verdict.comparisons[0].gates if gate.state == "failed"}


@pytest.mark.parametrize(
    ("ratio", "noise", "expected"),
    [
        (0.6, 0.03, "faster"),
        (1.9, 0.03, "slower"),
        (1.0, 0.005, "equivalent"),
        (1.007, 0.001, "equivalent"),  # beyond eps, but within delta: that comes first
        (1.0, 0.10, "not distinguishable"),
        (1.02, 0.0, "slower"),
        (1.0, 0.0, "equivalent"),
    ],
)
def test_each_verdict(cell, ratio: float, noise: float, expected: str) -> None:
    verdict = judge(cell(3, ratios=(1, 1, ratio), noise=noise))
    (comparison,) = verdict.comparisons
    assert comparison.verdict == expected
    assert not failed(verdict)
    assert (comparison.variant, comparison.baseline) == ("int8", "fp32")
    assert comparison.sessions == 6
    assert (comparison.more_sessions == 0) == (expected != "not distinguishable")
    assert comparison.time_ratio_low <= comparison.time_ratio <= comparison.time_ratio_high
    assert comparison.detectable_ratio >= 1.005
    assert verdict.aa is not None
    assert verdict.aa.time_ratio == pytest.approx(1, abs=0.1)
    json.dumps(asdict(verdict), allow_nan=False)


def test_reason_of_what_is_not_distinguishable(cell) -> None:
    (comparison,) = judge(cell(3, noise=0.10)).comparisons
    assert "80% power" in comparison.reason
    assert "sessions would" in comparison.reason
    assert comparison.reason.count("\n") == 0


def around(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, (high - low) / 2, 6)


EPS, DELTA = math.log1p(RULES.eps), math.log1p(RULES.delta)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.9 * DELTA, 0.9 * DELTA, "equivalent"),
        (1.1 * EPS, 0.99 * DELTA, "equivalent"),
        (-DELTA, 0.0, "not distinguishable"),
        (0.0, DELTA, "not distinguishable"),
        (1.01 * EPS, 1.01 * DELTA, "slower"),
        (EPS, 0.5, "not distinguishable"),
        (-0.5, -1.01 * EPS, "faster"),
        (-0.5, -EPS, "not distinguishable"),
        (-0.5, 0.5, "not distinguishable"),
        (math.nan, math.nan, "void"),
        (-math.inf, math.inf, "not distinguishable"),
    ],
)
def test_order_and_limits_of_the_verdicts(low: float, high: float, expected: str) -> None:
    assert classify(around(low, high), RULES) == expected


@given(st.floats(-0.1, 0.1), st.floats(0, 0.1))
def test_swapping_swaps_faster_and_slower_only(estimate: float, half: float) -> None:
    forth = classify(Interval(estimate, estimate - half, estimate + half, half, 6), RULES)
    back = classify(Interval(-estimate, -estimate - half, -estimate + half, half, 6), RULES)
    assert back == {"faster": "slower", "slower": "faster"}.get(forth, forth)


@given(st.integers(0, 10**6), st.floats(0.5, 2))
def test_comparing_backwards_gives_the_reciprocal(cell, seed: int, ratio: float) -> None:
    sessions = cell(seed, ratios=(1, 1, ratio))
    forth = compare(sessions, LABELS, 2, 0, rules=RULES)
    back = compare(sessions, LABELS, 0, 2, rules=RULES)
    assert back.verdict == {"faster": "slower", "slower": "faster"}.get(
        forth.verdict, forth.verdict
    )
    assert back.time_ratio == pytest.approx(1 / forth.time_ratio, rel=2e-5)
    assert back.time_ratio_low == pytest.approx(1 / forth.time_ratio_high, rel=2e-5)
    assert back.half_width_ratio == forth.half_width_ratio


def test_a_faster_clock_changes_nothing(cell) -> None:
    slow, fast = (judge(cell(4, ratios=(1, 1, 0.8), scale=s)) for s in (1e9, 1e4))
    assert slow == fast


def test_values_have_six_digits_and_judging_is_repeatable(cell) -> None:
    sessions = cell(8, ratios=(1, 1, 0.77))
    verdict = judge(sessions)
    comparison = verdict.comparisons[0]
    for value in (comparison.time_ratio, comparison.half_width_ratio, verdict.aa.time_ratio_low):
        assert sig6(value) == value
    assert json.dumps(asdict(judge(sessions))) == json.dumps(asdict(verdict))


def test_alpha_is_shared_by_the_comparisons(cell) -> None:
    sessions = cell(9, ratios=(1, 1, 0.9, 0.8, 0.7))
    labels = ("a", "a2", "x", "y", "z")
    verdict = judge_cell(sessions, labels, rules=RULES)
    assert [item.variant for item in verdict.comparisons] == ["x", "y", "z"]
    alone = compare(sessions, labels, 2, rules=RULES)
    shared = compare(sessions, labels, 2, rules=RULES, comparisons=3)
    assert shared.half_width_ratio == verdict.comparisons[0].half_width_ratio
    assert shared.half_width_ratio > alone.half_width_ratio
    against = compare(sessions, labels, 3, 4, rules=RULES, comparisons=3)
    assert against.baseline == "z"
    assert against.verdict == "slower"


def test_the_hidden_copy_may_have_any_label(cell) -> None:
    sessions = cell(9, ratios=(1, 0.8, 1))
    verdict = judge_cell(sessions, ("a", "x", "a2"), rules=RULES, hidden=2)
    assert [item.variant for item in verdict.comparisons] == ["x"]
    assert verdict.comparisons[0].verdict == "faster"


def spoil(sessions: list[SessionBlocks], label: int, rows: slice, value: float, which: slice):
    result = list(sessions)
    for i in range(len(sessions))[which]:
        blocks = sessions[i]
        values = blocks.by_label(blocks.value_ns)
        values[rows, label] = value
        by_position = np.take_along_axis(values, blocks.order, axis=1)
        result[i] = SessionBlocks(
            blocks.order, by_position, blocks.first_half_ns, blocks.second_half_ns
        )
    return result


ALL = slice(None)


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, 0.0, -4.0, math.inf, -math.inf])
@pytest.mark.parametrize("which", [slice(0, 1), ALL])
def test_missing_data_is_void(cell, label: int, value: float, which: slice) -> None:
    # Also when one session alone lost its blocks, and when it is the copy that did.
    sessions = spoil(cell(3, ratios=(1, 1, 0.5)), label, ALL, value, which)
    verdict = judge(sessions)
    (comparison,) = verdict.comparisons
    assert comparison.verdict == "void"
    assert comparison.more_sessions is None
    if label != 1:
        assert comparison.time_ratio is None
        assert comparison.half_width_ratio is None
    json.dumps(asdict(verdict), allow_nan=False)


def test_a_clock_that_went_backwards_once_is_void(cell) -> None:
    sessions = spoil(cell(3, ratios=(1, 1, 0.5)), 2, slice(4, 5), -1.0, slice(2, 3))
    verdict = judge(sessions)
    assert failed(verdict) == {"clock"}
    assert verdict.comparisons[0].verdict == "void"


def test_a_few_dropped_rounds_are_not_void_and_many_are(cell) -> None:
    sessions = cell(3, ratios=(1, 1, 0.5))
    few = judge(spoil(sessions, 2, slice(0, 1), math.nan, ALL))
    assert few.comparisons[0].verdict == "faster"
    many = judge(spoil(sessions, 2, slice(0, 3), math.nan, ALL))
    assert failed(many) == {"dropped"}


def test_no_sessions_and_too_few_are_void(cell) -> None:
    nothing = judge([])
    assert nothing.comparisons[0].verdict == "void"
    assert nothing.aa is None
    for n in (1, 2, 5):
        (comparison,) = judge(cell(3, ratios=(1, 1, 0.5), sessions=n)).comparisons
        assert comparison.verdict == "void"
        assert (comparison.time_ratio_low is None) == (n == 1)
        assert "sessions" in comparison.reason
    assert comparison.more_sessions == 1  # of n = 5


def test_a_biased_copy_voids_the_cell(cell) -> None:
    verdict = judge(cell(3, ratios=(1, 1.05, 0.5), noise=0.01))
    assert failed(verdict) == {"aa"}
    assert verdict.gates[0].state == "failed"
    assert verdict.comparisons[0].verdict == "void"
    assert verdict.comparisons[0].time_ratio is not None  # shown, but no verdict


def test_an_uneven_warm_up_costs_a_small_effect_its_verdict_and_a_large_one_its_width(cell) -> None:
    """A variant of half the time keeps its verdict, one of one percent is void; noise is small."""
    warm = {"warmup": (0, 0, 0.03, 0), "noise": 0.002}
    labels = (*LABELS, "bf16")
    large = judge_cell(cell(3, ratios=(1, 1, 0.5, 0.6), **warm), labels, rules=RULES)
    assert [item.verdict for item in large.comparisons] == ["faster", "faster"]
    wide, narrow = large.comparisons
    assert gate_state(wide, "warmup") == "warning"
    assert gate_state(narrow, "warmup") == "passed"
    assert wide.widened_ratio == pytest.approx(0.03, abs=0.005)
    assert narrow.widened_ratio == 0
    assert wide.half_width_ratio > 0.03 > narrow.half_width_ratio
    assert wide.detectable_ratio > 1.03 > narrow.detectable_ratio
    small = judge_cell(cell(3, ratios=(1, 1, 0.99, 0.99), **warm), labels, rules=RULES)
    assert [item.verdict for item in small.comparisons] == ["void", "faster"]
    assert failed(small) == {"warmup"}
    same = judge_cell(cell(3, ratios=(1, 1, 1, 1), **warm), labels, rules=RULES)
    assert [item.verdict for item in same.comparisons] == ["void", "equivalent"]


def gate_state(comparison: Comparison, name: str) -> str:
    (state,) = (gate.state for gate in comparison.gates if gate.name == name)
    return state


def without_halves(sessions: list[SessionBlocks]) -> list[SessionBlocks]:
    """The same blocks, whose warm-up nobody can see."""
    nothing = np.full(sessions[0].order.shape, np.nan)
    return [replace(b, first_half_ns=nothing, second_half_ns=nothing) for b in sessions]


@given(st.integers(0, 10**6), st.floats(0.3, 3), st.floats(-0.1, 0.1), st.floats(0.001, 0.1))
def test_a_warm_up_never_narrows_and_never_favours_a_side(
    cell, seed: int, ratio: float, warm: float, noise: float
) -> None:
    sessions = cell(seed, ratios=(1, 1, ratio), warmup=(0, 0, warm), noise=noise)
    seen = compare(sessions, LABELS, 2, 0, rules=RULES)
    plain = compare(without_halves(sessions), LABELS, 2, 0, rules=RULES)
    assert seen.time_ratio == plain.time_ratio
    assert seen.time_ratio_low <= plain.time_ratio_low
    assert seen.time_ratio_high >= plain.time_ratio_high
    assert seen.half_width_ratio >= plain.half_width_ratio
    assert seen.detectable_ratio >= plain.detectable_ratio
    widened = (1 + plain.half_width_ratio) * (1 + seen.widened_ratio) - 1
    assert seen.half_width_ratio == pytest.approx(widened, rel=1e-4, abs=1e-6)
    # The verdict is that without it, or there is none.
    assert seen.verdict in (plain.verdict, "void")
    assert (seen.verdict == "void") == (gate_state(seen, "warmup") == "failed")
    back = compare(sessions, LABELS, 0, 2, rules=RULES)
    opposite = {"faster": "slower", "slower": "faster"}
    assert back.verdict == opposite.get(seen.verdict, seen.verdict)
    assert back.half_width_ratio == seen.half_width_ratio
    assert back.widened_ratio == seen.widened_ratio
    assert back.time_ratio_low == pytest.approx(1 / seen.time_ratio_high, rel=2e-5)


@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.7, 1.4, 2.0]), st.sampled_from([-1, 1]))
def test_a_huge_effect_survives_a_warm_up_of_3_percent(
    cell, seed: int, ratio: float, side: int
) -> None:
    sessions = cell(seed, ratios=(1, 1, ratio), warmup=(0, 0, side * 0.03), noise=0.005)
    found = compare(sessions, LABELS, 2, 0, rules=RULES)
    assert found.verdict == ("faster" if ratio < 1 else "slower")
    assert gate_state(found, "warmup") == "warning"
    small = cell(seed, ratios=(1, 1, 1 + (ratio > 1) / 50 - 0.01), warmup=(0, 0, side * 0.03),
                 noise=0.001)  # fmt: skip
    assert compare(small, LABELS, 2, 0, rules=RULES).verdict == "void"


@pytest.mark.parametrize(
    ("label", "state", "void"),
    [("int8", "failed", True), ("fp32", "failed", True), ("fp32 again", "failed", True),
     ("int8", "warning", False), ("int8", "not_observable", False), ("int8", "passed", False)],
)  # fmt: skip
def test_gates_from_outside(cell, label: str, state: str, void: bool) -> None:
    gate = Gate("precision", state, "3 sites ran in fp32")
    verdict = judge(cell(3, ratios=(1, 1, 0.5)), extra_gates={label: [gate]})
    (comparison,) = verdict.comparisons
    assert gate in comparison.gates
    assert (comparison.verdict == "void") == void
    assert (gate.detail in comparison.reason) == void


def test_bad_arguments_are_refused(cell) -> None:
    sessions = cell(3)
    with pytest.raises(ValueError, match="bf16"):
        judge(sessions, extra_gates={"bf16": []})
    with pytest.raises(ValueError, match="has 3 labels, the cell 2"):
        judge_cell(sessions, LABELS[:2], rules=RULES)
    with pytest.raises(ValueError, match="differ"):
        judge_cell(sessions, ("a", "a", "b"), rules=RULES)
    with pytest.raises(ValueError, match="not two"):
        judge_cell(sessions, LABELS, rules=RULES, hidden=0)
    with pytest.raises(ValueError, match="not two"):
        compare(sessions, LABELS, 5, rules=RULES)
    with pytest.raises(ValueError, match="at least one"):
        compare(sessions, LABELS, 2, rules=RULES, comparisons=0)
