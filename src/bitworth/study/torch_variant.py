"""Lowers a variant of a PyTorch subject: the module's tensors with some sites in another format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitworth.recipe import Quantize, Recipe, Site
from bitworth.recipe.eligibility import excluded
from bitworth.recipe.rules import Preference, preference, resolve
from bitworth.record.schema import VariantFacts
from bitworth.record.site_facts import QuantizedSiteFact
from bitworth.study.cell_engine import CellEngine
from bitworth.study.context import StudyContext, file_key
from bitworth.study.lowered import Lowered, groups_without_times, identified, support_of
from bitworth.study.sections import VariantConfig
from bitworth.study.torch_subject import TorchSubject
from bitworth.study.variants import BASES, group_sites, recipe_of

#: Whose rules hold for what is emulated: those of every engine, and what lowering can do.
EMULATION = "torch-emulated"


class TorchLowering:
    """Lowers the variants of a study whose subject is a PyTorch module."""

    def __init__(self, subject: TorchSubject) -> None:
        self._subject = subject

    def lower(
        self,
        study: StudyContext,
        engine: CellEngine,
        variant: VariantConfig,
        time_ns: Mapping[str, float],
    ) -> Lowered:
        """Write the variant's file; see ``Lowering.lower``."""
        base = variant.format if variant.format in BASES else self._subject.base
        recipe = _recipe(variant, self._subject.base)
        facts = VariantFacts(
            name=variant.name,
            source="precision" if variant.format in BASES else "recipe",
            recipe=recipe,
            state="not run",
        )
        path = study.workspace.path(
            "lowered", engine.cell, file_key(variant.name), "model.safetensors"
        )
        if variant.format in BASES:
            assert base is not None
            state, reason = engine.support(base)
            if state != "native":
                return _not_run(facts, reason)
            self._subject.process.lower(path, base, (), {}, self._subject.scan)
            told = {"lowered_sha256": self._subject.model_sha256(path), "state": "measured"}
            return Lowered(facts.model_copy(update=told), path, base)
        if not time_ns and (unknown := groups_without_times(study, variant)):
            return _not_run(facts, f"group '{unknown[0]}' is by share of time: no profile")
        state, reason = support_of(engine, recipe)
        if state == "absent":
            return _not_run(facts, reason)
        emulated = state == "emulated"
        preferred = preference("torch", ())
        pairs, rules = self._pairs(study, variant, time_ns, preferred, emulated)
        found = self._subject.process.lower(
            path,
            self._subject.base,
            pairs,
            study.statistics,
            self._subject.scan,
            emulated=emulated,
            fused=engine.options.extra.get("fuse") == "on",
        )
        facts = _facts(facts, found, rules)
        if not facts.sites:
            why = next(iter(rules.values()), "") or "no site of its groups can be quantized"
            return _not_run(facts, why)
        told = {
            "lowered_sha256": self._subject.model_sha256(path),
            "state": "measured",
            "reason": reason,
        }
        facts = identified(facts.model_copy(update=told), engine)
        return Lowered(facts, path, self._subject.base, emulated)

    def _pairs(
        self,
        study: StudyContext,
        variant: VariantConfig,
        time_ns: Mapping[str, float],
        preferred: Preference,
        emulated: bool,
    ) -> tuple[list[tuple[Site, Quantize]], dict[str, str]]:
        """Each site with its resolved entry, and the sites that a rule leaves out."""
        groups = group_sites(study.config.group, variant.groups, self._subject.sites, time_ns)
        chosen = {
            site.id: (site, resolve(entry, preferred, site))
            for entry in recipe_of(variant).quantize
            for site in groups[entry.group]
        }
        engine = EMULATION if emulated else "torch"
        rules = excluded(engine, tuple(chosen.values()), variant.ignore_rules)
        return [pair for id_, pair in chosen.items() if id_ not in rules], rules


def _recipe(variant: VariantConfig, base: str) -> Recipe:
    found = recipe_of(variant, preference("torch", ()))
    if variant.format in BASES:
        return found
    return Recipe(base=base, quantize=found.quantize)


def _facts(facts: VariantFacts, found: Mapping[str, Any], rules: Mapping[str, str]) -> VariantFacts:
    left_out = {**rules, **dict(found["left_out"])}
    return facts.model_copy(
        update={
            "sites": tuple(QuantizedSiteFact.model_validate(site) for site in found["sites"]),
            "dead": tuple((id_, text) for id_, text in found["dead"]),
            "left_out": tuple(left_out.items()),
        }
    )


def _not_run(facts: VariantFacts, reason: str) -> Lowered:
    return Lowered(facts.model_copy(update={"state": "not run", "reason": reason}))
