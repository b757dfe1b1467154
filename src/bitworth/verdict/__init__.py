"""From numbers to a verdict and a decision: pure functions on numpy arrays.

Nothing here reads, writes or keeps state. ``schedule`` says in which order to time, ``settled``
when enough was timed, ``judge_cell`` turns the sessions into verdicts, ``paired`` gives losses of
quality their intervals, ``decide`` applies a policy to both, and ``amdahl_ceiling`` says what
could be reached at most.
"""

from bitworth.verdict.blocks import SessionBlocks, blocks_from_samples, label_samples, per_item
from bitworth.verdict.bounds import amdahl_ceiling, amdahl_total
from bitworth.verdict.comparison import Comparison, RatioInterval, Verdict, classify, compare
from bitworth.verdict.criteria import (
    QUALITY_GATE,
    Candidate,
    CandidateCriteria,
    Criterion,
    CriterionState,
    MetricLoss,
    Policy,
)
from bitworth.verdict.decide import CellVerdict, judge_cell
from bitworth.verdict.device_gates import (
    CycleRatio,
    balance_gate,
    clock_estimates,
    cycle_ratio,
    frequency_gate,
    throttled,
    throttling_gate,
)
from bitworth.verdict.estimate import (
    Interval,
    detectable,
    session_estimate,
    sessions_to_reach,
    sessions_to_settle,
    t_interval,
)
from bitworth.verdict.gates import Gate, GateState
from bitworth.verdict.looks import level, looks
from bitworth.verdict.paired import (
    PairedLoss,
    binary_loss,
    mean_loss,
    ratio_loss,
    resolvable_loss,
    tango_interval,
)
from bitworth.verdict.perplexity import perplexity, perplexity_loss
from bitworth.verdict.policy import Decision, DecisionKind, decide, worst_cell
from bitworth.verdict.rounding import sig6, sig6_or_none
from bitworth.verdict.rules import TimingRules
from bitworth.verdict.schedule import (
    SessionSchedule,
    rounds_in_session,
    session_schedule,
    williams_square,
)
from bitworth.verdict.stopping import goal_reached, settled
from bitworth.verdict.tails import QuantileInterval, quantile_interval

__all__ = [
    "QUALITY_GATE",
    "Candidate",
    "CandidateCriteria",
    "CellVerdict",
    "Comparison",
    "Criterion",
    "CriterionState",
    "CycleRatio",
    "Decision",
    "DecisionKind",
    "Gate",
    "GateState",
    "Interval",
    "MetricLoss",
    "PairedLoss",
    "Policy",
    "QuantileInterval",
    "RatioInterval",
    "SessionBlocks",
    "SessionSchedule",
    "TimingRules",
    "Verdict",
    "amdahl_ceiling",
    "amdahl_total",
    "balance_gate",
    "binary_loss",
    "blocks_from_samples",
    "classify",
    "clock_estimates",
    "compare",
    "cycle_ratio",
    "decide",
    "detectable",
    "frequency_gate",
    "goal_reached",
    "judge_cell",
    "label_samples",
    "level",
    "looks",
    "mean_loss",
    "per_item",
    "perplexity",
    "perplexity_loss",
    "quantile_interval",
    "ratio_loss",
    "resolvable_loss",
    "rounds_in_session",
    "session_estimate",
    "session_schedule",
    "sessions_to_reach",
    "sessions_to_settle",
    "settled",
    "sig6",
    "sig6_or_none",
    "t_interval",
    "tango_interval",
    "throttled",
    "throttling_gate",
    "williams_square",
    "worst_cell",
]
