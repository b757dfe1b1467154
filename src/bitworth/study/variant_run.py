"""One variant in one cell: lowered, built, checked against optimization, judged for quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import Recipe
from bitworth.record.schema import BatchCheck, QualityFacts, VariantFacts
from bitworth.study.cell_engine import CellEngine
from bitworth.study.cell_stage import (
    PlanRequest,
    build_and_judge,
    check_batch,
    check_optimization,
)
from bitworth.study.context import StudyContext, file_key
from bitworth.study.profiling import profile_loaded
from bitworth.study.results import plan_facts, quality_facts
from bitworth.study.sections import VariantConfig


def run_plain(
    study: StudyContext, engine: CellEngine, name: str, path: Path, judged: bool
) -> VariantFacts:
    """A variant without a quantized site: the baseline, or the model as it was given.

    The latter is not ``judged``: the free wins have shown that its result is the baseline's.
    """

    def compute() -> VariantFacts:
        facts = VariantFacts(
            name=name,
            source="precision",
            recipe=Recipe(base=study.subject.base),
            lowered_sha256=study.subject.model_sha256(path),
            state="measured",
        )
        return _measured(study, engine, facts, path, study.subject.base, judged)

    return _staged(study, engine, name, compute)


def run_variant(
    study: StudyContext, engine: CellEngine, variant: VariantConfig, time_ns: Mapping[str, float]
) -> VariantFacts:
    """Everything about one variant of the study but its time.

    Args:
        study: what all cells share.
        engine: the cell's engine.
        variant: what to build.
        time_ns: profiled time of each site, for groups by share of time.

    Raises:
        UserError: a group that matches no site; the metric raised.
    """

    own = engine.with_options(variant.options)

    def compute() -> VariantFacts:
        lowered = study.lowering.lower(study, own, variant, time_ns)
        facts, model = lowered.facts, lowered.model
        if model is None:
            found = facts
        elif lowered.emulated:
            found = _emulated(study, facts, model, own)
        else:
            found = _measured(study, own, facts, model, lowered.precision)
        return _with(found, options=dict(variant.options))

    return _staged(study, engine, variant.name, compute)


def _staged(
    study: StudyContext, engine: CellEngine, name: str, compute: Callable[[], VariantFacts]
) -> VariantFacts:
    """A variant that an earlier run finished is read, if its plan is still there."""
    stored = study.workspace.load("variants", engine.cell, file_key(name))
    if stored is not None:
        facts = VariantFacts.model_validate(stored)
        if facts.plan is None or engine.plan_path(study, name).exists():
            return facts
    facts = compute()
    study.workspace.save(facts.model_dump(mode="json"), "variants", engine.cell, file_key(name))
    return facts


def _measured(
    study: StudyContext,
    engine: CellEngine,
    facts: VariantFacts,
    model: Path,
    precision: str,
    judged: bool = True,
) -> VariantFacts:
    """Build, judge and check; a build or run that fails is the variant's result."""
    plan = engine.plan_path(study, facts.name)
    request = PlanRequest(
        engine.engine, model, facts.name, precision, engine.options, plan, engine.batch
    )

    def profile(worker: Worker, built: dict[str, Any]) -> None:
        built["profile"] = profile_loaded(
            worker, study.workspace, built["sha256"], engine.inputs, study.subject
        )

    try:
        built, quality = build_and_judge(
            study.workspace, request, study.judge, study.reporter, judged, profile
        )
    except WorkerFailed as failure:
        return _with(facts, state="failed", reason=study.workspace.without_paths(str(failure)))
    check = None
    reference = study.subject.reference_engine
    # onnxruntime computes no graph in bf16; torch computes what it compiles without that too.
    if quality is not None and (precision == "fp32" or reference == engine.engine):
        key = facts.lowered_sha256 or study.subject.model_sha256(model)
        check = check_optimization(
            study.workspace, reference, model, key, engine.unoptimized, quality, study.judge
        )
    facts = _with(
        facts,
        reason=built["note"],
        plan=plan_facts(built, built["precision"]),
        check=check,
        quality=quality and quality_facts(quality, study.metrics, "measured"),
        profile=built.get("profile"),
    )
    if not engine.batch:
        return facts
    return _batch_checked(facts, check_batch(built["batch_rel_l2"], len(engine.batch), quality))


def _batch_checked(facts: VariantFacts, found: BatchCheck) -> VariantFacts:
    """The variant with its check; one that computes something else for a batch has failed."""
    facts = _with(facts, batch_check=found)
    if found.rel_l2 is not None and found.rel_l2 <= found.limit:
        return facts
    error = "unknown (not finite)" if found.rel_l2 is None else f"{found.rel_l2:.3g}"
    return _with(
        facts,
        state="failed",
        reason=f"a batch of {found.n} gives other outputs than its samples alone: relative L2 "
        f"{error}, limit {found.limit:.3g}; the model or the engine mixes the samples",
    )


def _emulated(
    study: StudyContext, facts: VariantFacts, model: Path, engine: CellEngine
) -> VariantFacts:
    """Quality alone, from what computes what the format means; shared by the cells.

    ``facts`` say why the engine does not run it.
    """
    reason, emulator = facts.reason, study.subject.reference_engine
    key = study.subject.model_sha256(model)
    stored = study.workspace.load("emulated", key)
    if stored is None:
        plan = study.workspace.path("plans", "emulated", f"{key}.onnx")
        name = f"{facts.name} (emulated)"
        request = PlanRequest(emulator, model, name, "fp32", engine.unoptimized, plan)
        try:
            _, quality = build_and_judge(study.workspace, request, study.judge, study.reporter)
        except WorkerFailed as failure:
            return _with(
                facts, state="failed", reason=study.workspace.without_paths(f"emulation: {failure}")
            )
        assert quality is not None
        stored = quality_facts(quality, study.metrics, "emulated").model_dump(mode="json")
        study.workspace.save(stored, "emulated", key)
    return _with(
        facts,
        state="emulated",
        reason=reason,
        quality=QualityFacts.model_validate(stored),
    )


def _with(facts: VariantFacts, **changes: Any) -> VariantFacts:
    return facts.model_copy(update=changes)
