"""Quantiles in the tail: of one label, and of two against each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.verdict import (
    SessionBlocks,
    TimingRules,
    blocks_from_samples,
    compare,
    judge_cell,
    label_samples,
    quantile_interval,
    session_estimate,
    session_schedule,
)
from bitworth.verdict.blocks import sample_quantile

RULES = TimingRules()
LABELS = ("fp32", "fp32 again", "int8")


def drawn(
    generator: np.random.Generator, session: int, ratios=(1.0, 1.0, 1.0), tail=(1.0, 1.0, 1.0),
    samples: int = 20, spikes: float = 0.03,
):  # fmt: skip
    """Order and samples of one session; ``tail`` stretches a label's spikes alone."""
    k = len(ratios)
    order = session_schedule(k, seed=3, session=session).rounds
    rows = []
    for row in order:
        blocks = []
        for label in row:
            hit = generator.random(samples) < spikes
            extra = np.where(hit, generator.exponential(0.3, samples) * tail[label], 0)
            logs = np.log(1e6 * ratios[label]) + generator.normal(0, 0.03, samples) + extra
            blocks.append(np.rint(np.exp(logs)).astype(int).tolist())
        rows.append(blocks)
    return order, rows


def cell(seed: int, sessions: int = 6, quantile: float | None = 0.99, **how):
    generator = np.random.default_rng(seed)
    return [
        blocks_from_samples(*drawn(generator, i, **how), quantile=quantile) for i in range(sessions)
    ]


def test_the_estimate_is_the_ratio_of_the_labels_quantiles() -> None:
    order, samples = drawn(np.random.default_rng(1), 0, ratios=(1, 1, 1.3))
    blocks = blocks_from_samples(order, samples, quantile=0.9)
    by_label = [
        [x for row, at in zip(samples, order, strict=True)
         for block, i in zip(row, at, strict=True) if i == label for x in block]
        for label in range(3)
    ]  # fmt: skip
    assert [sorted(label_samples(order, samples, i)) for i in range(3)] == [
        sorted(values) for values in by_label
    ]
    expected = [np.quantile(values, 0.9, method="median_unbiased") for values in by_label]
    assert session_estimate(blocks, 2) == pytest.approx(math.log(expected[2] / expected[0]))
    assert session_estimate(blocks, 2, 1) == pytest.approx(math.log(expected[2] / expected[1]))
    # The blocks themselves are those of medians, for the checks.
    plain = blocks_from_samples(order, samples)
    np.testing.assert_array_equal(blocks.value_ns, plain.value_ns)
    assert plain.tail_ns is None


def test_a_longer_tail_is_found_though_the_medians_agree() -> None:
    how = {"tail": (1, 1, 3.0), "samples": 64, "sessions": 12}
    (median,) = judge_cell(cell(2, quantile=None, **how), LABELS, rules=RULES).comparisons
    (tail,) = judge_cell(cell(2, **how), LABELS, rules=RULES).comparisons
    assert median.verdict in ("equivalent", "not distinguishable")
    assert tail.verdict == "slower"
    assert tail.time_ratio > 1.2


def test_checks_of_a_tail() -> None:
    (found,) = judge_cell(cell(2), LABELS, rules=RULES).comparisons
    states = {gate.name: gate.state for gate in found.gates}
    assert states.pop("warmup") == "not_observable"
    assert set(states.values()) == {"passed"}
    # A copy of the baseline with another tail is found as one with another median is.
    biased = judge_cell(cell(2, tail=(1, 4, 1), samples=64, sessions=20), LABELS, rules=RULES)
    assert biased.gates[0].state == "failed"
    assert biased.comparisons[0].verdict == "void"


