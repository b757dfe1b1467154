"""Loss of a language model's perplexity, relative, with its interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bitworth.verdict.paired import PairedLoss, ratio_loss
from bitworth.verdict.rounding import sig6


def perplexity_loss(
    baseline_nats: NDArray[np.float64],
    variant_nats: NDArray[np.float64],
    tokens: NDArray[np.float64],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> PairedLoss:
    """By how much perplexity grows, relative to the baseline's: 0.02 is 2% more.

    Perplexity is exp(nats / tokens), so the ratio of two perplexities is the exponential of the
    loss of a ratio: its interval's ends are those of ``ratio_loss``, exactly.

    Args:
        baseline_nats: float64, shape (n,), negative log-likelihood of each sample's tokens, in
            nats, summed.
        variant_nats: float64, shape (n,), the same samples.
        tokens: float64, shape (n,), tokens that were predicted in each sample.
        level: confidence level.
        seed: of the resampling.

    Raises ValueError as ``ratio_loss``.
    """
    found = ratio_loss(baseline_nats, variant_nats, tokens, better="lower", level=level, seed=seed)
    loss, low, high = (sig6(math.expm1(x)) for x in (found.loss, found.low, found.high))
    return PairedLoss(loss, low, high, found.n, found.flips, found.method)


def perplexity(nats: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Perplexity over all samples: exp of the mean nats a token; inf where that overflows."""
    try:
        return math.exp(float(np.sum(nats)) / float(np.sum(tokens)))
    except OverflowError:
        return math.inf
