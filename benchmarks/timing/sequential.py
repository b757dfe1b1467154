"""What a sequential comparison says: Welch's t on the means of all samples.

So do ``pyperf compare_to`` and those who put two runs of hyperfine or trtexec side by side. Every
sample counts as independent, and nothing asks what else changed between the two runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

SequentialVerdict = Literal["faster", "slower", "no difference"]
Samples = NDArray[np.float64]


@dataclass(frozen=True)
class SequentialResult:
    """A comparison of two means.

    Attributes:
        verdict: ``no difference`` where the interval of the difference holds 0.
        time_ratio: mean of the variant over the baseline's.
        low, high: its interval: that of the difference, over the baseline's mean.
    """

    verdict: SequentialVerdict
    time_ratio: float
    low: float
    high: float


def welch(baseline: Samples, variant: Samples, alpha: float = 0.05) -> SequentialResult:
    """Welch's t test (1947) on two samples.

    Shapes: (n,) and (m,), in ns. Raises ValueError for fewer than two samples.
    """
    n, m = baseline.size, variant.size
    if min(n, m) < 2:
        raise ValueError(f"a mean needs two samples for its error, got {n} and {m}")
    mean = float(np.mean(baseline))
    difference = float(np.mean(variant)) - mean
    a, b = float(np.var(baseline, ddof=1)) / n, float(np.var(variant, ddof=1)) / m
    half = 0.0
    if a + b > 0:
        freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
        half = float(stdtrit(freedom, 1 - alpha / 2)) * math.sqrt(a + b)
    verdict: SequentialVerdict = "no difference"
    if difference - half > 0:
        verdict = "slower"
    elif difference + half < 0:
        verdict = "faster"
    low, high = (1 + (difference + end) / mean for end in (-half, half))
    return SequentialResult(verdict, 1 + difference / mean, low, high)


def pooled(
    baseline: Sequence[Samples], variant: Sequence[Samples], alpha: float = 0.05
) -> SequentialResult:
    """Welch's t on all samples of all sessions, though sessions and blocks share their noise.

    Args:
        baseline, variant: samples in ns, one array (n,) a session.
        alpha: level of the test.

    Raises ValueError for fewer than two samples.
    """
    return welch(_joined(baseline), _joined(variant), alpha)


def one_after_the_other(
    baseline: Sequence[Samples], variant: Sequence[Samples], alpha: float = 0.05
) -> SequentialResult:
    """The same samples as a fixed order would see them: one label first, then the other.

    The baseline keeps the first half of the sessions and the variant the second; of an odd number
    the middle one belongs to neither. Arguments and errors as for ``pooled``, and ValueError for
    two labels with different numbers of sessions.
    """
    if len(baseline) != len(variant):
        raise ValueError(f"{len(baseline)} sessions of the one label, {len(variant)} of the other")
    half = len(baseline) // 2
    return welch(_joined(baseline[:half]), _joined(variant[len(variant) - half :]), alpha)


def _joined(sessions: Sequence[Samples]) -> Samples:
    return np.concatenate(sessions) if sessions else np.empty(0)
