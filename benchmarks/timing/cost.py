"""What an interval of a given width costs, and which block and lead-in make it cheapest.

Sessions of ten identical plans with long blocks, one call thrown away, are cut shorter afterwards:
every choice of lead-in and block is judged on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

import numpy as np
from scipy.special import stdtrit

from benchmarks.timing.bank import BankSession
from bitworth.study.timing_stage import MAX_LABELS
from bitworth.verdict import SessionBlocks, TimingRules, rounds_in_session
from bitworth.verdict.estimate import label_logs, round_location

#: More sessions than this are not waited for.
MOST_SESSIONS = 100_000


@dataclass(frozen=True)
class Choice:
    """Lead-in and samples of a block, in time."""

    lead_in_ns: int
    block_ns: int


@dataclass(frozen=True)
class SessionCost:
    """What one session of a choice is worth.

    Attributes:
        choice: its lead-in and block, in whole calls of the model.
        deviation: standard deviation of the log ratio of two identical plans over sessions.
        rounds: of the sessions that it was found in.
        start_ns: time to start and load, a plan.
        switch_ns: time between two blocks that no sample sees.
    """

    choice: Choice
    deviation: float
    rounds: int
    start_ns: float
    switch_ns: float

    def session_ns(self, labels: int) -> float:
        """Wall time of a session of so many plans."""
        blocks = labels * rounds_in_session(labels)
        block = self.choice.lead_in_ns + self.choice.block_ns + self.switch_ns
        return labels * self.start_ns + blocks * block

    def deviation_of(self, labels: int) -> float:
        """Standard deviation over sessions of so many plans.

        Blocks are as good as independent from round to round (two halves of a session have a
        correlation of 0.1), so that more rounds cancel more of their noise.
        """
        return self.deviation * math.sqrt(self.rounds / rounds_in_session(labels))


def sessions_needed(deviation: float, half_width: float, alpha: float, least: int) -> int:
    """Sessions after which a t interval has this half-width (a fraction of the time ratio)."""
    target = math.log1p(half_width)
    for n in range(least, MOST_SESSIONS):
        if float(stdtrit(n - 1, 1 - alpha / 2)) * deviation / math.sqrt(n) <= target:
            return n
    raise ValueError(f"a half-width of {half_width} is out of reach at a deviation of {deviation}")


def jobs_of(variants: int) -> tuple[int, ...]:
    """Plans of each job into which a study divides so many variants, as ``split_jobs`` does."""
    count = -(-variants // (MAX_LABELS - 2))
    size = -(-variants // count)
    return tuple(2 + min(size, variants - first) for first in range(0, variants, size))


def time_to_reach(
    cost: SessionCost, half_width: float, variants: int, rules: TimingRules
) -> tuple[int, float]:
    """Sessions, and wall time in ns, until so many variants have intervals of this half-width."""
    sessions, total_ns = 0, 0.0
    for labels in jobs_of(variants):
        n = sessions_needed(
            cost.deviation_of(labels), half_width, rules.alpha / variants, rules.min_sessions
        )
        sessions += n
        total_ns += n * cost.session_ns(labels)
    return sessions, total_ns


def session_cost(sessions: Sequence[BankSession], choice: Choice | None = None) -> SessionCost:
    """Spread and cost of sessions, their blocks cut to ``choice`` or whole for None.

    Raises ValueError when the blocks are too short for it.
    """
    found: list[float] = []
    taken: list[Choice] = []
    for session in sessions:
        call = session.call_ns
        shortest = min(len(b) for row in session.samples_ns for b in row)
        lead_in, count = session.lead_in, shortest
        if choice is not None:
            lead_in = max(session.lead_in, round(choice.lead_in_ns / call))
            count = max(1, round(choice.block_ns / (call * session.inner)))
        skip = lead_in - session.lead_in
        if skip + count > shortest:
            raise ValueError(f"blocks of {choice} are not in this bank")
        found += pair_estimates(session.blocks(skip, count))
        taken.append(Choice(lead_in * call, count * call * session.inner))
    labels = len(sessions[0].order[0])
    return SessionCost(
        choice=Choice(
            round(median(c.lead_in_ns for c in taken)), round(median(c.block_ns for c in taken))
        ),
        deviation=math.sqrt(float(np.mean(np.square(found)))),
        rounds=len(sessions[0].order),
        start_ns=median(s.start_ns for s in sessions) / labels,
        switch_ns=median(_switch_ns(s) for s in sessions),
    )


def pair_estimates(blocks: SessionBlocks) -> list[float]:
    """Log ratio of every two labels of a session."""
    logs = label_logs(blocks)
    return [
        round_location(logs[:, a] - logs[:, b]) for a, b in combinations(range(blocks.labels), 2)
    ]


def _switch_ns(session: BankSession) -> float:
    """Time between two blocks: what a session takes beyond its start, samples and lead-ins."""
    blocks = sum(len(row) for row in session.samples_ns)
    sampled = sum(sum(block) for row in session.samples_ns for block in row)
    lead_in = blocks * session.lead_in * session.call_ns
    return max(0.0, (session.wall_ns - session.start_ns - sampled - lead_in) / blocks)


def settling(
    sessions: Sequence[BankSession], edges_ns: Sequence[int]
) -> tuple[tuple[int, float], ...]:
    """How much slower than later a plan runs so long after it was continued.

    Args:
        sessions: of long blocks.
        edges_ns: bounds of the times since the worker was continued, the calls that the bank threw
            away counted; the last third of a block is what all of them are compared with.

    Returns pairs of the time from which on and the median over blocks of the log ratio; a time in
    which no call began is left out.
    """
    found: dict[int, list[float]] = {edge: [] for edge in edges_ns[:-1]}
    for session in sessions:
        for row in session.samples_ns:
            for block in row:
                times = np.asarray(block, dtype=np.float64)
                begun = session.lead_in * session.call_ns + np.cumsum(times) - times
                settled = float(np.median(times[2 * len(times) // 3 :]))
                for low, high in pairwise(edges_ns):
                    here = times[(begun >= low) & (begun < high)]
                    if here.size:
                        found[low].append(math.log(float(np.median(here)) / settled))
    return tuple((edge, median(values)) for edge, values in found.items() if values)
