"""Whether a record's detectable effect is the one that its method detects four times in five."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.timing.sequential import one_after_the_other, pooled
from benchmarks.timing.synthetic import RULES, trial_scripts
from benchmarks.timing.synthetic_machine import Cell, play_cell
from bitworth.verdict import Comparison, judge_cell

#: Effects of a power curve, over the predicted detectable effect. The first is the prediction.
STEPS = (1.0, 0.8, 0.9, 1.1, 1.2)
#: The same where one cell holds nine variants.
NINE_STEPS = (1.0, 0.7, 0.8, 0.85, 0.9, 1.1, 1.15, 1.2, 1.3)


@dataclass(frozen=True)
class CurvePoint:
    """Detections among trials at one true ratio."""

    time_ratio: float
    detected: int
    trials: int


@dataclass(frozen=True)
class Power:
    """Power at the predicted detectable effect.

    Attributes:
        comparisons: variants of a cell.
        sessions: sessions of a cell.
        predicted_ratio: mean detectable ratio that records of identical plans state.
        detected: trials at that ratio that were called slower.
        trials: how many.
        void: trials that a gate voided; they count as not detected.
        low, high: Clopper-Pearson interval of the rate of detection at 95%.
        observed_ratio: ratio that is detected with the rules' power, from the power curve.
        curve: detections over true ratios.
        pooled_detected, halved_detected: trials at the predicted ratio that Welch's t calls
            slower, on all samples and on one half of the sessions against the other.
    """

    comparisons: int
    sessions: int
    predicted_ratio: float
    detected: int
    trials: int
    void: int
    low: float
    high: float
    observed_ratio: float
    curve: tuple[CurvePoint, ...]
    pooled_detected: int
    halved_detected: int

    @property
    def error(self) -> float:
        """Predicted over observed effect, less 1."""
        return (self.predicted_ratio - 1) / (self.observed_ratio - 1) - 1

    @property
    def passed(self) -> bool:
        """Whether the interval holds the stated power and the prediction is within 20%."""
        return self.low <= RULES.power <= self.high and abs(self.error) <= 0.20


def predicted_ratio(comparisons: int, sessions: int, trials: int, seed: int) -> float:
    """Mean detectable ratio that cells of identical plans state."""
    stated: list[float] = []
    for script in trial_scripts("normal", trials, seed, comparisons, sessions):
        judged = _judged(play_cell(script, (1.0,) * comparisons, sessions))
        stated += [comparison.detectable_ratio or math.inf for comparison in judged]
    return float(np.mean(stated))


def power(comparisons: int, sessions: int, trials: int, seed: int) -> Power:
    """Measure the rate of detection at the effect that records predict, and around it.

    Args:
        comparisons: 1, or 9: a cell then holds a whole power curve.
        sessions: of a cell.
        trials: cells at the predicted effect; with one comparison, half as many at each other.
        seed: of all of them.
    """
    # As many cells as trials: the error of a mean of few would be taken for one of the method.
    predicted = predicted_ratio(comparisons, sessions, max(20, trials // comparisons), seed)
    groups: list[tuple[tuple[float, ...], int]] = [(NINE_STEPS[:comparisons], trials)]
    if comparisons == 1:
        groups = [((step,), trials if step == 1 else trials // 2) for step in STEPS]
    curve: list[CurvePoint] = []
    void = pooled_detected = halved_detected = 0
    for index, (steps, count) in enumerate(groups):
        ratios = tuple(1 + step * (predicted - 1) for step in steps)
        found = [0] * len(ratios)
        for script in trial_scripts("normal", count, seed, comparisons, sessions, 1 + index):
            cell = play_cell(script, ratios, sessions)
            verdicts = [comparison.verdict for comparison in _judged(cell)]
            for i, verdict in enumerate(verdicts):
                found[i] += verdict == "slower"
            if index == 0:
                void += verdicts[0] == "void"
                a, b = cell.samples(0), cell.samples(2)
                pooled_detected += pooled(a, b).verdict == "slower"
                halved_detected += one_after_the_other(a, b).verdict == "slower"
        curve += [CurvePoint(r, f, count) for r, f in zip(ratios, found, strict=True)]
    interval = stats.binomtest(curve[0].detected, trials).proportion_ci(0.95)
    return Power(
        comparisons=comparisons,
        sessions=sessions,
        predicted_ratio=predicted,
        detected=curve[0].detected,
        trials=trials,
        void=void,
        low=float(interval.low),
        high=float(interval.high),
        observed_ratio=detected_ratio(curve, RULES.power),
        curve=tuple(sorted(curve, key=lambda point: point.time_ratio)),
        pooled_detected=pooled_detected,
        halved_detected=halved_detected,
    )


def detected_ratio(curve: Sequence[CurvePoint], target: float) -> float:
    """The ratio at which a power curve reaches ``target``: a line through its normal scores.

    Raises ValueError for fewer than two points.
    """
    if len(curve) < 2:
        raise ValueError("a line needs two points")
    trials = np.array([point.trials for point in curve], dtype=np.float64)
    # Half a trial keeps the score of none or all finite.
    rate = (np.array([point.detected for point in curve]) + 0.5) / (trials + 1)
    score = stats.norm.ppf(rate)
    weight = np.sqrt(trials / (rate * (1 - rate))) * stats.norm.pdf(score)
    ratio = np.array([point.time_ratio for point in curve])
    slope, start = np.polyfit(ratio, score, 1, w=weight)
    return float((stats.norm.ppf(target) - start) / slope)


def _judged(cell: Cell) -> tuple[Comparison, ...]:
    return judge_cell(cell.blocks, cell.labels, rules=RULES).comparisons
