"""The shape of a session whose times are compared by a quantile in their tail."""

from __future__ import annotations

import math
from dataclasses import replace

from bitworth.measurement.timing import MAX_SAMPLES, BlockShape, block_shape
from bitworth.verdict.schedule import rounds_in_session

#: A session has about as many samples of each label beyond the quantile.
SAMPLES_BEYOND = 5


def samples_needed(quantile: float) -> int:
    """Samples of a label and session, of which ``SAMPLES_BEYOND`` lie beyond ``quantile``."""
    # Rounded first: 5 / (1 - 0.99) is a little over 500.
    return math.ceil(round(SAMPLES_BEYOND / (1 - quantile), 6))


def tail_shape(
    call_ns: float, quantile: float, labels: int, minimum_rounds: int
) -> tuple[BlockShape, int]:
    """Calls of one block, and rounds of a session at least, for ``samples_needed`` in a session.

    Blocks get longer first, as their lead-in is paid once, and then there are more of them.

    Args:
        call_ns: time of one call of the baseline.
        quantile: what is compared, such as 0.99.
        labels: plans of the session.
        minimum_rounds: rounds that a session has in any case.
    """
    needed = samples_needed(quantile)
    shape = block_shape(call_ns, singly=True)
    each = math.ceil(needed / rounds_in_session(labels, minimum_rounds))
    iterations = min(max(shape.iterations, each), MAX_SAMPLES)
    return replace(shape, iterations=iterations), max(
        minimum_rounds, math.ceil(needed / iterations)
    )
