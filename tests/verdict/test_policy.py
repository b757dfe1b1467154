from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitworth.verdict import (
    QUALITY_GATE,
    Candidate,
    Comparison,
    Decision,
    Gate,
    MetricLoss,
    Policy,
    TimingRules,
    Verdict,
    decide,
    level,
    looks,
    t_interval,
    worst_cell,
)
from bitworth.verdict.criteria import speed_criterion

RULES = TimingRules()
POLICY = Policy(max_loss=(("accuracy", 0.01),))


def timed(
    low: float, high: float, verdict: Verdict = "faster", gates: tuple[Gate, ...] = ()
) -> Comparison:
    """A comparison whose speed-up has this interval."""
    return Comparison(
        variant="v", baseline="fp32", verdict=verdict, reason="reason",
        time_ratio=(low * high) ** -0.5, time_ratio_low=1 / high, time_ratio_high=1 / low,
        half_width_ratio=(high / low) ** 0.5 - 1, detectable_ratio=1.02, sessions=8,
        more_sessions=0, gates=gates, alpha=RULES.alpha, widened_ratio=0.0,
    )  # fmt: skip


def void(*gates: Gate, more: int | None = None) -> Comparison:
    return replace(timed(1, 1, "void", gates), reason="why", more_sessions=more)


def accuracy(low: float, high: float) -> MetricLoss:
    return MetricLoss("accuracy", (low + high) / 2, low, high, 800)


FAST, SLOW, UNSURE = timed(1.28, 1.34), timed(0.97, 1.01), timed(1.02, 1.09)
KEPT, LOST, UNCLEAR = accuracy(-0.002, 0.006), accuracy(0.03, 0.06), accuracy(-0.001, 0.02)


def one(
    comparison: Comparison | None = FAST, *losses: MetricLoss, policy: Policy = POLICY,
    evidence: bool = True, metric: bool = True, **more: object,
) -> Decision:  # fmt: skip
    candidate = Candidate("int8", comparison, losses, **more)
    decision = decide(
        [candidate], policy, rules=RULES, has_quality_evidence=evidence, has_task_metric=metric
    )
    json.dumps(asdict(decision), allow_nan=False)
    assert decision.sentence.startswith(f"{decision.kind}")
    assert "\n" not in decision.sentence
    assert (decision.variant is None) == (decision.kind != "ship")
    assert bool(decision.settle) == (decision.kind == "undecided")
    return decision


@pytest.mark.parametrize(
    ("comparison", "losses", "kind"),
    [
        (FAST, [KEPT], "ship"),
        (FAST, [LOST], "do not ship"),
        (FAST, [UNCLEAR], "undecided"),
        (FAST, [], "undecided"),
        (SLOW, [KEPT], "do not ship"),
        (SLOW, [LOST], "do not ship"),
        (SLOW, [UNCLEAR], "do not ship"),
        (SLOW, [], "do not ship"),
        (UNSURE, [KEPT], "undecided"),
        (UNSURE, [LOST], "do not ship"),
        (None, [KEPT], "undecided"),
        (None, [LOST], "do not ship"),
        (void(), [KEPT], "undecided"),
        (void(), [LOST], "do not ship"),
        (timed(1.05, 1.2), [accuracy(0, 0.01)], "ship"),  # the limits themselves pass
        (timed(1.0, 1.05), [KEPT], "undecided"),
        (timed(1.0, 1.0499), [KEPT], "do not ship"),
    ],
)
def test_one_variant(comparison: Comparison | None, losses: list[MetricLoss], kind: str) -> None:
    assert one(comparison, *losses).kind == kind


def test_the_sentence_carries_its_numbers() -> None:
    assert one(FAST, KEPT).sentence == (
        "ship int8: speed-up 1.31 (1.28 to 1.34, 8 sessions) against at least 1.05, "
        "accuracy loss 0.002 (-0.002 to 0.006, n = 800) against at most 0.01"
    )
    assert one(SLOW, KEPT).sentence == (
        "do not ship: int8 fails, speed-up 0.9898 (0.97 to 1.01, 8 sessions) against at least 1.05"
    )
    sentence = one(FAST, UNCLEAR).sentence
    assert sentence.startswith("undecided: int8, accuracy loss 0.0095 (-0.001 to 0.02, n = 800)")
    assert "more samples" in sentence
    assert "60 sessions would not settle it" in one(UNSURE, KEPT).sentence
    assert "about 2 more sessions" in one(timed(1.047, 1.1), KEPT).sentence


