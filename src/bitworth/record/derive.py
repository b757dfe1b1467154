"""What follows from a record's facts: losses, verdicts, bounds and decisions.

A pure function of the facts: recomputing gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bitworth.record.schema import (
    CellDerived,
    CellFacts,
    Derived,
    Facts,
    GroupBound,
    MetricValues,
    QualityFacts,
    TimingJob,
    VariantFacts,
    VariantSummary,
)
from bitworth.verdict import (
    QUALITY_GATE,
    Candidate,
    CellVerdict,
    Comparison,
    Decision,
    Gate,
    MetricLoss,
    PairedLoss,
    TimingRules,
    amdahl_ceiling,
    binary_loss,
    blocks_from_samples,
    compare,
    decide,
    judge_cell,
    mean_loss,
    ratio_loss,
    resolvable_loss,
    sig6,
    sig6_or_none,
    worst_cell,
)

RULES_VERSION = 1
BASELINE = "baseline"


def derive(facts: Facts) -> Derived:
    """All that follows from ``facts`` by the rules of ``RULES_VERSION``."""
    cells = tuple(_cell(facts, cell) for cell in facts.cells)
    decisions = {
        cell_name(cell): derived.decision for cell, derived in zip(facts.cells, cells, strict=True)
    }
    return Derived(
        rules_version=RULES_VERSION,
        resolvable_loss=_resolvable(facts),
        cells=cells,
        decision=worst_cell(decisions),
    )


def cell_name(cell: CellFacts) -> str:
    """How a cell is called in sentences."""
    return f"{cell.engine} {cell.version}, {cell.threads} threads"


def _cell(facts: Facts, cell: CellFacts) -> CellDerived:
    baseline = next((v for v in cell.variants if v.name == BASELINE), None)
    studied = [v for v in cell.variants if v.name != BASELINE]
    gates = {v.name: _gates(v) for v in cell.variants}
    total = sum(len(job.labels) - 2 for job in cell.jobs)
    verdicts = [_judge(job, facts.timing, total, gates) for job in cell.jobs]
    comparisons = {c.variant: c for verdict in verdicts for c in verdict.comparisons}
    candidates = [_candidate(v, baseline, comparisons.get(v.name)) for v in studied]
    # The model as it was given shows what the fair baseline is worth; it is nothing to ship.
    rivals = [c for v, c in zip(studied, candidates, strict=True) if v.name != "as given"]
    decision = decide(
        rivals,
        facts.policy,
        has_quality_evidence=not facts.data.random,
        has_task_metric=bool(baseline and baseline.quality and baseline.quality.metrics),
    )
    best = _best_free(cell.free_wins, decision)
    times = {c: comparisons.get(c) for c in comparisons}
    summaries = tuple(
        _summary(v, c, baseline, times.get(v.name), _against_best(facts, cell, best, v.name))
        for v, c in zip(studied, candidates, strict=True)
    )
    base = () if baseline is None else (_summary(baseline, None, baseline, None, None),)
    coverage, bounds = _bounds(facts, cell)
    return CellDerived(
        engine=cell.engine,
        verdict=_merged(verdicts),
        variants=base + _with_memory(cell, summaries),
        profile_coverage=coverage,
        bounds=bounds,
        decision=decision,
    )


def _judge(
    job: TimingJob, rules: TimingRules, total: int, gates: Mapping[str, Sequence[Gate]]
) -> CellVerdict:
    """Judge one job; alpha is shared by the comparisons of all jobs of the cell."""
    here = max(1, len(job.labels) - 2)
    shared = replace(rules, alpha=rules.alpha * here / max(total, here))
    return judge_cell(
        [blocks_from_samples(s.order, s.samples_ns) for s in job.sessions],
        job.labels,
        rules=shared,
        extra_gates={
            label: [*gates.get(label, ()), *_failures(job, index)]
            for index, label in enumerate(job.labels)
        },
    )


def _failures(job: TimingJob, index: int) -> list[Gate]:
    return [
        Gate("run", "failed", f"session {s.session}: {s.failures[index]}")
        for s in job.sessions
        if index in s.failures
    ][:1]


def _gates(variant: VariantFacts) -> list[Gate]:
    """Checks of one variant outside its timing."""
    gates = []
    asked = variant.recipe.base if variant.recipe else "fp32"
    if variant.plan is not None and variant.plan.precision != asked:
        text = f"asked for {asked}, the loaded plan reports {variant.plan.precision}"
        gates.append(Gate("precision", "failed", text))
    quality = variant.quality
    if quality is not None and any(o.non_finite for o in quality.outputs.values()):
        count = sum(o.non_finite for o in quality.outputs.values())
        gates.append(Gate(QUALITY_GATE, "failed", f"{count} outputs are not finite"))
    check = variant.check
    if check is not None and check.limit is not None:
        got = check.optimized_rel_l2
        if got is None or got > check.limit:
            wrong = "not finite" if got is None else f"{got:.3g}"
            text = (
                f"relative error {wrong} as the engine optimizes it, "
                f"{check.unoptimized_rel_l2:.3g} without optimization (n = {check.n}): "
                "the engine computes another function"
            )
            gates.append(Gate(QUALITY_GATE, "failed", text))
    return gates


def _candidate(
    variant: VariantFacts, baseline: VariantFacts | None, comparison: Comparison | None
) -> Candidate:
    quality = variant.quality
    floor = _rel_l2(baseline.quality) if baseline else None
    error = _rel_l2(quality)
    over = None
    # An fp32 baseline is the reference but for rounding: a ratio to it would say nothing.
    if baseline and baseline.recipe and baseline.recipe.base != "fp32" and floor and error:
        over = sig6(error / floor)
    return Candidate(
        name=variant.name,
        comparison=comparison,
        losses=_losses(baseline.quality if baseline else None, quality),
        rel_l2=error,
        error_over_floor=over,
        plan_bytes=variant.plan.bytes if variant.plan else None,
        runs=variant.state == "measured",
        not_run_reason=variant.reason,
    )


def _summary(
    variant: VariantFacts,
    candidate: Candidate | None,
    baseline: VariantFacts | None,
    comparison: Comparison | None,
    against_best: Comparison | None,
) -> VariantSummary:
    ratio = None
    if variant.plan and baseline and baseline.plan:
        ratio = sig6(variant.plan.bytes / baseline.plan.bytes)
    return VariantSummary(
        variant=variant.name,
        evidence=variant.quality.evidence if variant.quality else "none",
        comparison=comparison,
        against_best=against_best,
        losses=candidate.losses if candidate else (),
        scores=_scores(variant.quality),
        rel_l2=_rel_l2(variant.quality),
        error_over_floor=candidate.error_over_floor if candidate else None,
        plan_bytes_ratio=ratio,
        peak_bytes=None,
        load_ns=None,
        time="" if variant.state == "measured" else f"{variant.state}: {variant.reason}",
    )


def _with_memory(
    cell: CellFacts, summaries: tuple[VariantSummary, ...]
) -> tuple[VariantSummary, ...]:
    filled = []
    for summary in summaries:
        peaks: list[int] = []
        loads: list[int] = []
        for job in cell.jobs:
            if summary.variant in job.labels:
                index = job.labels.index(summary.variant)
                peaks += [p for s in job.sessions if (p := s.peak_bytes.get(index)) is not None]
                loads += [s.load_ns[index] for s in job.sessions if index in s.load_ns]
        update = {
            "peak_bytes": round(median(peaks)) if peaks else None,
            "load_ns": round(median(loads)) if loads else None,
        }
        filled.append(summary.model_copy(update=update))
    return tuple(filled)


def _best_free(free_wins: Sequence[str], decision: Decision) -> str | None:
    """The passing variant that is a free win of the engine, such as bf16, if there is one."""
    passing = [c.name for c in decision.candidates if c.state == "pass" and c.name in free_wins]
    return passing[0] if passing else None


def _against_best(
    facts: Facts, cell: CellFacts, best: str | None, variant: str
) -> Comparison | None:
    """The variant against the best passing free win, from the job that timed both."""
    if best is None or variant in (best, "as given"):
        return None
    for job in cell.jobs:
        if best in job.labels and variant in job.labels:
            return compare(
                [blocks_from_samples(s.order, s.samples_ns) for s in job.sessions],
                job.labels,
                job.labels.index(variant),
                job.labels.index(best),
                rules=facts.timing,
                comparisons=max(1, len(job.labels) - 2),
            )
    return None


def _merged(verdicts: Sequence[CellVerdict]) -> CellVerdict | None:
    if not verdicts:
        return None
    return CellVerdict(
        comparisons=tuple(c for v in verdicts for c in v.comparisons),
        aa=verdicts[0].aa,
        gates=tuple(g for v in verdicts for g in v.gates),
    )


def _bounds(facts: Facts, cell: CellFacts) -> tuple[float | None, tuple[GroupBound, ...]]:
    total = sum(layer.time_ns for layer in cell.profile)
    if total <= 0:
        return None, ()
    by_site: dict[str, float] = {}
    for layer in cell.profile:
        for id_ in layer.sites:
            by_site[id_] = by_site.get(id_, 0.0) + layer.time_ns / len(layer.sites)
    kinds: dict[str, float] = {"all sites": sum(by_site.values())}
    for site in facts.subject.sites:
        kinds[site.op_type] = kinds.get(site.op_type, 0.0) + by_site.get(site.id, 0.0)
    bounds = tuple(
        GroupBound(
            group=name,
            share_of_mapped=sig6(time / total),
            ceiling_speedup=sig6(amdahl_ceiling(time / total, 0.0)),
        )
        for name, time in kinds.items()
        if time < total
    )
    return sig6(sum(by_site.values()) / total), bounds


def _rel_l2(quality: QualityFacts | None) -> float | None:
    if quality is None or not quality.outputs:
        return None
    errors = [o.rel_l2 for o in quality.outputs.values()]
    known = [e for e in errors if e is not None]
    return max(known) if len(known) == len(errors) else None


def _scores(quality: QualityFacts | None) -> dict[str, float]:
    if quality is None:
        return {}
    scores = {}
    for name, metric in quality.metrics.items():
        values, denominators = _known(metric)
        if len(values):
            top, bottom = values.sum(), denominators.sum()
            score = sig6_or_none(float(top / bottom)) if bottom else None
            if score is not None:
                scores[name] = score
    return scores


def _losses(
    baseline: QualityFacts | None, variant: QualityFacts | None
) -> tuple[MetricLoss, ...]:
    if baseline is None or variant is None:
        return ()
    losses = []
    for name, metric in variant.metrics.items():
        if name in baseline.metrics:
            found = _loss(baseline.metrics[name], metric)
            if found is not None:
                losses.append(MetricLoss(name, found.loss, found.low, found.high, found.n))
    return tuple(losses)


def _loss(baseline: MetricValues, variant: MetricValues) -> PairedLoss | None:
    base, bottom = _known(baseline)
    ours, _ = _known(variant)
    if len(base) == 0 or len(base) != len(ours):
        return None
    if variant.kind == "binary":
        return binary_loss(base != 0, ours != 0, better=variant.better)
    if variant.kind == "mean":
        return mean_loss(base, ours, better=variant.better)
    return ratio_loss(base, ours, bottom, better=variant.better)


def _known(metric: MetricValues) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and denominators (1 where there are none) of the samples the metric applies to."""
    values = np.array([v for v in metric.values if v is not None], dtype=np.float64)
    if metric.denominators is None:
        return values, np.ones_like(values)
    kept = [d for d in metric.denominators if d is not None]
    return values, np.array(kept, dtype=np.float64)


def _resolvable(facts: Facts) -> dict[str, float]:
    """The loss that the number of samples can resolve, by binary metric."""
    for cell in facts.cells:
        for variant in cell.variants:
            if variant.name == BASELINE and variant.quality:
                return {
                    name: resolvable_loss(n)
                    for name, metric in variant.quality.metrics.items()
                    if metric.kind == "binary" and (n := len(_known(metric)[0]))
                }
    return {}
