from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.timing.sequential import one_after_the_other, pooled, welch


def test_welch_is_the_test_of_that_name() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(100, 3, 40), random.normal(101, 9, 25)
    found = welch(a, b)
    want = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert (found.low - 1) * a.mean() == pytest.approx(want.low)
    assert (found.high - 1) * a.mean() == pytest.approx(want.high)
    assert found.time_ratio == pytest.approx(b.mean() / a.mean())


@pytest.mark.parametrize("shift", [-3.0, -0.2, 0.0, 0.2, 3.0])
def test_the_verdict_is_that_of_the_p_value(shift: float) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        a, b = random.normal(100, 3, 12), random.normal(100 + shift, 3, 12)
        found = welch(a, b)
        significant = stats.ttest_ind(b, a, equal_var=False).pvalue < 0.05
        sign = "slower" if b.mean() > a.mean() else "faster"
        assert found.verdict == (sign if significant else "no difference")
        assert (found.low <= 1 <= found.high) == (found.verdict == "no difference")


def test_its_level_holds_where_samples_are_independent() -> None:
    """So that what it gets wrong on sessions is for want of independence, not for a slip here."""
    random = np.random.default_rng(2)
    false = sum(
        welch(random.normal(100, 3, 50), random.normal(100, 3, 50)).verdict != "no difference"
        for _ in range(1000)
    )
    assert 25 <= false <= 75


def test_samples_without_spread() -> None:
    same = np.full(5, 10.0)
    assert welch(same, same).verdict == "no difference"
    assert welch(same, same * 2).verdict == "slower"
    assert welch(same, same / 2) == welch(same, same / 2, alpha=0.001)


def test_two_samples_at_least() -> None:
    with pytest.raises(ValueError, match="two samples"):
        welch(np.array([1.0]), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="two samples"):
        pooled([], [])


def test_which_samples_count() -> None:
    """The machine slows by 10% a session: only the fixed order takes that for a difference."""
    random = np.random.default_rng(3)
    sessions = [100 * 1.1**i * random.normal(1, 0.001, 8) for i in range(5)]
    other = [100 * 1.1**i * random.normal(1, 0.001, 8) for i in range(5)]
    assert pooled(sessions, other).verdict == "no difference"
    late = one_after_the_other(sessions, other)
    assert late.verdict == "slower"
    # Sessions 3 and 4 over 0 and 1; the middle one is nobody's.
    assert late.time_ratio == pytest.approx(1.1**3, rel=0.002)
    with pytest.raises(ValueError, match="5 sessions of the one label, 4"):
        one_after_the_other(sessions, other[:4])
