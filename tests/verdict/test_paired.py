from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar

from bitworth.verdict import binary_loss, mean_loss, ratio_loss, resolvable_loss, tango_interval

Z2 = stats.norm.ppf(0.975) ** 2


def test_tango_published_example() -> None:
    # Tango (1998), section 6.1: soft contact lenses, 43 / 0 / 1 / 0 of 44, lower end of the 90%
    # interval -0.096.
    _, low, _ = tango_interval(43, 0, 1, 0, level=0.90)
    assert low == pytest.approx(-0.096, abs=5e-4)


@pytest.mark.parametrize(
    ("b", "c", "n", "level", "low", "high"),
    [
        # R's PropCIs::scoreci.mp, as printed in public records of its output.
        (60, 20, 1000, 0.95, 0.0231, 0.0584),
        (48, 41, 549, 0.90, -0.0157, 0.0414),
    ],
)
def test_tango_matches_another_implementation(
    b: int, c: int, n: int, level: float, low: float, high: float
) -> None:
    assert tango_interval(n - b - c, b, c, 0, level)[1:] == pytest.approx((low, high), abs=6e-5)


def brute_force(b: int, c: int, n: int, z: float) -> tuple[float, float]:
    """Invert the score test on a grid, with the likelihood maximised numerically."""

    def accepted(delta: float) -> bool:
        def loss(q: float) -> float:
            terms = ((b, q + delta), (c, q), (n - b - c, 1 - 2 * q - delta))
            return -sum(count * math.log(max(p, 1e-300)) for count, p in terms if count)

        lowest, highest = max(0.0, -delta), (1 - delta) / 2
        q = minimize_scalar(
            loss, bounds=(lowest, highest), method="bounded", options={"xatol": 1e-12}
        ).x
        variance = n * (2 * q + delta - delta**2)
        return (b - c - n * delta) ** 2 <= z * z * variance

    grid = np.linspace(-0.999, 0.999, 1999)
    inside = grid[[accepted(float(delta)) for delta in grid]]
    return float(inside[0]), float(inside[-1])


@pytest.mark.parametrize(
    ("b", "c", "n"), [(0, 0, 20), (3, 1, 30), (0, 5, 25), (12, 2, 50), (9, 9, 40), (1, 0, 10)]
)
def test_tango_matches_brute_force_inversion(b: int, c: int, n: int) -> None:
    _, low, high = tango_interval(n - b - c, b, c, 0)
    assert (low, high) == pytest.approx(brute_force(b, c, n, math.sqrt(Z2)), abs=1.1e-3)


COUNTS = st.tuples(*[st.integers(0, 400)] * 4).filter(lambda counts: sum(counts) > 0)


@given(COUNTS, st.floats(0.5, 0.999))
def test_tango_properties(counts: tuple[int, int, int, int], level: float) -> None:
    both, b, c, neither = counts
    estimate, low, high = tango_interval(both, b, c, neither, level)
    n = sum(counts)
    assert estimate == (b - c) / n
    assert -1 <= low <= estimate <= high <= 1
    assert high - low > 0.1 / n
    mirrored = tango_interval(neither, c, b, both, level)
    assert mirrored == pytest.approx((-estimate, -high, -low), abs=1e-12)
    wider = tango_interval(both, b, c, neither, (1 + level) / 2)
    assert wider[1] <= low + 1e-12
    assert wider[2] >= high - 1e-12
    # More flips to the worse side, more loss.
    worse = tango_interval(both, b + 1, c, max(neither - 1, 0), level)
    if neither:
        assert worse[1] >= low - 1e-12
        assert worse[2] >= high - 1e-12


@pytest.mark.parametrize("n", [1, 8, 800, 10**6])
def test_tango_edges(n: int) -> None:
    none = Z2 / (n + Z2)
    assert tango_interval(n, 0, 0, 0) == pytest.approx((0, -none, none), rel=1e-6)
    estimate, low, high = tango_interval(0, n, 0, 0)
    assert (estimate, high) == (1, 1)
    assert -1 < low < 1
    assert tango_interval(0, 0, n, 0)[1] == -1
    assert tango_interval(0, 0, n, 0)[2] == pytest.approx(-low)


