from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitworth.verdict import (
    Interval,
    SessionBlocks,
    TimingRules,
    blocks_from_samples,
    detectable,
    session_estimate,
    sessions_to_settle,
    t_interval,
)
from bitworth.verdict.estimate import hodges_lehmann

RULES = TimingRules()


def with_values(blocks: SessionBlocks, values: np.ndarray) -> SessionBlocks:
    return SessionBlocks(blocks.order, values, blocks.first_half_ns, blocks.second_half_ns)


def test_blocks_from_samples_reduces_to_medians() -> None:
    blocks = blocks_from_samples([[0, 1], [1, 0]], [[[4, 2, 3, 9, 8], [7]], [[], [5, 6]]])
    np.testing.assert_array_equal(blocks.value_ns, [[4, 7], [np.nan, 5.5]])
    np.testing.assert_array_equal(blocks.first_half_ns, [[3, np.nan], [np.nan, 5]])
    np.testing.assert_array_equal(blocks.second_half_ns, [[8.5, np.nan], [np.nan, 6]])
    np.testing.assert_array_equal(blocks.by_label(blocks.value_ns), [[4, 7], [5.5, np.nan]])


def test_a_sample_that_is_not_positive_spoils_its_block() -> None:
    blocks = blocks_from_samples([[0, 1]], [[[5, -3, 6], [0, 4]]])
    np.testing.assert_array_equal(blocks.value_ns, [[-3, 0]])
    assert np.all(np.isnan(blocks.first_half_ns))
    assert math.isnan(session_estimate(blocks, 1))


def test_rounds_that_were_not_reached_are_missing() -> None:
    blocks = blocks_from_samples([[0, 1], [1, 0], [0, 1]], [[[2], [4]]])
    assert math.isnan(session_estimate(blocks, 1))  # one round of three
    blocks = blocks_from_samples([[0, 1], [1, 0]], [[[2], [4]]])
    assert session_estimate(blocks, 1) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("order", "samples", "message"),
    [
        ([[0, 1]], [[[1]]], "has 1 blocks"),
        ([[0, 1]], [[[1], [1]], [[1], [1]]], "2 rounds of samples"),
        ([[0, 0]], [[[1], [1]]], "once"),
        ([[0, 2]], [[[1], [1]]], "once"),
        ([0, 1], [], "shape"),
    ],
)
def test_malformed_sessions_are_refused(order: list, samples: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blocks_from_samples(order, samples)


def test_shapes_must_agree_and_labels_exist(cell) -> None:
    (blocks,) = cell(0, sessions=1)
    with pytest.raises(ValueError, match="value_ns"):
        with_values(blocks, blocks.value_ns[:, :1])
    with pytest.raises(ValueError, match="label 3"):
        session_estimate(blocks, 3)
    with pytest.raises(ValueError, match="label -1"):
        session_estimate(blocks, 1, -1)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=25))
def test_hodges_lehmann_is_the_median_of_pairwise_means(values: list[float]) -> None:
    pairs = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)]
    assert hodges_lehmann(np.array(values)) == pytest.approx(float(np.median(pairs)), abs=1e-9)


@pytest.mark.parametrize("model", ["normal", "spikes", "ar", "drift", "position", "session bias"])
@pytest.mark.parametrize("ratios", [(1, 1, 0.5), (1, 1, 0.6, 2.0), (1, 1.03)])
def test_known_ratios_are_recovered(cell, model: str, ratios: tuple[float, ...]) -> None:
    sessions = cell(5, ratios=ratios, sessions=200, model=model)
    label = len(ratios) - 1
    mean = np.mean([session_estimate(blocks, label) for blocks in sessions])
    assert mean == pytest.approx(math.log(ratios[label]), abs=0.006)


def test_position_effects_vanish_without_other_noise(cell) -> None:
    (blocks,) = cell(1, ratios=(1, 1, 0.3, 4), sessions=1, model="position", noise=0)
    assert session_estimate(blocks, 2) == pytest.approx(math.log(0.3), abs=1e-12)
    assert session_estimate(blocks, 3) == pytest.approx(math.log(4), abs=1e-12)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.sampled_from(["normal", "spikes", "drift"]))
def test_scaling_all_times_changes_nothing(cell, seed: int, factor: float, model: str) -> None:
    (blocks,) = cell(seed, ratios=(1, 1.2, 0.7), sessions=1, model=model)
    scaled = with_values(blocks, blocks.value_ns * factor)
    for label in (1, 2):
        expected = session_estimate(blocks, label)
        assert session_estimate(scaled, label) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 10**6), st.floats(0, 0.3))
def test_swapping_labels_gives_the_reciprocal(cell, seed: int, missing: float) -> None:
    (blocks,) = cell(seed, ratios=(1, 1.2, 0.7), sessions=1)
    values = blocks.value_ns.copy()
    values[np.random.default_rng(seed).random(values.shape) < missing] = np.nan
    holed = with_values(blocks, values)
    forth, back = session_estimate(holed, 2, 0), session_estimate(holed, 0, 2)
    assert math.isnan(forth) if math.isnan(back) else forth == -back