def test_missing_and_broken_blocks_of_a_tail() -> None:
    order, samples = drawn(np.random.default_rng(1), 0)
    rounds = len(order)
    for lost, known in ((rounds // 2, True), (rounds // 2 + 1, False)):
        holed = [
            [[] if label == 2 and i < lost else block for block, label in zip(row, at, strict=True)]
            for i, (row, at) in enumerate(zip(samples, order, strict=True))
        ]
        estimate = session_estimate(blocks_from_samples(order, holed, 0.99), 2)
        assert math.isfinite(estimate) == known
    sessions = cell(1)
    samples[0][0][3] = -5
    sessions[0] = blocks_from_samples(order, samples, 0.99)
    found = compare(sessions, LABELS, order[0][0], (order[0][0] + 1) % 3, rules=RULES)
    assert {g.name for g in found.gates if g.state == "failed"} == {"clock"}
    assert found.time_ratio is None


def test_quantiles_must_agree_and_lie_between_0_and_1() -> None:
    order, samples = drawn(np.random.default_rng(1), 0)
    for quantile in (0.0, 1.0, -1, math.nan):
        with pytest.raises(ValueError, match="quantile"):
            blocks_from_samples(order, samples, quantile)
    with pytest.raises(ValueError, match="another quantile"):
        judge_cell([*cell(1), *cell(1, quantile=0.5)], LABELS, rules=RULES)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_a_sample_quantile_lies_within_and_scales(values: list[float], quantile: float) -> None:
    array = np.array(values)
    found = sample_quantile(array, quantile)
    assert array.min() <= found <= array.max()
    assert sample_quantile(array * 2, quantile) == pytest.approx(2 * found)
    assert sample_quantile(-array, 1 - quantile) == pytest.approx(-found)


@pytest.mark.parametrize("n", [100, 200, 500])
def test_it_is_about_median_unbiased_in_the_tail(n: int) -> None:
    """Half of all samples give a smaller p99 than the true one; by numpy's default far more do."""
    draws = np.random.default_rng(2).exponential(1, (8000, n))
    true = -math.log(0.01)
    below = np.mean([sample_quantile(row, 0.99) < true for row in draws])
    usual = np.mean(np.quantile(draws, 0.99, axis=1) < true)
    assert abs(below - 0.5) < 0.06
    assert usual > 0.59


@pytest.mark.parametrize("samples", [100, 500])
@pytest.mark.parametrize("spikes", [0.0, 0.03])
def test_a_tail_ratio_keeps_its_error_rates(samples: int, spikes: float) -> None:
    """Few samples of a label in a session widen the interval, and do no more than that."""
    trials, count, false, covered = 400, 6, 0, 0
    generator = np.random.default_rng(samples)
    order = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    blocks = SessionBlocks(order, *(np.ones((3, 3)) for _ in range(3)))
    shape = (trials, count, 3, samples)
    logs = generator.normal(0, 0.03, shape) + generator.normal(0, 0.005, (*shape[:-1], 1))
    logs += np.where(generator.random(shape) < spikes, generator.exponential(0.3, shape), 0)
    tails = np.apply_along_axis(sample_quantile, -1, np.exp(logs), 0.99) * np.array([1, 1, 1.1])
    for trial in tails:
        sessions = [replace(blocks, quantile=0.99, tail_ns=row) for row in trial]
        same, other = (compare(sessions, LABELS, label, 0, rules=RULES) for label in (1, 2))
        false += same.verdict in ("faster", "slower")
        covered += other.time_ratio_low <= 1.1 <= other.time_ratio_high
    assert false <= 0.06 * trials
    assert covered >= 0.92 * trials


def test_the_quantiles_of_one_label() -> None:
    generator = np.random.default_rng(5)
    sessions = [np.exp(generator.normal(15 + generator.normal(0, 0.01), 0.1, 500))
                for _ in range(8)]  # fmt: skip
    middle, tail = (quantile_interval(sessions, q, 0.05) for q in (0.5, 0.99))
    assert middle is not None
    assert tail is not None
    assert (tail.quantile, tail.n, tail.samples) == (0.99, 8, 500)
    assert middle.low_ns < math.exp(15) < middle.high_ns
    assert tail.low_ns < math.exp(15 + 0.1 * 2.326) < tail.high_ns
    assert tail.low_ns < tail.value_ns < tail.high_ns
    (one,) = [quantile_interval(sessions[:1], 0.5, 0.05)]
    assert one is not None
    assert (one.low_ns, one.high_ns) == (None, None)
    assert quantile_interval([], 0.5, 0.05) is None
    assert quantile_interval([sessions[0], np.empty(0)], 0.5, 0.05) is None


def test_the_interval_of_a_quantile_covers_it() -> None:
    generator = np.random.default_rng(6)
    trials, covered = 300, 0
    for _ in range(trials):
        sessions = [generator.exponential(1, 200) + 1 for _ in range(6)]
        found = quantile_interval(sessions, 0.99, 0.05)
        covered += found.low_ns <= 1 - math.log(0.01) <= found.high_ns
    assert covered >= 0.92 * trials