@pytest.mark.parametrize("widening", [0.0, 0.01])
@pytest.mark.parametrize("rules", [RULES, replace(RULES, until_settled=True)])
def test_sessions_until_the_policy_is_settled_follow_the_rule(
    rules: TimingRules, widening: float
) -> None:
    """As many as the t interval needs to clear the limit, and at a look where there are looks."""
    n, alpha, center = 8, level(rules.alpha, rules), math.log(1.08)
    spread = t_interval([0.04, -0.04] * (n // 2), alpha).half_width
    low, high = (math.exp(center + side * (spread + widening)) for side in (-1, 1))
    comparison = replace(timed(low, high), alpha=alpha, widened_ratio=math.expm1(widening))
    criterion = speed_criterion(Candidate("int8", comparison), 1.05, rules)
    assert criterion.state == "open"
    (more,) = map(int, re.findall(r"about (\d+) more sessions", criterion.text))

    def clears(m: int) -> bool:
        deviation = spread * math.sqrt(n) / stats.t.ppf(1 - alpha / 2, n - 1)
        half = stats.t.ppf(1 - alpha / 2, m - 1) * deviation / math.sqrt(m)
        return half + widening < center - math.log(1.05)

    ends = looks(rules) if rules.until_settled else range(n, rules.max_sessions + 1)
    assert n + more == next(m for m in ends if m > n and clears(m))


def test_more_sessions_do_not_help_where_the_warm_up_reaches_the_limit() -> None:
    comparison = replace(timed(0.98, 1.14), widened_ratio=0.03)
    text = speed_criterion(Candidate("int8", comparison), 1.05, RULES).text
    assert "within the warm-up difference of the limit" in text


def test_an_end_is_never_written_like_the_limit_that_it_misses() -> None:
    text = one(timed(1.0, 1.04999), KEPT).candidates[0].criteria[0].text
    assert "1.04999" in text


def test_void_comparisons() -> None:
    quality = Gate(QUALITY_GATE, "failed", "wrong output")
    other = Gate("aa", "failed", "biased")
    assert one(void(quality), KEPT).kind == "do not ship"
    assert one(void(other), KEPT).kind == "undecided"
    assert one(void(quality, other), KEPT).kind == "do not ship"
    assert one(void(replace(quality, state="passed"), other), KEPT).kind == "undecided"
    assert "add 3 sessions" in one(void(other, more=3), KEPT).sentence
    # A void comparison may carry numbers; they decide nothing.
    assert one(replace(FAST, verdict="void"), KEPT).kind == "undecided"
    assert one(replace(SLOW, verdict="void"), KEPT).kind == "undecided"
    assert one(replace(FAST, time_ratio_low=None), KEPT).kind == "undecided"


def test_a_variant_that_does_not_run_cannot_ship() -> None:
    decision = one(None, KEPT, runs=False, not_run_reason="no FP8 kernel")
    assert decision.kind == "do not ship"
    assert decision.sentence.startswith("do not ship: not run: ")
    assert "(no FP8 kernel)" in decision.sentence


def test_without_quality_evidence() -> None:
    decision = one(FAST, evidence=False, metric=False, policy=Policy())
    assert decision.kind == "undecided"
    assert decision.sentence.startswith("undecided: no quality evidence")
    assert "speed-up 1.31" in decision.sentence
    # Quality cannot rescue a variant that is too slow.
    assert one(SLOW, evidence=False, metric=False, policy=Policy()).kind == "do not ship"
    assert one(UNSURE, evidence=False, metric=False, policy=Policy()).kind == "undecided"
    # Limits on quality that nothing was measured for do not pass.
    strict = Policy(max_rel_l2=0.1)
    assert one(FAST, evidence=False, metric=False, policy=strict, rel_l2=0.0).kind == "undecided"


def test_without_a_task_metric() -> None:
    decision = one(FAST, metric=False, policy=Policy())
    assert decision.kind == "undecided"
    assert decision.sentence.startswith("undecided: no task metric")
    assert one(SLOW, metric=False, policy=Policy()).kind == "do not ship"
    limited = Policy(max_rel_l2=0.05)
    assert one(FAST, metric=False, policy=limited, rel_l2=0.04).kind == "ship"
    assert one(FAST, metric=False, policy=limited, rel_l2=0.06).kind == "do not ship"
    assert one(FAST, metric=False, policy=limited, rel_l2=math.nan).kind == "do not ship"
    assert one(FAST, metric=False, policy=limited).kind == "undecided"


def test_speed_alone_is_no_reason_to_ship() -> None:
    decision = one(FAST, KEPT, policy=Policy())
    assert decision.sentence.startswith("undecided: no quality limit")


def test_error_over_floor() -> None:
    policy = Policy(max_error_over_floor=2.0)
    assert one(FAST, KEPT, policy=policy, error_over_floor=1.9).kind == "ship"
    assert one(FAST, KEPT, policy=policy, error_over_floor=2.1).kind == "do not ship"
    assert one(FAST, KEPT, policy=policy).kind == "undecided"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_open(bad: float) -> None:
    assert one(FAST, replace(KEPT, high=bad)).kind == "undecided"


def several(*candidates: Candidate, policy: Policy = POLICY) -> Decision:
    return decide(candidates, policy, rules=RULES, has_quality_evidence=True, has_task_metric=True)


def passing(name: str, low: float, high: float, loss: float = 0.0, **more: object) -> Candidate:
    lost = MetricLoss("accuracy", loss, loss - 0.002, loss + 0.002, 800)
    return Candidate(name, timed(low, high), (lost,), **more)


def test_the_fastest_of_those_that_pass_ships() -> None:
    decision = several(passing("a", 1.1, 1.15), passing("b", 1.3, 1.4, loss=0.005))
    assert decision.variant == "b"
    assert "as fast" not in decision.sentence


def test_among_equally_fast_ones_the_smaller_loss_ships() -> None:
    decision = several(passing("a", 1.25, 1.35, loss=0.001), passing("b", 1.3, 1.4, loss=0.005))
    assert decision.variant == "a"
    assert "as fast within the intervals: b" in decision.sentence
    # Touching the best lower bound counts as reaching it; staying under it does not.
    touching = several(passing("a", 1.2, 1.3), passing("b", 1.3, 1.4, loss=0.005))
    assert touching.variant == "a"
    apart = several(passing("a", 1.2, 1.299), passing("b", 1.3, 1.4, loss=0.005))
    assert apart.variant == "b"


def test_then_error_then_bytes_then_speed_then_order() -> None:
    def pick(a: dict[str, object], b: dict[str, object]) -> str | None:
        return several(passing("a", 1.29, 1.39, **a), passing("b", 1.3, 1.4, **b)).variant

    assert pick({"rel_l2": 0.1}, {"rel_l2": 0.2, "plan_bytes": 1}) == "a"
    assert pick({"plan_bytes": 10}, {"plan_bytes": 20}) == "a"
    assert pick({"plan_bytes": 10}, {}) == "a"
    assert pick({}, {}) == "b"
    assert several(passing("a", 1.3, 1.4), passing("b", 1.3, 1.4)).variant == "a"


def test_one_that_passes_ships_beside_failed_and_open_ones() -> None:
    decision = several(
        Candidate("slow", SLOW, (KEPT,)), Candidate("open", timed(1.9, 2.0), ()),
        passing("good", 1.1, 1.2),
    )  # fmt: skip
    assert (decision.kind, decision.variant) == ("ship", "good")
    assert [item.state for item in decision.candidates] == ["fail", "open", "pass"]


def test_failed_and_open_ones_are_undecided() -> None:
    decision = several(Candidate("slow", SLOW, (KEPT,)), Candidate("open", FAST, (UNCLEAR,)))
    assert decision.kind == "undecided"
    assert "slow fails" in decision.sentence
    all_failed = several(Candidate("slow", SLOW, (KEPT,)), Candidate("lossy", FAST, (LOST,)))
    assert all_failed.kind == "do not ship"
    assert "slow fails, speed-up" in all_failed.sentence
    assert "lossy fails, accuracy loss" in all_failed.sentence


def test_no_candidates_and_equal_names() -> None:
    assert several().sentence == "undecided: no variant was studied"
    with pytest.raises(ValueError, match="share a name"):
        several(passing("a", 1.1, 1.2), passing("a", 1.1, 1.2))


@pytest.mark.parametrize(
    "change",
    [
        {"min_speedup": 0.0}, {"min_speedup": math.nan}, {"max_rel_l2": math.inf},
        {"max_loss": (("a", math.nan),)}, {"max_loss": (("a", 0.1), ("a", 0.2))},
    ],
)  # fmt: skip
def test_bad_policies_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Policy(**change)


@given(
    st.floats(0.5, 2), st.floats(1, 1.2), st.floats(-0.05, 0.05), st.floats(0, 0.05),
    st.floats(1, 1.5), st.floats(0, 0.05),
)  # fmt: skip
def test_a_better_variant_never_decides_worse(
    low: float, width: float, loss: float, margin: float, gain: float, less: float
) -> None:
    order = ["do not ship", "undecided", "ship"]
    plain = one(timed(low, low * width), accuracy(loss - margin, loss + margin))
    better = one(
        timed(low * gain, low * width * gain), accuracy(loss - margin - less, loss + margin - less)
    )
    assert order.index(better.kind) >= order.index(plain.kind)


def test_worst_cell() -> None:
    ship, lossy, unsure = one(FAST, KEPT), one(FAST, LOST), one(UNSURE, KEPT)
    assert worst_cell({"a": ship}) is ship
    decision = worst_cell({"a": ship, "b": unsure, "c": lossy})
    assert decision.kind == "do not ship"
    assert decision.sentence.startswith("do not ship: in c, int8 fails")
    assert worst_cell({"a": ship, "b": unsure}).sentence.startswith("undecided: in b, int8")
    with pytest.raises(ValueError, match="without cells"):
        worst_cell({})


def test_cells_that_all_ship_share_a_variant() -> None:
    first = several(passing("a", 1.1, 1.2), passing("b", 1.5, 1.6))
    second = several(passing("a", 1.3, 1.4), Candidate("b", SLOW, (KEPT,)))
    decision = worst_cell({"x": first, "y": second})
    assert (decision.kind, decision.variant) == ("ship", "a")
    assert "at least 1.1 in the worst, x (speed-up" in decision.sentence
    third = several(Candidate("a", SLOW, (KEPT,)), passing("b", 1.5, 1.6))
    none = worst_cell({"y": second, "z": third})
    assert none.kind == "undecided"
    assert none.sentence == ("undecided: no variant passes in every cell: y ships a, z ships b")
    assert none.settle