@pytest.mark.parametrize("bad", [np.nan, 0.0, -5.0, np.inf, -np.inf])
def test_missing_blocks_leave_rounds_out(cell, bad: float) -> None:
    (blocks,) = cell(2, ratios=(1, 1, 0.5), sessions=1, noise=0.001)
    values = blocks.by_label(blocks.value_ns)
    rows = blocks.rounds
    for count, usable in ((rows // 2, True), (rows // 2 + 1, False), (rows, False)):
        holed = values.copy()
        holed[:count, 2] = bad
        by_position = np.take_along_axis(holed, blocks.order, axis=1)
        estimate = session_estimate(with_values(blocks, by_position), 2)
        assert math.isfinite(estimate) == usable
        if usable:
            assert estimate == pytest.approx(math.log(0.5), abs=0.002)


def test_a_session_without_rounds_has_no_estimate() -> None:
    empty = np.empty((0, 2))
    blocks = SessionBlocks(empty.astype(np.int64), empty, empty, empty)
    assert math.isnan(session_estimate(blocks, 1))


def test_t_interval_matches_scipy() -> None:
    values = [0.01, 0.03, -0.02, 0.015, 0.0, 0.02]
    low, high = stats.t.interval(0.965, 5, np.mean(values), stats.sem(values))
    interval = t_interval(values, 0.035)
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert interval.half_width == pytest.approx((high - low) / 2)
    assert interval.n == 6


def test_t_interval_edges() -> None:
    assert t_interval([0.1], 0.05) == Interval(0.1, -math.inf, math.inf, math.inf, 1)
    assert t_interval([0.25] * 6, 0.05).half_width == 0
    for values in ([], [0.1, math.nan], [math.inf, 0.1]):
        with pytest.raises(ValueError, match="finite"):
            t_interval(values, 0.05)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            t_interval([0.1, 0.2], alpha)


@pytest.mark.parametrize("n", [6, 12, 60])
@pytest.mark.parametrize("comparisons", [1, 2, 9])
def test_detectable_effect_has_the_stated_power(n: int, comparisons: int) -> None:
    alpha = RULES.alpha / comparisons
    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    # What records of a spread of 1 state on average: their standard deviation is a chi value.
    mean_deviation = float(stats.chi(n - 1).mean()) / math.sqrt(n - 1)
    effect = detectable(critical * mean_deviation / math.sqrt(n), n, alpha, RULES)
    shift = (effect - math.log1p(RULES.eps)) * math.sqrt(n)
    assert stats.nct.sf(critical, n - 1, shift) == pytest.approx(0.80, abs=1e-4)
    # The formula of the design is its approximation.
    approximate = math.log1p(RULES.eps) + critical / math.sqrt(n) * (
        1 + stats.t.ppf(0.8, n - 1) / critical
    )
    assert effect == pytest.approx(approximate, rel=0.08)
    assert effect >= approximate


def test_detectable_edges() -> None:
    assert detectable(math.inf, 1, 0.035, RULES) == math.inf
    assert detectable(0.0, 6, 0.035, RULES) == pytest.approx(math.log1p(RULES.eps))
    with pytest.raises(ValueError, match="half-width"):
        detectable(-1, 6, 0.035, RULES)


def test_sessions_to_settle() -> None:
    noisy = t_interval([0.10, 0.0, 0.06, -0.02, 0.08, -0.04], 0.035)
    more = sessions_to_settle(noisy, 0.035, RULES)
    assert more is not None
    assert more > 0
    n = noisy.n + more
    deviation = noisy.half_width * math.sqrt(6) / stats.t.ppf(1 - 0.0175, 5)
    half = [stats.t.ppf(1 - 0.0175, m - 1) * deviation / math.sqrt(m) for m in (n - 1, n)]
    assert half[1] < noisy.estimate - math.log1p(RULES.eps) <= half[0]
    assert sessions_to_settle(t_interval([0.1, 0.11, 0.1], 0.035), 0.035, RULES) == 0
    assert sessions_to_settle(t_interval([1.0, -1.0, 0.01], 0.035), 0.035, RULES) is None
    assert sessions_to_settle(t_interval([1.0], 0.035), 0.035, RULES) is None
    assert sessions_to_settle(t_interval([0.0, 0.0], 0.035), 0.035, RULES) == 0


def test_more_spread_needs_more_sessions() -> None:
    needed = [
        sessions_to_settle(Interval(0.03, 0.03 - h, 0.03 + h, h, 6), 0.035, RULES)
        for h in (0.02, 0.03, 0.04, 0.05, 0.06)
    ]
    assert needed == sorted(needed)
    assert needed[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.0}, {"alpha": 1.0}, {"power": 1.0}, {"eps": -0.1}, {"delta": 0.0},
        {"precision": 0.0}, {"min_sessions": 1}, {"max_sessions": 5}, {"eps": math.nan},
    ],
)  # fmt: skip
def test_rules_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        TimingRules(**change)
