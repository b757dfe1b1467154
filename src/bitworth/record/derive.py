"""What follows from a record's facts: losses, verdicts, bounds and decisions.

A pure function of the facts: recomputing gives the same bytes.
"""

from __future__ import annotations

from dataclasses import fields, replace
from statistics import median

from bitworth.errors import UserError
from bitworth.recipe.consistency import engine_hint
from bitworth.record.free_win_verdicts import judge_free_wins
from bitworth.record.latency import latencies
from bitworth.record.losses import (
    QUALITY_LEVEL,
    largest_rel_l2,
    metric_losses,
    metric_scores,
    resolvable_losses,
)
from bitworth.record.names import AS_GIVEN, BASELINE
from bitworth.record.profile_derived import (
    conversions_of,
    group_bounds,
    outlooks,
    own_profile,
    reasons,
    splits,
    uncovered_times,
)
from bitworth.record.schema import (
    CellDerived,
    CellFacts,
    Derived,
    Facts,
    QualityFacts,
    VariantFacts,
    VariantSummary,
)
from bitworth.record.timing_verdicts import against_rival, cycle_ratios, judge_job
from bitworth.verdict import (
    QUALITY_GATE,
    Candidate,
    Comparison,
    Decision,
    Gate,
    TimingRules,
    decide,
    sig6,
    worst_cell,
)

RULES_VERSION = 2


def derive(facts: Facts) -> Derived:
    """All that follows from ``facts`` by the rules of ``RULES_VERSION``."""
    rules = rules_today(facts)
    cells = tuple(_cell(facts, cell, rules) for cell in facts.cells)
    names = cell_names(facts)
    decisions = {name: cell.decision for name, cell in zip(names, cells, strict=True)}
    nothing = "nothing was studied"
    return Derived(
        rules_version=RULES_VERSION,
        timing=rules,
        quality_level=QUALITY_LEVEL,
        resolvable_loss=resolvable_losses(_baseline_quality(facts)),
        cells=cells,
        decision=(
            worst_cell(decisions)
            if decisions
            else Decision("undecided", None, f"undecided: {nothing}", (), (nothing,))
        ),
    )


def rules_today(facts: Facts) -> TimingRules:
    """Today's constants, but for those that the study itself asked for.

    Raises:
        UserError: what it asked for is out of range, as in a record that was edited.
    """
    asked = facts.config.get("timing", {})
    known = {field.name for field in fields(TimingRules)}
    try:
        return TimingRules(**{name: value for name, value in asked.items() if name in known})
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"the record's /facts/config/timing: {error}; restore it") from None


def _baseline_quality(facts: Facts) -> QualityFacts | None:
    for cell in facts.cells:
        for variant in cell.variants:
            if variant.name == BASELINE and variant.quality is not None:
                return variant.quality
    return None


def cell_names(facts: Facts) -> tuple[str, ...]:
    """How each cell is called in sentences; cells that differ in their options alone say so."""
    names = [f"{c.engine} {c.version}, {c.threads} threads{_mode(c)}" for c in facts.cells]
    return tuple(
        name if names.count(name) == 1 else f"{name}, options {cell.options_sha256[:6]}"
        for name, cell in zip(names, facts.cells, strict=True)
    )


def _mode(cell: CellFacts) -> str:
    """What a cell's name adds where it does not time one sample after another by the median."""
    text = ""
    if cell.mode == "throughput":
        text += f", throughput of {cell.streams} stream{'s' if cell.streams != 1 else ''}"
    if cell.quantile is not None:
        text += f", tail at quantile {cell.quantile:.4g}"
    return text if cell.batch is None else f"{text}, batch {cell.batch}"


def _cell(facts: Facts, cell: CellFacts, rules: TimingRules) -> CellDerived:
    baseline = next((v for v in cell.variants if v.name == BASELINE), None)
    studied = [v for v in cell.variants if v.name != BASELINE]
    gates = {v.name: _gates(v, cell.engine) for v in cell.variants}
    total = sum(len(job.labels) - 2 for job in cell.jobs)
    verdicts = [judge_job(job, rules, total, gates, cell.quantile) for job in cell.jobs]
    comparisons: dict[str, Comparison] = {}
    for verdict in verdicts:
        for comparison in verdict.comparisons:
            # A free win stands in every job; its verdict is that of the first.
            comparisons.setdefault(comparison.variant, comparison)
    candidates = [_candidate(v, baseline, comparisons.get(v.name)) for v in studied]
    # The model as it was given shows what the fair baseline is worth; it is nothing to ship.
    rivals = [c for v, c in zip(studied, candidates, strict=True) if v.name != AS_GIVEN]
    policy = facts.policy
    if baseline is None or baseline.recipe is None or baseline.recipe.base == "fp32":
        # The baseline is the reference but for rounding: there is no floor to be over.
        policy = replace(policy, max_error_over_floor=None)
    decision = decide(
        rivals,
        policy,
        rules=rules,
        has_quality_evidence=not facts.data.random,
        has_task_metric=bool(baseline and baseline.quality and baseline.quality.metrics),
    )
    rival = _best_free_win(cell, decision, comparisons.get(AS_GIVEN))
    rows = tuple(
        _summary(
            cell,
            variant,
            candidate,
            baseline,
            against_rival(cell, rules, rival, variant.name, total, verdicts, gates),
        )
        for variant, candidate in zip(studied, candidates, strict=True)
    )
    base = () if baseline is None else (_summary(cell, baseline, None, baseline, None),)
    profile = own_profile(baseline)
    coverage, bounds = group_bounds(cell, profile)
    found, converted = splits(cell), conversions_of(cell, profile)
    compared = {r.variant: r.comparison for r in rows}
    bounded = outlooks(cell, profile, compared)
    return CellDerived(
        engine=cell.engine,
        verdicts=tuple(verdicts),
        variants=base + rows,
        profile_coverage=coverage,
        bounds=bounds,
        uncovered=uncovered_times(facts, profile),
        decision=decision,
        latency=latencies(cell, verdicts),
        free_wins=judge_free_wins(cell.free_win_search, cell.free_win_jobs, rules, cell.quantile),
        cycles=cycle_ratios(cell, rules),
        splits=found,
        conversions=converted,
        reasons=reasons(cell, profile, found, converted, bounded, compared),
        outlooks=bounded,
    )


