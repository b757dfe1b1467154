"""The time that a share of all calls keeps within, such as p99, over the sessions of a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitworth.verdict.blocks import sample_quantile
from bitworth.verdict.estimate import t_interval
from bitworth.verdict.rounding import sig6, sig6_or_none


@dataclass(frozen=True)
class QuantileInterval:
    """A quantile of one label's times with its interval over n sessions, 6 significant digits.

    Attributes:
        quantile: 0.5 for the median, 0.99 for p99.
        value_ns: geometric mean of the sessions' quantiles.
        low_ns: lower end of its interval; None for n = 1.
        high_ns: upper end.
        n: sessions.
        samples: fewest samples of a session.
    """

    quantile: float
    value_ns: float
    low_ns: float | None
    high_ns: float | None
    n: int
    samples: int


def quantile_interval(
    sessions: Sequence[NDArray[np.float64]], quantile: float, alpha: float
) -> QuantileInterval | None:
    """A quantile of one label's time with Student's t interval at 1 - alpha over its sessions.

    The interval is that of the log of the sessions' quantiles, so it tells how the quantile varies
    from session to session, not how far one session's samples would let it. None when there is no
    session, or one without a sample: what is missing may be what was slow.

    Args:
        sessions: the samples of each session, as ``label_samples`` gives them; ns, all positive.
        quantile: over 0 and under 1.
        alpha: error rate of the interval.

    Raises ValueError for a quantile or an alpha outside 0 to 1.
    """
    if not sessions or any(samples.size == 0 for samples in sessions):
        return None
    logs = [math.log(sample_quantile(samples, quantile)) for samples in sessions]
    interval = t_interval(logs, alpha)
    known = interval.n > 1
    return QuantileInterval(
        quantile=quantile,
        value_ns=sig6(math.exp(interval.estimate)),
        low_ns=sig6_or_none(math.exp(interval.low)) if known else None,
        high_ns=sig6_or_none(math.exp(interval.high)) if known else None,
        n=interval.n,
        samples=min(samples.size for samples in sessions),
    )
