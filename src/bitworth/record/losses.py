"""Losses and scores of the quality that a record holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitworth.record.schema import MetricValues, QualityFacts
from bitworth.verdict import (
    MetricLoss,
    PairedLoss,
    binary_loss,
    mean_loss,
    perplexity,
    perplexity_loss,
    ratio_loss,
    resolvable_loss,
    sig6,
)

QUALITY_LEVEL = 0.95


def largest_rel_l2(quality: QualityFacts | None) -> float | None:
    """The largest relative L2 error over the outputs; None if one is not finite."""
    if quality is None or not quality.outputs:
        return None
    errors = [o.rel_l2 for o in quality.outputs.values()]
    known = [e for e in errors if e is not None]
    return sig6(max(known)) if len(known) == len(errors) else None


def metric_scores(quality: QualityFacts | None) -> dict[str, float]:
    """Each metric over the samples that it applies to, in the metrics' alphabetical order."""
    scores: dict[str, float] = {}
    for name, metric in sorted(quality.metrics.items()) if quality else ():
        values, weights = _columns(metric)
        kept = np.isfinite(values) & np.isfinite(weights)
        if kept.any() and weights[kept].sum():
            scores[name] = sig6(_score(metric.kind, values[kept], weights[kept]))
    return scores


def _score(kind: str, values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    if kind == "perplexity":
        return perplexity(values, weights)
    return float(values.sum() / weights.sum())


def metric_losses(
    baseline: QualityFacts | None, variant: QualityFacts | None
) -> tuple[MetricLoss, ...]:
    """Loss of every metric that both have, with its interval at ``QUALITY_LEVEL``."""
    losses = []
    if baseline is not None and variant is not None:
        for name, metric in sorted(variant.metrics.items()):
            if name in baseline.metrics:
                found = _loss(baseline.metrics[name], metric)
                if found is not None:
                    losses.append(MetricLoss(name, found.loss, found.low, found.high, found.n))
    return tuple(losses)


def _loss(baseline: MetricValues, variant: MetricValues) -> PairedLoss | None:
    """The loss over the samples for which both have a value; they stay paired."""
    base, weights = _columns(baseline)
    ours, own_weights = _columns(variant)
    # Denominators that a variant changes make two different ratios, not one with a loss.
    if base.shape != ours.shape or not np.array_equal(weights, own_weights, equal_nan=True):
        return None
    kept = np.isfinite(base) & np.isfinite(ours) & np.isfinite(weights)
    base, ours, weights = base[kept], ours[kept], weights[kept]
    if not kept.any() or weights.sum() <= 0:
        return None
    level = QUALITY_LEVEL
    if variant.kind == "binary":
        return binary_loss(base != 0, ours != 0, better=variant.better, level=level)
    if variant.kind == "mean":
        return mean_loss(base, ours, better=variant.better, level=level)
    if variant.kind == "perplexity":
        return perplexity_loss(base, ours, weights, level=level)
    return ratio_loss(base, ours, weights, better=variant.better, level=level)


def _columns(metric: MetricValues) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and denominators (1 where there are none) by sample; NaN where there is none."""
    values = np.array([np.nan if v is None else v for v in metric.values], dtype=np.float64)
    if metric.denominators is None:
        return values, np.ones_like(values)
    weights = [np.nan if d is None else d for d in metric.denominators]
    return values, np.array(weights, dtype=np.float64)


def resolvable_losses(quality: QualityFacts | None) -> dict[str, float]:
    """The loss that the number of samples can resolve, by binary metric."""
    if quality is None:
        return {}
    counts = {
        name: int(np.isfinite(_columns(metric)[0]).sum())
        for name, metric in sorted(quality.metrics.items())
        if metric.kind == "binary"
    }
    return {name: resolvable_loss(n, level=QUALITY_LEVEL) for name, n in counts.items() if n}