def _gates(variant: VariantFacts, engine: str) -> list[Gate]:
    """Checks of one variant outside its timing."""
    gates = []
    base = variant.recipe.base if variant.recipe else "fp32"
    asked = base if engine == "torch" else engine_hint(base)
    if variant.plan is not None and variant.plan.precision != asked:
        text = f"asked for {asked}, the loaded plan reports {variant.plan.precision}"
        gates.append(Gate("precision", "failed", text))
    quality = variant.quality
    if quality is not None and any(o.non_finite for o in quality.outputs.values()):
        count = sum(o.non_finite for o in quality.outputs.values())
        gates.append(Gate(QUALITY_GATE, "failed", f"{count} outputs are not finite"))
    check = variant.check
    if check is not None and check.limit is None:
        checker = "torch" if engine == "torch" else "onnxruntime"
        text = f"{checker} does not run this graph unoptimized, so there is nothing to compare"
        gates.append(Gate("optimization", "not_observable", text))
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
    floor = largest_rel_l2(baseline.quality) if baseline else None
    error = largest_rel_l2(quality)
    over = None
    # An fp32 baseline is the reference but for rounding: a ratio to it would say nothing.
    if baseline and baseline.recipe and baseline.recipe.base != "fp32" and floor and error:
        over = sig6(error / floor)
    return Candidate(
        name=variant.name,
        comparison=comparison,
        losses=metric_losses(baseline.quality if baseline else None, quality),
        rel_l2=error,
        error_over_floor=over,
        plan_bytes=variant.plan.bytes if variant.plan else None,
        runs=variant.state == "measured",
        not_run_reason=variant.reason,
    )


def _summary(
    cell: CellFacts,
    variant: VariantFacts,
    candidate: Candidate | None,
    baseline: VariantFacts | None,
    against_best: Comparison | None,
) -> VariantSummary:
    ratio = None
    if variant.plan and baseline and baseline.plan:
        ratio = sig6(variant.plan.bytes / baseline.plan.bytes)
    peaks: list[int] = []
    loads: list[int] = []
    for job in cell.jobs:
        if variant.name in job.labels:
            index = job.labels.index(variant.name)
            peaks += [p for s in job.sessions if (p := s.peak_bytes.get(index)) is not None]
            loads += [s.load_ns[index] for s in job.sessions if index in s.load_ns]
    return VariantSummary(
        variant=variant.name,
        evidence=variant.quality.evidence if variant.quality else "none",
        comparison=candidate.comparison if candidate else None,
        against_best=against_best,
        losses=candidate.losses if candidate else (),
        scores=metric_scores(variant.quality),
        rel_l2=largest_rel_l2(variant.quality),
        error_over_floor=candidate.error_over_floor if candidate else None,
        plan_bytes_ratio=ratio,
        peak_bytes=round(median(peaks)) if peaks else None,
        load_ns=round(median(loads)) if loads else None,
        time=_why_no_time(variant),
    )


def _why_no_time(variant: VariantFacts) -> str:
    if variant.state == "measured":
        return ""
    word = "failed" if variant.state == "failed" else "not run"
    return f"{word}: {variant.reason}"


def _best_free_win(cell: CellFacts, decision: Decision, given: Comparison | None) -> str | None:
    """The passing variant that an engine's hint gives for free (such as bf16); the fastest one.

    The model as it was given, where it is faster than what was made of it, comes before them: a
    speed-up over the slower of the two would be a false claim.
    """
    if given is not None and given.verdict == "faster":
        return AS_GIVEN
    passing = [c for c in decision.candidates if c.state == "pass" and c.name in cell.free_wins]
    best = max(passing, key=lambda c: c.criteria[0].low or 0.0, default=None)
    return None if best is None else best.name
