from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.timing.bank import Bank, BankSession
from benchmarks.timing.cost import (
    Choice,
    SessionCost,
    jobs_of,
    session_cost,
    sessions_needed,
    settling,
    time_to_reach,
)
from benchmarks.timing.designs import TRIAL_SESSIONS, TRUTH_UNITS, all_designs
from benchmarks.timing.trials import identical_trials, tally, truth_trials
from bitworth.errors import UserError
from bitworth.measurement.timing import TimedPlan
from bitworth.study.timing_stage import split_jobs
from bitworth.verdict import TimingRules, session_schedule, t_interval

RULES = TimingRules()


def make(
    seed: int,
    labels: int = 4,
    ratios: tuple[float, ...] | None = None,
    samples: int = 3,
    noise: float = 0.02,
    settle: float = 0.0,
) -> BankSession:
    """A session whose labels have these ratios; the first sample of a block is slower."""
    generator = np.random.default_rng(seed)
    order = session_schedule(labels, seed=seed, session=0).rounds
    center = 1e6 * np.array(ratios or (1.0,) * labels)
    blocks = tuple(
        tuple(
            tuple(
                round(center[label] * math.exp(x + (settle if i == 0 else 0)))
                for i, x in enumerate(generator.normal(generator.normal(0, noise), 0.001, samples))
            )
            for label in row
        )
        for row in order
    )
    total = sum(sum(b) for row in blocks for b in row)
    return BankSession(
        order=order,
        samples_ns=blocks,
        lead_in=1,
        call_ns=1_000_000,
        wall_ns=total + len(order) * labels * (1_000_000 + 500_000) + 2_000_000_000,
        start_ns=2_000_000_000,
        steal_ratio=0.0,
        others_ratio=0.01,
        failures={},
    )