def test_tango_refuses_bad_counts() -> None:
    for counts in ((0, 0, 0, 0), (-1, 2, 0, 0)):
        with pytest.raises(ValueError, match="counts"):
            tango_interval(*counts)
    with pytest.raises(ValueError, match="level"):
        tango_interval(1, 0, 0, 0, level=1.0)


@pytest.mark.parametrize(
    ("p_worse", "p_better"), [(0.02, 0.02), (0.05, 0.01), (0.01, 0.0), (0.2, 0.1)]
)
@pytest.mark.parametrize("n", [100, 800])
def test_tango_covers(p_worse: float, p_better: float, n: int) -> None:
    generator = np.random.default_rng(3)
    rest = 1 - p_worse - p_better
    draws = generator.multinomial(n, [p_worse, p_better, rest], 1500)
    intervals = [tango_interval(int(d), int(b), int(c), 0)[1:] for b, c, d in draws]
    covered = np.mean([low <= p_worse - p_better <= high for low, high in intervals])
    assert covered >= 0.92


def test_binary_loss() -> None:
    baseline = np.array([True] * 90 + [False] * 10)
    variant = baseline.copy()
    variant[:8] = False
    variant[95:97] = True
    result = binary_loss(baseline, variant)
    assert (result.loss, result.n, result.flips, result.method) == (0.06, 100, 10, "tango")
    assert (result.low, result.high) == pytest.approx(tango_interval(82, 8, 2, 8)[1:], rel=1e-5)
    opposite = binary_loss(baseline, variant, better="lower")
    assert opposite.loss == -0.06
    assert opposite.high == -result.low
    same = binary_loss(baseline, baseline)
    assert same.flips == 0
    assert same.high == pytest.approx(Z2 / (100 + Z2), rel=1e-5)


def test_binary_loss_refuses_other_input() -> None:
    yes = np.ones(3, dtype=bool)
    for baseline, variant in ((yes, yes[:2]), (yes[:0], yes[:0]), (yes, np.ones(3))):
        with pytest.raises(ValueError):
            binary_loss(baseline, variant)


def test_resolvable_loss() -> None:
    assert resolvable_loss(800) == pytest.approx(Z2 / (800 + Z2), rel=1e-5)
    assert resolvable_loss(800, flip_rate=0.04) == pytest.approx(0.0146, abs=1e-4)
    sizes = [resolvable_loss(n, flip_rate=0.02) for n in (10, 100, 1000, 10_000)]
    assert sizes == sorted(sizes, reverse=True)
    rates = [resolvable_loss(500, flip_rate=r) for r in (0, 0.01, 0.05, 0.5, 1)]
    assert rates == sorted(rates)
    for n, rate in ((0, 0.0), (5, -0.1), (5, 1.1)):
        with pytest.raises(ValueError):
            resolvable_loss(n, flip_rate=rate)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def test_mean_loss_direction_and_repeatability(rng: np.random.Generator) -> None:
    baseline = rng.normal(30, 2, 200)  # such as PSNR
    variant = baseline - 0.5 + rng.normal(0, 0.3, 200)
    worse = mean_loss(baseline, variant, better="higher")
    assert worse.method == "bca"
    assert worse.loss == pytest.approx(0.5, abs=0.1)
    assert 0 < worse.low < worse.loss < worse.high
    assert mean_loss(baseline, variant, better="higher") == worse
    less = mean_loss(baseline, variant, better="lower")
    assert less.loss == -worse.loss
    assert less.high < 0
    t = stats.ttest_1samp(baseline - variant, 0).confidence_interval()
    assert (worse.low, worse.high) == pytest.approx((t.low, t.high), abs=0.01)


@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_equal_differences_have_no_width_of_zero(shift: float) -> None:
    baseline = np.linspace(0, 1, 50)
    result = mean_loss(baseline, baseline + shift, better="lower", span=2.0)
    margin = 2 * Z2 / (50 + Z2)
    assert (result.loss, result.low, result.high) == pytest.approx(
        (shift, shift - margin, shift + margin), abs=1e-5
    )
    assert result.method == "few changes"
    assert result.flips == (50 if shift else 0)


