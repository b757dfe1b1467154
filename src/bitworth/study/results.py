"""Measured results in the record's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from bitworth.measurement.quality import MetricSpec, OutputSums, Quality
from bitworth.record.schema import MetricValues, OutputError, PlanFacts, QualityFacts
from bitworth.verdict import sig6, sig6_or_none


def quality_facts(
    quality: Quality,
    metrics: Mapping[str, MetricSpec],
    evidence: Literal["measured", "emulated"],
) -> QualityFacts:
    """The record's form of a variant's quality."""
    return QualityFacts(
        evidence=evidence,
        n=quality.n,
        outputs={name: _output(sums) for name, sums in quality.outputs.items()},
        metrics={name: _metric(spec, quality.metrics[name]) for name, spec in metrics.items()},
    )


def plan_facts(built: Mapping[str, Any], precision: str) -> PlanFacts:
    """The record's form of a built plan."""
    return PlanFacts(
        bytes=built["size_bytes"],
        sha256=built["sha256"],
        build_ns=built["build_ns"],
        layers=dict(sorted(Counter(built["layers"]).items())),
        precision=precision,
    )


def _output(sums: OutputSums) -> OutputError:
    return OutputError(
        rel_l2=sig6_or_none(sums.rel_l2),
        cosine=sig6_or_none(sums.cosine),
        sqnr_db=sig6_or_none(sums.sqnr_db),
        max_abs=None if sums.non_finite else sig6(sums.max_abs),
        non_finite=sums.non_finite,
    )


def _metric(spec: MetricSpec, values: list[Any]) -> MetricValues:
    if spec.kind not in ("ratio", "perplexity"):
        kept = tuple(None if v is None else sig6(float(v)) for v in values)
        return MetricValues(kind=spec.kind, better=spec.better, values=kept)
    return MetricValues(
        kind=spec.kind,
        better=spec.better,
        values=tuple(None if v is None else sig6(float(v[0])) for v in values),
        denominators=tuple(None if v is None else sig6(float(v[1])) for v in values),
    )
