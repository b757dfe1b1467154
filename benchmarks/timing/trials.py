"""Cut the banks into trials and judge each as a study would, and as a sequential comparison would.

A trial is six sessions of two plans. Trials of one bank share no pair of plans of a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.bank import BankSession
from benchmarks.timing.designs import TRIAL_SESSIONS, TRUTH_UNITS
from benchmarks.timing.sequential import SequentialResult, one_after_the_other, pooled
from bitworth.verdict import (
    Comparison,
    TimingRules,
    blocks_from_samples,
    compare,
    label_samples,
)

Samples = list[NDArray[np.float64]]


@dataclass(frozen=True)
class Trial:
    """Two plans in some sessions of a bank.

    Attributes:
        first: index of its first session.
        sessions: the sessions.
        baseline: label of the one plan.
        variant: label of the other.
        quantile: what is compared; None for medians.
    """

    first: int
    sessions: tuple[BankSession, ...]
    baseline: int
    variant: int
    quantile: float | None = None

    def judged(self, rules: TimingRules) -> Comparison:
        """The verdict of a study's comparison on these samples, the A/A check of a copy aside."""
        labels = [str(i) for i in range(len(self.sessions[0].order[0]))]
        blocks = [blocks_from_samples(s.order, s.samples_ns, self.quantile) for s in self.sessions]
        return compare(blocks, labels, self.variant, self.baseline, rules=rules)

    def samples(self, label: int) -> Samples:
        """All samples of a label in ns, one array a session."""
        return [label_samples(s.order, s.samples_ns, label) for s in self.sessions]

    def sequential(
        self, arrangement: Callable[[Samples, Samples], SequentialResult]
    ) -> SequentialResult:
        """What a sequential comparison gives on these samples."""
        return arrangement(self.samples(self.baseline), self.samples(self.variant))


def identical_trials(
    sessions: Sequence[BankSession], quantile: float | None = None
) -> Iterator[Trial]:
    """Trials of neighbouring labels: 0 and 1, 2 and 3, ..."""
    pairs = len(sessions[0].order[0]) // 2 if sessions else 0
    yield from _trials(sessions, [(2 * i, 2 * i + 1) for i in range(pairs)], quantile)


def truth_trials(sessions: Sequence[BankSession], units: int) -> Iterator[Trial]:
    """Trials of the labels of so many units against those of the fewest."""
    least = [i for i, u in enumerate(TRUTH_UNITS) if u == min(TRUTH_UNITS)]
    more = [i for i, u in enumerate(TRUTH_UNITS) if u == units]
    yield from _trials(sessions, list(zip(least, more, strict=True)))


def _trials(
    sessions: Sequence[BankSession],
    pairs: Sequence[tuple[int, int]],
    quantile: float | None = None,
) -> Iterator[Trial]:
    for first in range(0, len(sessions) - TRIAL_SESSIONS + 1, TRIAL_SESSIONS):
        group = tuple(sessions[first : first + TRIAL_SESSIONS])
        for baseline, variant in pairs:
            yield Trial(first, group, baseline, variant, quantile)


@dataclass(frozen=True)
class Tally:
    """How many trials got which answer.

    Attributes:
        trials: all of them.
        verdicts: Bitworth's, by name.
        covered: trials whose interval holds the true ratio.
        half_width: median half-width of the interval as a fraction; None without one.
        one_after_the_other, pooled: trials in which the sequential comparison finds a difference.
        one_after_the_other_covered, pooled_covered: trials whose sequential interval holds the
            true ratio.
    """

    trials: int
    verdicts: dict[str, int]
    covered: int
    half_width: float | None
    one_after_the_other: int
    pooled: int
    one_after_the_other_covered: int
    pooled_covered: int

    @property
    def found(self) -> int:
        """Trials called faster or slower."""
        return self.verdicts.get("faster", 0) + self.verdicts.get("slower", 0)


def tally(trials: Sequence[Trial], true_ratio: float, rules: TimingRules) -> Tally:
    """Judge every trial; ``true_ratio`` is the time of the variant over the baseline's."""
    verdicts: Counter[str] = Counter()
    covered = found = together = found_covered = together_covered = 0
    widths = []
    for trial in trials:
        comparison = trial.judged(rules)
        verdicts[comparison.verdict] += 1
        low, high = comparison.time_ratio_low, comparison.time_ratio_high
        covered += low is not None and high is not None and low <= true_ratio <= high
        if comparison.half_width_ratio is not None:
            widths.append(comparison.half_width_ratio)
        apart, mixed = trial.sequential(one_after_the_other), trial.sequential(pooled)
        found += apart.verdict != "no difference"
        together += mixed.verdict != "no difference"
        found_covered += apart.low <= true_ratio <= apart.high
        together_covered += mixed.low <= true_ratio <= mixed.high
    return Tally(
        trials=len(trials),
        verdicts=dict(sorted(verdicts.items())),
        covered=covered,
        half_width=float(np.median(widths)) if widths else None,
        one_after_the_other=found,
        pooled=together,
        one_after_the_other_covered=found_covered,
        pooled_covered=together_covered,
    )