def test_span_is_taken_from_the_values_when_not_given() -> None:
    values = np.array([3.0, 5.0, 4.0])
    assert mean_loss(values, values, better="higher").high == pytest.approx(
        2 * Z2 / (3 + Z2), rel=1e-5
    )
    zeros = np.zeros(3)
    assert mean_loss(zeros, zeros, better="lower").high == pytest.approx(Z2 / (3 + Z2), rel=1e-5)


@pytest.mark.parametrize("changed", [1, 3, 9])
def test_few_changes_leave_room_for_unseen_ones(changed: int) -> None:
    baseline = np.zeros(800)
    variant = baseline.copy()
    variant[:changed] = 0.2
    result = mean_loss(baseline, variant, better="lower")
    assert result.method == "few changes"
    assert result.flips == changed
    _, low, high = tango_interval(800 - changed, changed, 0, 0)
    assert result.high >= 0.2 * high - 1e-9
    assert result.low <= 0.2 * low + 1e-9


def test_ratio_loss_is_the_ratio_of_sums(rng: np.random.Generator) -> None:
    characters = rng.integers(5, 40, 400).astype(float)
    errors = rng.binomial(characters.astype(int), 0.02).astype(float)
    more = errors + rng.binomial(characters.astype(int), 0.03)
    result = ratio_loss(errors, more, characters, better="lower")
    assert result.loss == pytest.approx((more.sum() - errors.sum()) / characters.sum(), rel=1e-5)
    assert result.low < 0.03 < result.high
    assert result.method == "bca"
    same = ratio_loss(errors, errors, characters, better="lower")
    assert same.low < 0 < same.high
    assert same.flips == 0


def test_differences_in_proportion_to_the_denominators_have_width() -> None:
    characters = np.arange(1.0, 31.0)
    result = ratio_loss(np.zeros(30), characters * 0.1, characters, better="lower")
    assert result.low < 0.1 < result.high


def test_samples_without_denominator_are_allowed(rng: np.random.Generator) -> None:
    denominators = np.array([0.0] * 5 + [10.0] * 20)
    errors = np.where(denominators > 0, rng.integers(0, 3, 25), 0).astype(float)
    result = ratio_loss(np.zeros(25), errors, denominators, better="lower")
    assert result.low <= result.loss <= result.high


def test_large_samples_take_the_percentile_bootstrap(rng: np.random.Generator) -> None:
    change = rng.normal(0.1, 1, 6000)
    result = mean_loss(np.zeros(6000), change, better="lower")
    assert result.method == "percentile"
    assert result.high - result.low == pytest.approx(2 * 1.96 / math.sqrt(6000), rel=0.1)


@given(
    st.lists(
        st.tuples(st.floats(-10, 10), st.sampled_from([0.0, 0.0, 0.5, -0.25, 1.0])),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=40, deadline=None)
def test_no_input_gives_a_width_of_zero_or_a_warning(pairs: list[tuple[float, float]]) -> None:
    baseline = np.array([value for value, _ in pairs])
    variant = baseline + np.array([change for _, change in pairs])
    result = mean_loss(baseline, variant, better="lower")
    assert result.low <= result.loss <= result.high
    assert result.low < result.high


def test_mean_interval_covers(rng: np.random.Generator) -> None:
    # Most samples unchanged, a few a good deal worse: the case of a character error rate.
    covered = 0
    trials = 40
    for seed in range(trials):
        change = np.where(rng.random(400) < 0.05, rng.exponential(0.2, 400), 0)
        result = mean_loss(np.zeros(400), change, better="lower", seed=seed)
        covered += result.low <= 0.01 <= result.high
    assert covered >= 0.85 * trials


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_have_no_loss(bad: float) -> None:
    values = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="not finite"):
        mean_loss(values, np.array([1.0, bad]), better="higher")
    with pytest.raises(ValueError, match="span"):
        mean_loss(values, values, better="higher", span=-1)
    for denominators in (np.zeros(2), np.array([-1.0, 3.0])):
        with pytest.raises(ValueError, match="denominators"):
            ratio_loss(values, values, denominators, better="lower")
    with pytest.raises(ValueError, match="shape"):
        mean_loss(values, values[:1], better="higher")
