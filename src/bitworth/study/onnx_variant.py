"""Lowers a variant of an ONNX subject: its graph written for one engine, or emulated in float."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from bitworth.errors import UserError
from bitworth.lowering.emulate_base import emulate_base
from bitworth.recipe import Recipe
from bitworth.recipe.consistency import engine_hint, onnx_fault
from bitworth.recipe.rules import EMULATED
from bitworth.record.schema import VariantFacts
from bitworth.record.site_facts import RescaledFact
from bitworth.study.cell_engine import CellEngine
from bitworth.study.context import StudyContext, file_key
from bitworth.study.lowered import Lowered, groups_without_times, identified, support_of
from bitworth.study.lowered_variant import LoweredVariant, scale_variant, write_lowered
from bitworth.study.sections import VariantConfig
from bitworth.study.site_facts import site_facts
from bitworth.study.subject_stage import Subject, model_sha256
from bitworth.study.variant_graph import variant_graph
from bitworth.study.variants import BASES, group_sites, recipe_of
from bitworth.subject.onnx_model import load
from bitworth.subject.saving import save

#: Whose rules hold for what is emulated: those of every engine.
EMULATION = "emulated"


class OnnxLowering:
    """Lowers the variants of a study whose subject is an ONNX model."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def lower(
        self,
        study: StudyContext,
        engine: CellEngine,
        variant: VariantConfig,
        time_ns: Mapping[str, float],
    ) -> Lowered:
        """Write the variant's graph; see ``Lowering.lower``."""
        if variant.source == "file":
            return _file(study, variant)
        if variant.format in BASES:
            return _precision(study, self._subject, engine, variant)
        return _quantized(study, self._subject, engine, variant, time_ns)


def _precision(
    study: StudyContext, subject: Subject, engine: CellEngine, variant: VariantConfig
) -> Lowered:
    """The whole model in another float type: told to the engine, or written into the graph."""
    recipe = recipe_of(variant, engine.preferred)
    state, reason = engine.support(recipe.base)
    facts = VariantFacts(name=variant.name, source="precision", recipe=recipe, state="measured")
    fair = subject.fair
    if state == "emulated":
        path = _lowered_path(study, engine, variant.name, "emulated.onnx")
        base: Literal["bf16", "fp16"] = "bf16" if recipe.base == "bf16" else "fp16"
        save(emulate_base(fair, base, recipe.keep_fp32), path)
        return Lowered(facts.model_copy(update={"reason": reason}), path, emulated=True)
    if state != "native":
        return Lowered(facts.model_copy(update={"state": "not run", "reason": reason}))
    path = subject.fair_model(study.workspace)
    if recipe.base == "fp16":
        path = _lowered_path(study, engine, variant.name, "model.onnx")
        amax = {name: found.amax for name, found in study.statistics.items()} or None
        graph = variant_graph(fair, subject.sites, recipe, (), (), amax)
        save(graph.prepared.model, path)
        facts = facts.model_copy(update={"kept": graph.kept, "overflow": graph.overflow})
    facts = facts.model_copy(update={"lowered_sha256": model_sha256(path)})
    return Lowered(facts, path, engine_hint(recipe.base))


def _lowered_path(study: StudyContext, engine: CellEngine, variant: str, name: str) -> Path:
    return study.workspace.path("lowered", engine.cell, file_key(variant), name)


def _file(study: StudyContext, variant: VariantConfig) -> Lowered:
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
    return Lowered(facts, path)


def _quantized(
    study: StudyContext,
    subject: Subject,
    engine: CellEngine,
    variant: VariantConfig,
    time_ns: Mapping[str, float],
) -> Lowered:
    state, reason = support_of(engine, recipe_of(variant))
    emulated = state == "emulated"
    preferred = EMULATED if emulated else engine.preferred
    recipe = recipe_of(variant, preferred)
    facts = VariantFacts(name=variant.name, source="recipe", recipe=recipe, state="not run")
    for entry in recipe.quantize:
        if (what := onnx_fault(entry)) is not None:
            return _not_run(facts, what)
    if not time_ns and (unknown := groups_without_times(study, variant)):
        return _not_run(facts, f"group '{unknown[0]}' is by share of time: no profile")
    groups = group_sites(
        study.config.group, variant.groups, subject.sites, time_ns, subject.attention
    )
    try:
        lowered = scale_variant(
            subject.fair,
            subject.sites,
            recipe_of(variant),
            groups,
            study.statistics,
            EMULATION if emulated else engine.engine,
            preferred,
            variant.ignore_rules,
        )
    except UserError as error:
        return _not_run(facts, str(error))
    path = _lowered_path(study, engine, variant.name, "model.onnx")
    try:
        write_lowered(lowered, path, emulated=False)
        written, hash_ = "", model_sha256(path)
    except UserError as error:
        written, hash_ = str(error), None
    facts = _quantized_facts(variant.name, recipe, lowered, hash_, engine)
    if not lowered.scaled.quantized:
        return _not_run(facts, "no site of its groups can be quantized")
    if state == "absent":
        return _not_run(facts, reason)
    if not emulated:
        return (
            _not_run(facts, written) if written else Lowered(facts, path, engine_hint(recipe.base))
        )
    emulation = _lowered_path(study, engine, variant.name, "emulated.onnx")
    write_lowered(lowered, emulation, emulated=True)
    return Lowered(facts.model_copy(update={"reason": reason}), emulation, emulated=True)


def _not_run(facts: VariantFacts, reason: str) -> Lowered:
    return Lowered(facts.model_copy(update={"state": "not run", "reason": reason}))


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
    return identified(facts, engine)
