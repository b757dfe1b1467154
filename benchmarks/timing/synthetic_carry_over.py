"""How much of what one plan leaves to the next stays in a comparison.

In a Williams square every plan follows every other equally often, and none follows itself. The
baseline stands in a round twice, so a variant follows the baseline's plan more often than the
baseline does, and a part of what that leaves behind stays. The A/A check cannot see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.timing.synthetic_machine import as_blocks, play_session, variant_names
from bitworth.engines.mock_clock import ClockScript
from bitworth.verdict import session_estimate, sig6

#: What the baseline's plan adds to the next block, as a fraction of its time.
CARRY_OVERS = (0.006, 0.02)
VARIANTS = (1, 2, 6)
_SESSIONS = 20


@dataclass(frozen=True)
class CarryOver:
    """A variant as fast as the baseline, on a machine without noise.

    Attributes:
        variants: of the session, all alike.
        carry_over: what the baseline's plan adds to the block that follows it.
        bias: mean log ratio of the first variant over sessions: the truth is 0.
    """

    variants: int
    carry_over: float
    bias: float


def carry_overs(seed: int) -> tuple[CarryOver, ...]:
    """The bias for each number of variants and each carry-over."""
    return tuple(
        CarryOver(variants, carry_over, _bias(variants, carry_over, seed))
        for variants in VARIANTS
        for carry_over in CARRY_OVERS
    )


def _bias(variants: int, carry_over: float, seed: int) -> float:
    script = ClockScript(sigma=0.0, carry_over=carry_over, seed=seed)
    names = variant_names(variants)
    found = [
        session_estimate(as_blocks(play_session(script, names, session)), 2)
        for session in range(_SESSIONS)
    ]
    return sig6(float(np.mean(found)))
