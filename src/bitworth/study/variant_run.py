"""One variant in one cell: lowered, built, checked against optimization, judged for quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.errors import UserError
from bitworth.lowering.emulate_base import emulate_base
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import Recipe
from bitworth.recipe.consistency import engine_hint, support_key
from bitworth.recipe.rules import EMULATED, Preference
from bitworth.record.recipe_identity import IDENTITY, identity_sha256
from bitworth.record.schema import BatchCheck, QualityFacts, VariantFacts
from bitworth.record.site_facts import RescaledFact
from bitworth.study.cell_stage import (
    PlanRequest,
    build_and_judge,
    check_batch,
    check_optimization,
)
from bitworth.study.context import StudyContext, file_key
from bitworth.study.lowered_variant import LoweredVariant, scale_variant, write_lowered
from bitworth.study.profiling import profile_loaded
from bitworth.study.results import plan_facts, quality_facts
from bitworth.study.sections import VariantConfig
from bitworth.study.site_facts import site_facts
from bitworth.study.subject_stage import model_path, model_sha256
from bitworth.study.variant_graph import variant_graph
from bitworth.study.variants import BASES, group_sites, recipe_of
from bitworth.subject.onnx_model import load
from bitworth.subject.saving import save

#: Emulated quality is computed by this engine, unoptimized.
EMULATOR = "onnxruntime"
#: Whose rules hold for what is emulated: those of every engine.
EMULATION = "emulated"


@dataclass(frozen=True)
class CellEngine:
    """The engine of a cell.

    Attributes:
        engine: its name.
        cell: name of the cell, for files.
        info: what the probe found.
        options: the cell's options.
        preferred: what ``auto`` in a recipe resolves to.
        inputs: what a timed call runs on.
        batch: held-out samples that a timed call takes together; empty for one at a time.
    """

    engine: str
    cell: str
    info: dict[str, Any]
    options: EngineOptions
    preferred: Preference
    inputs: Arrays
    batch: tuple[int, ...] = ()

    def plan_path(self, study: StudyContext, variant: str) -> Path:
        """Where a variant's plan is saved."""
        return study.workspace.path("plans", self.cell, file_key(variant), "plan.bin")

    def with_options(self, extra: Mapping[str, str]) -> CellEngine:
        """The engine with further options of its own."""
        if not extra:
            return self
        return replace(self, options=replace(self.options, extra={**self.options.extra, **extra}))

    def support(self, name: str) -> tuple[str, str]:
        """State and reason of a format."""
        found = self.info["formats"].get(name, {"state": "absent", "reason": "unknown format"})
        return found["state"], found["reason"]


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
            recipe=Recipe(base="fp32"),
            lowered_sha256=model_sha256(path),
            state="measured",
        )
        return _measured(study, engine, facts, path, "fp32", judged)

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
        if variant.source == "file":
            return _with(_file(study, own, variant), options=dict(variant.options))
        if variant.format in BASES:
            found = _precision(study, own, variant)
        else:
            found = _quantized(study, own, variant, time_ns)
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


def _precision(study: StudyContext, engine: CellEngine, variant: VariantConfig) -> VariantFacts:
    """The whole model in another float type: told to the engine, or written into the graph."""
    recipe = recipe_of(variant, engine.preferred)
    state, reason = engine.support(recipe.base)
    facts = VariantFacts(name=variant.name, source="precision", recipe=recipe, state="measured")
    fair = study.subject.fair
    if state == "emulated":
        path = _lowered_path(study, engine, variant.name, "emulated.onnx")
        base: Literal["bf16", "fp16"] = "bf16" if recipe.base == "bf16" else "fp16"
        save(emulate_base(fair, base, recipe.keep_fp32), path)
        return _emulated(study, facts, path, engine.options.threads, reason)
    if state != "native":
        return _with(facts, state="not run", reason=reason)
    path = model_path(study.workspace, "fair")
    if recipe.base == "fp16":
        path = _lowered_path(study, engine, variant.name, "model.onnx")
        amax = {name: found.amax for name, found in study.statistics.items()} or None
        graph = variant_graph(fair, study.subject.sites, recipe, (), (), amax)
        save(graph.prepared.model, path)
        facts = _with(facts, kept=graph.kept, overflow=graph.overflow)
    facts = _with(facts, lowered_sha256=model_sha256(path))
    return _measured(study, engine, facts, path, engine_hint(recipe.base))


def _lowered_path(study: StudyContext, engine: CellEngine, variant: str, name: str) -> Path:
    return study.workspace.path("lowered", engine.cell, file_key(variant), name)


