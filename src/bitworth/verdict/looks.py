"""When a study that goes on until it is settled looks at its verdicts, and at which level.

Whoever looks again and again and stops at the first verdict is wrong more often than each look
says. So there are few looks, after fixed numbers of sessions that grow by about half each time,
and each works at one level (Pocock 1977, Group sequential methods in the design and analysis of
clinical trials, Biometrika 64:191) such that the interval holds the truth at all of them together
as often as an interval of the rule of precision does at its end.
"""

from __future__ import annotations

import math
from itertools import pairwise

from bitworth.verdict.rules import TimingRules

#: Each look has about this many times the sessions of the one before.
GROWTH = 1.5
#: Error rate over all looks for one unit of ``TimingRules.alpha``: stopping on precision at an
#: alpha of 0.035 misses the truth in 5% of cells, and so do these looks together.
TOTAL_PER_ALPHA = 0.05 / 0.035
#: Looks of today's rules, for which ``_LEVELS`` holds.
_LADDER = (6, 9, 13, 19, 28, 41, 60)
#: Error rate over all looks, and the level of each. Quantiles of the smallest of the seven
#: p-values of Student's t over the first 6, 9, ... 60 of normal values, 8 million draws (standard
#: error at most 1.3%); ``tests/verdict/test_looks.py`` draws them again. Normal theory would not
#: do: the first looks have few degrees of freedom.
_LEVELS = (
    (0.05, 0.010708), (0.025, 0.0049916), (0.01, 0.0018572), (0.005, 0.00088200),
    (0.0025, 0.00042600), (0.001, 0.00016454),
)  # fmt: skip


def looks(rules: TimingRules) -> tuple[int, ...]:
    """Numbers of sessions after which a study until settled looks at its verdicts, ascending."""
    first, last = rules.min_sessions, rules.max_sessions
    steps = round(math.log(last / first) / math.log(GROWTH))
    if steps == 0:
        return tuple(sorted({first, last}))
    return tuple(sorted({round(first * (last / first) ** (i / steps)) for i in range(steps + 1)}))


def level(share: float, rules: TimingRules) -> float:
    """Error rate of one interval, for a comparison that has this share of a cell's alpha.

    The share itself, but for a study until settled: that one's interval is wider at all times,
    also when its budget ended it early, as nobody knows beforehand which look will be the last.
    Looks other than those of today's rules share the error rate evenly (Bonferroni), which is
    never too bold. Raises ValueError for a share outside 0 to 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"a share of alpha must lie between 0 and 1, got {share}")
    if not rules.until_settled:
        return share
    ladder = looks(rules)
    total = share * TOTAL_PER_ALPHA
    if ladder == _LADDER:
        for (high, at_high), (low, at_low) in pairwise(_LEVELS):
            if low <= total <= high * (1 + 1e-9):  # the largest is 0.035 / 0.035 * 0.05
                weight = math.log(high / total) / math.log(high / low)
                return math.exp((1 - weight) * math.log(at_high) + weight * math.log(at_low))
    return min(share, total / len(ladder))
