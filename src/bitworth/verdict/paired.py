"""Intervals for a loss of quality, variant against baseline on the same samples.

A loss over 0 always means that the variant is worse, whichever way the metric points. No interval
has width zero, however alike the samples: n equal outcomes do not prove the next one equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import bootstrap

from bitworth.verdict.rounding import sig6

Better = Literal["higher", "lower"]
Method = Literal["tango", "bca", "percentile", "few changes"]

_RESAMPLES = 4999
# Elements of one batch of resamples: 16 MB, whatever the number of samples.
_BATCH_ELEMENTS = 2_000_000
# The jackknife of BCa costs n squared, and its correction is lost in the noise at this size.
_BCA_MAX = 5000
# Under this many changed samples a resample often holds none of them, and the bootstrap is blind.
_FEW_CHANGES = 10


@dataclass(frozen=True)
class PairedLoss:
    """A loss with its interval, 6 significant digits, unit of the metric.

    Attributes:
        loss: estimate; over 0 is worse.
        low: lower end of the interval.
        high: upper end.
        n: paired samples.
        flips: samples whose value changed.
        method: how the interval was made; ``few changes`` is described at ``mean_loss``.
    """

    loss: float
    low: float
    high: float
    n: int
    flips: int
    method: Method


def tango_interval(
    both: int, only_baseline: int, only_variant: int, neither: int, level: float = 0.95
) -> tuple[float, float, float]:
    """Score interval for the difference of two paired proportions, baseline less variant.

    Tango, T. (1998), Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design, Statistics in Medicine 17:891-908. With no flips its ends are
    ±z² / (n + z²).

    Args:
        both: samples on which both succeed.
        only_baseline: samples on which the baseline alone succeeds.
        only_variant: samples on which the variant alone succeeds.
        neither: samples on which neither does.
        level: confidence level, 0 to 1.

    Returns (estimate, low, high), fractions in -1 to 1. Raises ValueError for negative counts, no
    samples, or a level outside 0 to 1.
    """
    counts = (both, only_baseline, only_variant, neither)
    if min(counts) < 0 or sum(counts) == 0:
        raise ValueError(f"counts must be at least 0 and not all 0, got {counts}")
    return _tango(only_baseline, only_variant, sum(counts), _normal_quantile(level))


def _normal_quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return float(ndtri((1 + level) / 2))


def _tango(b: float, c: float, n: float, z: float) -> tuple[float, float, float]:
    estimate = (b - c) / n
    return estimate, -_tango_upper(c, b, n, z), _tango_upper(b, c, n, z)


def _tango_upper(b: float, c: float, n: float, z: float) -> float:
    """Find the difference above (b - c) / n whose score is -z."""
    estimate = (b - c) / n
    if b == n:
        return 1.0

    def excess(delta: float) -> float:
        # The score's square without its division, which is 0 / 0 at an estimate without flips:
        # negative inside the interval, positive beyond it.
        linear = -b - c + (2 * n - b + c) * delta
        constant = -c * delta * (1 - delta)
        root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
        # The larger root of 2n q² + linear q + constant, in the form that does not cancel.
        if linear > 0:
            q = -2 * constant / (linear + root) if constant else 0.0
        else:
            q = (root - linear) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return (n * delta - (b - c)) ** 2 - z * z * max(variance, 0.0)

    # Where all samples agree, or all flip one way, the variance is 0 at the estimate and the score
    # has a root there; a step off it finds the outer one.
    start = estimate if excess(estimate) < 0 else estimate + 1e-9
    return float(brentq(excess, start, 1.0, xtol=1e-14, rtol=1e-14))


def resolvable_loss(n: int, *, flip_rate: float = 0.0, level: float = 0.95) -> float:
    """Smallest loss that n paired binary samples exclude when there is none.

    The upper end of Tango's interval when ``flip_rate`` of the samples flip, as many each way. A
    limit under it cannot be shown to hold; without flips it is z² / (n + z²), 0.48% for n = 800.

    Args:
        n: paired samples, at least 1.
        flip_rate: share of samples whose outcome changes, 0 to 1.
        level: confidence level.

    Returns a fraction. Raises ValueError for numbers outside these ranges.
    """
    if n < 1 or not 0 <= flip_rate <= 1:
        raise ValueError(f"n must be at least 1 and flip_rate in 0 to 1, got {n} and {flip_rate}")
    half = n * flip_rate / 2
    return sig6(_tango(half, half, n, _normal_quantile(level))[2])


def binary_loss(
    baseline: NDArray[np.bool_],
    variant: NDArray[np.bool_],
    *,
    better: Better = "higher",
    level: float = 0.95,
) -> PairedLoss:
    """Loss of a success rate over paired samples, by Tango's score interval.

    Args:
        baseline: bool, shape (n,), outcome of each sample.
        variant: bool, shape (n,), the same samples.
        better: ``higher`` when True is the good outcome.
        level: confidence level.

    Unit: fraction of samples. Raises ValueError for other dtypes or shapes and for no samples.
    """
    for values in (baseline, variant):
        if values.dtype != np.bool_:
            raise ValueError(f"binary outcomes are bool, got {values.dtype}")
    _check_shapes(baseline, variant)
    if better == "lower":
        baseline, variant = ~baseline, ~variant
    both = int(np.sum(baseline & variant))
    worse = int(np.sum(baseline & ~variant))
    improved = int(np.sum(~baseline & variant))
    n = int(baseline.size)
    loss, low, high = tango_interval(both, worse, improved, n - both - worse - improved, level)
    return PairedLoss(sig6(loss), sig6(low), sig6(high), n, worse + improved, "tango")


def mean_loss(
    baseline: NDArray[np.float64],
    variant: NDArray[np.float64],
    *,
    better: Better,
    level: float = 0.95,
    seed: int = 0,
    span: float | None = None,
) -> PairedLoss:
    """Loss of a mean over paired samples, by the bootstrap of the samples' differences.

    BCa, or percentile where BCa is degenerate or n is over 5000 (Efron 1987, Better bootstrap
    confidence intervals, JASA 82:171). Under 10 changed samples (``few changes``) the bootstrap
    does not see what it did not draw: its interval is widened to Tango's for the counts of worse
    and better samples times the largest change seen. Where all differences are equal the scale is
    ``span``, and the interval is the loss ± span z² / (n + z²).

    Args:
        baseline: float64, shape (n,), the metric of each sample.
        variant: float64, shape (n,), the same samples.
        better: which way the metric improves.
        level: confidence level.
        seed: of the resampling.
        span: how far one sample could change; None takes the range of the values seen, or 1 where
            they are all equal.

    Unit: that of the metric. Raises ValueError for differing shapes, no samples, values that are
    not finite, or a negative span.
    """
    _check_shapes(baseline, variant)
    return _bootstrap_loss(
        baseline, variant, np.ones(baseline.shape), better, level, seed,
        span if span is not None else _range(baseline, variant),
    )  # fmt: skip


def ratio_loss(
    baseline_numerators: NDArray[np.float64],
    variant_numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
    *,
    better: Better,
    level: float = 0.95,
    seed: int = 0,
    span: float = 1.0,
) -> PairedLoss:
    """Loss of a ratio of sums over paired samples, such as a character error rate.

    Sum of numerators over sum of denominators; samples are resampled whole. Intervals as for
    ``mean_loss``, with ``span`` the largest change of one sample's ratio.

    Args:
        baseline_numerators: float64, shape (n,), such as characters that the baseline got wrong.
        variant_numerators: float64, shape (n,).
        denominators: float64, shape (n,), over 0 in sum and nowhere under 0.
        better: which way the ratio improves.
        level: confidence level.
        seed: of the resampling.
        span: how far one sample's ratio could change.

    Unit: that of the ratio. Raises ValueError as ``mean_loss``, and for denominators as above.
    """
    _check_shapes(baseline_numerators, variant_numerators, denominators)
    return _bootstrap_loss(
        baseline_numerators, variant_numerators, denominators, better, level, seed, span
    )


def _check_shapes(*arrays: NDArray[np.generic]) -> None:
    shapes = [values.shape for values in arrays]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
        raise ValueError(f"paired samples have one shape (n,) with n over 0, got {shapes}")


def _range(*arrays: NDArray[np.float64]) -> float:
    values = np.concatenate(arrays)
    return float(np.max(values) - np.min(values)) or 1.0


def _bootstrap_loss(
    baseline: NDArray[np.float64],
    variant: NDArray[np.float64],
    weights: NDArray[np.float64],
    better: Better,
    level: float,
    seed: int,
    span: float,
) -> PairedLoss:
    z = _normal_quantile(level)
    if not all(bool(np.all(np.isfinite(values))) for values in (baseline, variant, weights)):
        raise ValueError("a metric with values that are not finite has no loss")
    if bool(np.any(weights < 0)) or float(np.sum(weights)) <= 0:
        raise ValueError("denominators must be at least 0, and over 0 in sum")
    if not (math.isfinite(span) and span >= 0):
        raise ValueError(f"span must be finite and at least 0, got {span}")
    change = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    if better == "higher":
        change = -change
    n = int(change.size)
    mean_weight = float(np.mean(weights))
    loss = float(np.mean(change)) / mean_weight
    flips = int(np.count_nonzero(change))
    # In units of the loss times n, so that a long sample counts for its length.
    largest = float(np.max(np.abs(change))) / mean_weight
    if np.allclose(change, loss * weights, rtol=1e-9, atol=1e-12 * largest):
        margin = span * float(np.max(weights)) / mean_weight * z * z / (n + z * z)
        return _rounded(loss, loss - margin, loss + margin, n, flips, "few changes")
    low, high, method = _bootstrap(change, weights, level, seed)
    if flips < _FEW_CHANGES:
        worse = int(np.count_nonzero(change > 0))
        _, tango_low, tango_high = _tango(worse, flips - worse, n, z)
        low, high = min(low, largest * tango_low), max(high, largest * tango_high)
        method = "few changes"
    return _rounded(loss, min(low, loss), max(high, loss), n, flips, method)


def _rounded(
    loss: float, low: float, high: float, n: int, flips: int, method: Method
) -> PairedLoss:
    return PairedLoss(sig6(loss), sig6(low), sig6(high), n, flips, method)


def _bootstrap(
    change: NDArray[np.float64], weights: NDArray[np.float64], level: float, seed: int
) -> tuple[float, float, Method]:
    def ratio(
        numerators: NDArray[np.float64], denominators: NDArray[np.float64], axis: int = -1
    ) -> NDArray[np.float64]:
        bottom = np.sum(denominators, axis=axis)
        top = np.sum(numerators, axis=axis)
        # A resample of empty samples alone has no ratio; it says as much as one without change.
        quotient: NDArray[np.float64] = np.divide(
            top, bottom, out=np.zeros_like(top), where=bottom > 0
        )
        return quotient

    def ends(method: Literal["BCa", "percentile"]) -> tuple[float, float]:
        interval = bootstrap(
            (change, weights),
            ratio,
            n_resamples=_RESAMPLES,
            batch=max(1, _BATCH_ELEMENTS // change.size),
            paired=True,
            vectorized=True,
            confidence_level=level,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        return float(interval.low), float(interval.high)

    # With few changes BCa may be degenerate, and scipy then warns and returns NaN.
    if change.size <= _BCA_MAX and np.count_nonzero(change) >= _FEW_CHANGES:
        low, high = ends("BCa")
        if math.isfinite(low) and math.isfinite(high):
            return low, high, "bca"
    low, high = ends("percentile")
    return low, high, "percentile"
