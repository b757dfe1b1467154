"""Error rates on machines whose truth is known: identical plans, and plans a known ratio apart.

Every trial is a cell of its own: sessions of the scripted machine through the session loop, judged
as a study is. Beside it stand Welch's t on the same samples, pooled or halved into a fixed order,
and on a run of that machine in which the variant truly came after the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.timing.sequential import SequentialResult, one_after_the_other, pooled, welch
from benchmarks.timing.synthetic_machine import NOISE, Cell, play_cell, play_fixed_order
from bitworth.engines.mock_clock import ClockScript
from bitworth.verdict import Comparison, TimingRules, judge_cell

RULES = TimingRules()
SESSIONS = 6
#: k of the injected truths (k + 1) / k: 0.5, 1, 2, 5 and 10%.
UNITS = (200, 100, 50, 20, 10)
#: Most false verdicts on identical plans, and least coverage, as shares of the trials.
FALSE_LIMIT = 0.06
COVERAGE_LIMIT = 0.92


@dataclass(frozen=True)
class SequentialCounts:
    """Of how many trials something holds, for each sequential arrangement.

    Attributes:
        pooled: all samples of both labels, taken as independent.
        halved: the baseline's samples of the first half of the sessions, the variant's of the
            second.
        fixed_order: as many samples of the same machine, where one label ran after the other.
    """

    pooled: int
    halved: int
    fixed_order: int


@dataclass(frozen=True)
class IdenticalPlans:
    """Verdicts on plans that do not differ; ``sequential`` counts the false ones of Welch's t."""

    noise: str
    trials: int
    faster: int
    slower: int
    equivalent: int
    not_distinguishable: int
    void: int
    sequential: SequentialCounts

    @property
    def false_verdicts(self) -> int:
        """Trials that were called faster or slower."""
        return self.faster + self.slower

    @property
    def passed(self) -> bool:
        """Whether the false verdicts are within the limit."""
        return self.false_verdicts <= FALSE_LIMIT * self.trials


@dataclass(frozen=True)
class InjectedTruth:
    """How often an interval holds the true ratio.

    Attributes:
        noise: the machine's.
        time_ratio: the truth, (k + 1) / k.
        trials: cells.
        covered: cells whose interval holds it.
        half_width_ratio: median half-width of these intervals as a fraction.
        sequential: the same count for the intervals of Welch's t at 95%.
    """

    noise: str
    time_ratio: float
    trials: int
    covered: int
    half_width_ratio: float
    sequential: SequentialCounts

    @property
    def passed(self) -> bool:
        """Whether the coverage is at least the limit."""
        return self.covered >= COVERAGE_LIMIT * self.trials


def trial_scripts(noise: str, trials: int, seed: int, *purpose: int) -> Iterator[ClockScript]:
    """Scripts of one kind of noise that differ in their seed.

    No two kinds and no two purposes share one, so that their results are independent.
    """
    kind = list(NOISE).index(noise)
    for trial in range(trials):
        state = np.random.SeedSequence((seed, kind, trial, *purpose)).generate_state(1)
        yield replace(NOISE[noise], seed=int(state[0]))


def judged(cell: Cell, rules: TimingRules = RULES) -> Comparison:
    """The verdict on the first variant of a cell."""
    return judge_cell(cell.blocks, cell.labels, rules=rules).comparisons[0]


def sequential_results(cell: Cell, script: ClockScript, ratio: float) -> tuple[
    SequentialResult, SequentialResult, SequentialResult
]:  # fmt: skip
    """Welch's t on a cell's first variant: pooled, halved, and in a true fixed order."""
    baseline, variant = cell.samples(0), cell.samples(2)
    blocks = sum(len(session.order) for session in cell.sessions)
    return (
        pooled(baseline, variant),
        one_after_the_other(baseline, variant),
        welch(*play_fixed_order(script, ratio, blocks)),
    )


def count_sequential(
    results: Iterable[tuple[SequentialResult, ...]], holds: Callable[[SequentialResult], bool]
) -> SequentialCounts:
    """Of how many trials something holds, by arrangement."""
    rows = [[holds(result) for result in row] for row in results]
    return SequentialCounts(*(sum(column) for column in zip(*rows, strict=True)))


def identical_plans(noise: str, trials: int, seed: int) -> IdenticalPlans:
    """Judge cells of identical plans.

    Args:
        noise: one of ``NOISE``.
        trials: cells of six sessions, at least 1.
        seed: of all of them.
    """
    counts = dict.fromkeys(("faster", "slower", "equivalent", "not distinguishable", "void"), 0)
    results = []
    for script in trial_scripts(noise, trials, seed):
        cell = play_cell(script, (1.0,), SESSIONS)
        counts[judged(cell).verdict] += 1
        results.append(sequential_results(cell, script, 1.0))
    return IdenticalPlans(
        noise=noise,
        trials=trials,
        faster=counts["faster"],
        slower=counts["slower"],
        equivalent=counts["equivalent"],
        not_distinguishable=counts["not distinguishable"],
        void=counts["void"],
        sequential=count_sequential(results, lambda result: result.verdict != "no difference"),
    )


def injected_truth(noise: str, units: int, trials: int, seed: int) -> InjectedTruth:
    """Judge cells whose variant does ``units`` + 1 units of work for the baseline's ``units``.

    Args:
        noise: one of ``NOISE``.
        units: k of the true ratio (k + 1) / k.
        trials: cells of six sessions, at least 1.
        seed: of all of them.
    """
    ratio = (units + 1) / units
    covered, widths, results = 0, [], []
    for script in trial_scripts(noise, trials, seed, units):
        cell = play_cell(script, (ratio,), SESSIONS)
        comparison = judged(cell)
        low, high = comparison.time_ratio_low, comparison.time_ratio_high
        covered += low is not None and high is not None and low <= ratio <= high
        widths.append(comparison.half_width_ratio or math.inf)
        results.append(sequential_results(cell, script, ratio))
    return InjectedTruth(
        noise=noise,
        time_ratio=ratio,
        trials=trials,
        covered=covered,
        half_width_ratio=float(np.median(widths)),
        sequential=count_sequential(results, lambda result: result.low <= ratio <= result.high),
    )