def test_a_bank_keeps_its_sessions(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.jsonl.gz"
    sessions = [make(seed) for seed in range(3)]
    for session in sessions[:2]:
        Bank(path).add(session)  # each time as a new run would
    assert Bank(path).sessions == sessions[:2]
    bank = Bank(path)
    bank.add(sessions[2])
    assert bank.sessions == Bank(path).sessions == sessions


@pytest.mark.parametrize("broken", ["cut", "text", "another"])
def test_a_broken_bank_is_told(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "a.jsonl.gz"
    Bank(path).add(make(0))
    whole = path.read_bytes()
    if broken == "another":
        import gzip

        path.write_bytes(gzip.compress(b'{"order": [[0]]}\n'))
    else:
        path.write_bytes(whole[:-20] if broken == "cut" else b"no bank")
    with pytest.raises(UserError, match=r"a\.jsonl\.gz"):
        Bank(path)


def test_no_two_trials_share_a_pair_of_a_session() -> None:
    sessions = [make(seed, labels=10) for seed in range(2 * TRIAL_SESSIONS + 3)]
    trials = list(identical_trials(sessions))
    assert len(trials) == 10
    used = [
        (trial.first + i, frozenset((trial.baseline, trial.variant)))
        for trial in trials
        for i in range(TRIAL_SESSIONS)
    ]
    assert len(set(used)) == len(used)
    # Nor do they share a plan of a session: samples of one trial are in no other.
    plans = [(session, label) for session, pair in used for label in pair]
    assert len(set(plans)) == len(plans)


def test_truth_trials_pair_the_units() -> None:
    sessions = [make(seed, labels=len(TRUTH_UNITS)) for seed in range(TRIAL_SESSIONS)]
    for units in (21, 22):
        for trial in truth_trials(sessions, units):
            assert TRUTH_UNITS[trial.baseline] == 20
            assert TRUTH_UNITS[trial.variant] == units
        assert len(list(truth_trials(sessions, units))) == 4


def test_a_tally_sees_a_difference_and_none() -> None:
    ratios = (1.0, 1.3, 1.0, 1.0)
    sessions = [make(seed, ratios=ratios) for seed in range(TRIAL_SESSIONS)]
    first, second = identical_trials(sessions)
    slower, same = tally([first], 1.3, RULES), tally([second], 1.0, RULES)
    assert slower.verdicts == {"slower": 1}
    assert (slower.found, slower.covered, slower.trials) == (1, 1, 1)
    assert slower.one_after_the_other == slower.pooled == 1
    assert same.found == 0
    assert same.covered == 1
    assert tally([first], 1.0, RULES).covered == 0


def test_the_cost_of_a_session_is_taken_apart() -> None:
    sessions = [make(seed, samples=8) for seed in range(30)]
    cost = session_cost(sessions, Choice(2_000_000, 5_000_000))
    assert cost.choice == Choice(2_000_000, 5_000_000)
    assert cost.start_ns == pytest.approx(5e8)
    assert cost.switch_ns == pytest.approx(5e5, rel=0.01)
    # Differences of two labels over 12 rounds with block noise of 2%.
    assert cost.deviation == pytest.approx(0.02 * math.sqrt(2 / 12), rel=0.15)
    assert cost.session_ns(4) == pytest.approx(4 * 5e8 + 48 * 7.5e6, rel=0.01)
    with pytest.raises(ValueError, match="not in this bank"):
        session_cost(sessions, Choice(2_000_000, 9_000_000))


def test_sessions_needed_is_the_first_that_reaches_the_width() -> None:
    n = sessions_needed(0.03, 0.02, RULES.alpha, RULES.min_sessions)
    values = np.array([1.0, -1.0] * n)

    def width(count: int) -> float:
        here = values[: count + count % 2]
        here = here / np.std(here, ddof=1) * 0.03
        return t_interval(here.tolist(), RULES.alpha).half_width

    assert width(2 * (n // 2 + 1)) <= math.log1p(0.02)
    assert width(2 * (n // 2 - 1)) > math.log1p(0.02)
    assert sessions_needed(1e-9, 0.02, RULES.alpha, 6) == 6
    with pytest.raises(ValueError, match="out of reach"):
        sessions_needed(1e3, 0.01, RULES.alpha, 6)


def test_a_narrower_interval_and_more_variants_cost_more() -> None:
    cost = SessionCost(Choice(20_000_000, 20_000_000), 0.03, 10, 3e8, 1e6)
    prices = [time_to_reach(cost, width, 2, RULES)[1] for width in (0.04, 0.02, 0.01)]
    assert prices == sorted(prices)
    assert prices[2] > 3 * prices[1]  # four times as many sessions
    more = [time_to_reach(cost, 0.02, variants, RULES)[1] for variants in (2, 5, 10)]
    assert more == sorted(more)


@pytest.mark.parametrize("variants", [1, 2, 5, 6, 7, 10, 13])
def test_jobs_are_those_of_a_study(variants: int) -> None:
    plans = [TimedPlan(f"v{i}", Path("p"), "fp32") for i in range(variants)]
    baseline = TimedPlan("baseline", Path("p"), "fp32")
    jobs = split_jobs("cell", baseline, [], plans, 1e6, 0)
    assert jobs_of(variants) == tuple(len(job.plans) for job in jobs)


def test_settling_sees_a_slow_start() -> None:
    sessions = [make(seed, samples=9, settle=0.1) for seed in range(4)]
    (first, at_first), *later = settling(sessions, (0, 1_000_000, 1_500_000, 4_000_000, 20_000_000))
    assert first == 1_000_000  # one call was thrown away
    assert at_first == pytest.approx(0.1, abs=0.005)
    assert all(abs(value) < 0.005 for _, value in later)


def test_the_banks_hold_what_the_issue_asks_for() -> None:
    designs = all_designs()
    assert len({d.bank for d in designs}) == len(designs)
    alike = [d for d in designs if d.bank.startswith("identical")]
    assert sum(d.sessions // TRIAL_SESSIONS * (d.labels // 2) for d in alike) == 200
    (truth,) = (d for d in designs if d.units)
    assert truth.sessions // TRIAL_SESSIONS * 4 == 100
    assert replace(truth, units=()).labels == len(TRUTH_UNITS)
