"""Looking at verdicts while timing goes on, and what it costs to do so honestly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from bitworth.verdict import TimingRules, level, looks
from bitworth.verdict.looks import TOTAL_PER_ALPHA

RULES = TimingRules(until_settled=True)
ONE_LOOK = TimingRules()


def p_values(
    generator: np.random.Generator, trials: int, ladder: tuple[int, ...]
) -> NDArray[np.float64]:
    """Two-sided p-values of t tests of one true null at each look, shape (trials, looks)."""
    values = generator.standard_normal((trials, ladder[-1]))
    ends = np.array(ladder)
    total = np.cumsum(values, axis=1)[:, ends - 1]
    squares = np.cumsum(values**2, axis=1)[:, ends - 1]
    variance = (squares - total**2 / ends) / (ends - 1)
    statistic = np.abs(total) / np.sqrt(variance * ends)
    return 2 * stdtr(ends - 1, -statistic)


def smallest(seed: int, trials: int, ladder: tuple[int, ...]) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [p_values(generator, 50_000, ladder).min(axis=1) for _ in range(trials // 50_000)]
    )


def test_looks_grow_by_about_half() -> None:
    assert looks(RULES) == (6, 9, 13, 19, 28, 41, 60)


@given(st.integers(2, 100), st.integers(0, 200))
def test_looks_of_any_rules(first: int, more: int) -> None:
    ladder = looks(TimingRules(min_sessions=first, max_sessions=first + more))
    assert (ladder[0], ladder[-1]) == (first, first + more)
    assert list(ladder) == sorted(set(ladder))
    assert len(ladder) <= 2 + math.log((first + more) / first) / math.log(1.5)


@pytest.fixture(scope="module")
def redrawn() -> NDArray[np.float64]:
    return smallest(7, 600_000, looks(RULES))


@pytest.mark.parametrize("comparisons", [1, 2, 3, 5, 10, 20])
def test_the_levels_are_those_of_a_new_draw(redrawn: NDArray[np.float64], comparisons: int) -> None:
    """All looks together miss as often as they may: within 5 standard errors of the draw."""
    share = RULES.alpha / comparisons
    total = share * TOTAL_PER_ALPHA
    missed = float(np.mean(redrawn <= level(share, RULES)))
    assert total == pytest.approx(0.05 / comparisons)
    # Between the stored levels the interpolation adds under 1%.
    assert abs(missed - total) < 5 * math.sqrt(total / redrawn.size) + 0.01 * total


@pytest.mark.parametrize(("first", "last"), [(2, 60), (3, 60), (6, 9), (6, 7), (10, 40), (6, 200)])
def test_other_looks_are_never_too_bold(first: int, last: int) -> None:
    rules = TimingRules(min_sessions=first, max_sessions=last, until_settled=True)
    for comparisons in (1, 4):
        share = rules.alpha / comparisons
        missed = np.mean(smallest(8, 100_000, looks(rules)) <= level(share, rules))
        total = share * TOTAL_PER_ALPHA
        assert missed <= total + 4 * math.sqrt(total / 100_000)


@given(st.floats(1e-6, 0.999))
def test_a_look_is_stricter_than_the_only_one(share: float) -> None:
    assert level(share, ONE_LOOK) == share
    assert 0 < level(share, RULES) <= share
    assert level(share / 2, RULES) < level(share, RULES)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        level(share, RULES)


def play(
    effect: float, deviation: float, ends: tuple[int, ...], alpha: float, trials: int = 4000
) -> tuple[float, float, float]:
    """Stop at the first end with a verdict: rates of faster or slower, of coverage, sessions."""
    values = np.random.default_rng(5).normal(effect, deviation, (trials, 60))
    n = np.array(ends)
    mean = np.cumsum(values, axis=1)[:, n - 1] / n
    squares = np.cumsum(values**2, axis=1)[:, n - 1]
    half = stdtrit(n - 1, 1 - alpha / 2) * np.sqrt((squares / n - mean**2) / (n - 1))
    eps, delta = math.log1p(RULES.eps), math.log1p(RULES.delta)
    low, high = mean - half, mean + half
    same = (low > -delta) & (high < delta)
    differs = ~same & ((low > eps) | (high < -eps))
    done = same | differs
    done[:, -1] = True
    at = (np.arange(trials), done.argmax(axis=1))
    covered = ((low <= effect) & (effect <= high))[at]
    return float(differs[at].mean()), float(covered.mean()), float(n[at[1]].mean())


@pytest.mark.parametrize("deviation", [0.01, 0.04, 0.08])
@pytest.mark.parametrize("effect", [0.0, math.log1p(0.005)])
def test_naive_peeking_errs_and_the_looks_do_not(effect: float, deviation: float) -> None:
    """Truth: no change, or one of eps, that is never to be called faster or slower."""
    false, covered, _ = play(effect, deviation, looks(RULES), level(RULES.alpha, RULES))
    every = tuple(range(RULES.min_sessions, RULES.max_sessions + 1))
    naive, naive_covered, _ = play(effect, deviation, every, RULES.alpha)
    assert false <= 0.04
    assert covered >= 0.95 - 0.01
    assert naive > 2 * false
    assert naive_covered < covered
    if deviation == 0.08:
        assert naive > 0.10
        assert naive_covered < 0.90


def test_a_clear_effect_costs_few_sessions_and_an_unclear_one_all() -> None:
    """At a spread of 4% between sessions, as on a shared machine."""
    ladder, alpha = looks(RULES), level(RULES.alpha, RULES)
    needed = [play(math.log1p(effect), 0.04, ladder, alpha)[2] for effect in (0.10, 0.05, 0.02, 0)]
    assert needed[0] < 7
    assert needed[1] < 13
    assert needed[2] > 35
    assert needed[3] > 55