def _file(study: StudyContext, engine: CellEngine, variant: VariantConfig) -> VariantFacts:
    assert variant.path is not None
    path = study.folder / variant.path
    model = load(path)
    facts = VariantFacts(
        name=variant.name,
        source="file",
        file=path.name,
        file_sha256=model.identity_sha256,
        lowered_sha256=model.identity_sha256,
        state="measured",
    )
    return _measured(study, engine, facts, path, "fp32")


def _quantized(
    study: StudyContext, engine: CellEngine, variant: VariantConfig, time_ns: Mapping[str, float]
) -> VariantFacts:
    subject = study.subject
    state, reason = _support(engine, recipe_of(variant))
    emulated = state == "emulated"
    preferred = EMULATED if emulated else engine.preferred
    recipe = recipe_of(variant, preferred)
    facts = VariantFacts(name=variant.name, source="recipe", recipe=recipe, state="not run")
    unknown = _groups_without_times(study, variant) if not time_ns else []
    if unknown:
        return _with(facts, reason=f"group '{unknown[0]}' is by share of time: no profile")
    groups = group_sites(
        study.config.group, variant.groups, subject.sites, time_ns, subject.attention
    )
    rules = EMULATION if emulated else engine.engine
    try:
        lowered = scale_variant(
            subject.fair,
            subject.sites,
            recipe_of(variant),
            groups,
            study.statistics,
            rules,
            preferred,
            variant.ignore_rules,
        )
    except UserError as error:
        return _with(facts, reason=str(error))
    path = _lowered_path(study, engine, variant.name, "model.onnx")
    try:
        write_lowered(lowered, path, emulated=False)
        written, hash_ = "", model_sha256(path)
    except UserError as error:
        written, hash_ = str(error), None
    facts = _quantized_facts(variant.name, recipe, lowered, hash_, engine)
    if not lowered.scaled.quantized:
        return _with(facts, state="not run", reason="no site of its groups can be quantized")
    if state == "absent":
        return _with(facts, state="not run", reason=reason)
    if not emulated:
        if written:
            return _with(facts, state="not run", reason=written)
        return _measured(study, engine, facts, path, engine_hint(recipe.base))
    emulation = _lowered_path(study, engine, variant.name, "emulated.onnx")
    write_lowered(lowered, emulation, emulated=True)
    return _emulated(study, facts, emulation, engine.options.threads, reason)


def _support(engine: CellEngine, recipe: Recipe) -> tuple[str, str]:
    """What the engine says of a recipe's format, with its scheme, and of its base."""
    entry = recipe.quantize[0]
    state, reason = engine.support(support_key(entry.format, entry.scheme))
    base, why = engine.support(recipe.base)
    if base != "native" and state != "absent":
        return "absent", f"base {recipe.base}: {why}"
    return state, reason


def _groups_without_times(study: StudyContext, variant: VariantConfig) -> list[str]:
    by_time = {g.name for g in study.config.group if g.top_share is not None}
    return [name for name in variant.groups if name in by_time]


def _quantized_facts(
    name: str, recipe: Recipe, lowered: LoweredVariant, model_hash: str | None, engine: CellEngine
) -> VariantFacts:
    sites = site_facts(lowered.scaled.quantized, lowered.entries)
    rescaled = tuple(
        RescaledFact(value=f.value, factors=tuple(float(x) for x in f.factors))
        for f in lowered.factors
    )
    facts = VariantFacts(
        name=name,
        source="recipe",
        recipe=recipe,
        lowered_sha256=model_hash,
        sites=sites,
        dead=lowered.scaled.dead,
        left_out=lowered.scaled.left_out,
        opset=lowered.graph.prepared.opset,
        scalings=lowered.scalings,
        rescaled=rescaled,
        everywhere=lowered.everywhere,
        kept=lowered.graph.kept,
        overflow=lowered.graph.overflow,
        state="measured",
    )
    options = engine.options
    identity = identity_sha256(
        facts, engine.engine, engine.info["version"], threads=options.threads,
        optimization=options.optimization, streams=options.streams, extra=dict(options.extra),
    )  # fmt: skip
    return _with(facts, recipe_sha256=identity, recipe_identity=IDENTITY)


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
    if quality is not None and precision == "fp32":
        key = facts.lowered_sha256 or model_sha256(model)
        check = check_optimization(
            study.workspace, model, key, engine.options.threads, quality, study.judge
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
    study: StudyContext, facts: VariantFacts, model: Path, threads: int, reason: str
) -> VariantFacts:
    """Quality alone, from a graph that computes what the format means; shared by the cells."""
    key = model_sha256(model)
    stored = study.workspace.load("emulated", key)
    if stored is None:
        options = EngineOptions(threads=threads, optimization="none")
        plan = study.workspace.path("plans", "emulated", f"{key}.onnx")
        name = f"{facts.name} (emulated)"
        request = PlanRequest(EMULATOR, model, name, "fp32", options, plan)
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
