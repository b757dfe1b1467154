"""What stopping on precision costs: a study's own rule, on machines whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.timing.sequential import one_after_the_other, pooled
from benchmarks.timing.synthetic import RULES, judged, trial_scripts
from benchmarks.timing.synthetic_machine import (
    Cell,
    as_blocks,
    play_session,
    variant_names,
)
from bitworth.engines.mock_clock import ClockScript
from bitworth.verdict import TimingRules, settled

#: Block noise at which a precision of 2% takes 10 to 20 sessions: where stopping matters most.
LOUD = 0.075


@dataclass(frozen=True)
class Stopping:
    """Identical plans timed until the study's rule stops.

    Attributes:
        trials: studies.
        false_verdicts: studies that called faster or slower.
        covered: studies whose interval holds a ratio of 1.
        void: studies that a gate voided.
        sessions: 10th, 50th and 90th percentile of the sessions that they took.
        pooled_false: studies in which Welch's t finds a difference in all of these samples.
        halved_false: the same for the first half of the sessions against the second.
    """

    trials: int
    false_verdicts: int
    covered: int
    void: int
    sessions: tuple[float, float, float]
    pooled_false: int
    halved_false: int


def play_until_settled(script: ClockScript, rules: TimingRules = RULES) -> Cell:
    """A cell of identical plans, timed until ``settled`` says that it may stop."""
    labels = variant_names(1)
    sessions = [play_session(script, labels, 0)]
    blocks = [as_blocks(sessions[0])]
    while not settled(blocks, labels, rules):
        sessions.append(play_session(script, labels, len(sessions)))
        blocks.append(as_blocks(sessions[-1]))
    return Cell(labels, tuple(sessions), tuple(blocks))


def stopping(
    trials: int, seed: int, block_sigma: float = LOUD, rules: TimingRules = RULES
) -> Stopping:
    """Run studies of identical plans under a rule, from 6 to 60 sessions.

    Args:
        trials: studies, at least 1.
        seed: of all of them.
        block_sigma: the machine's block noise.
        rules: stop on precision, or with ``until_settled`` on a verdict.
    """
    false = covered = void = pooled_false = halved_false = 0
    taken = []
    for script in trial_scripts("normal", trials, seed, RULES.max_sessions):
        cell = play_until_settled(replace(script, block_sigma=block_sigma), rules)
        comparison = judged(cell, rules)
        low, high = comparison.time_ratio_low, comparison.time_ratio_high
        false += comparison.verdict in ("faster", "slower")
        void += comparison.verdict == "void"
        covered += low is not None and high is not None and low <= 1 <= high
        taken.append(len(cell.sessions))
        a, b = cell.samples(0), cell.samples(2)
        pooled_false += pooled(a, b).verdict != "no difference"
        halved_false += one_after_the_other(a, b).verdict != "no difference"
    low, middle, high = (float(q) for q in np.percentile(taken, (10, 50, 90)))
    return Stopping(trials, false, covered, void, (low, middle, high), pooled_false, halved_false)
