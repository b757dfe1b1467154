"""What lowering a variant gives, whatever the subject is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bitworth.recipe import Recipe
from bitworth.recipe.consistency import support_key
from bitworth.record.recipe_identity import IDENTITY, identity_sha256
from bitworth.record.schema import VariantFacts
from bitworth.study.cell_engine import CellEngine
from bitworth.study.context import StudyContext
from bitworth.study.sections import VariantConfig


@dataclass(frozen=True)
class Lowered:
    """A lowered variant.

    Attributes:
        facts: what is known of it; where there is nothing to build, its state and reason say why.
        model: the file to build, or to emulate.
        precision: base precision that the engine is told.
        emulated: whether the file computes what the format means, for quality alone.
    """

    facts: VariantFacts
    model: Path | None = None
    precision: str = "fp32"
    emulated: bool = False


class Lowering(Protocol):
    """Lowers the variants of one subject."""

    def lower(
        self,
        study: StudyContext,
        engine: CellEngine,
        variant: VariantConfig,
        time_ns: Mapping[str, float],
    ) -> Lowered:
        """Write the variant for the engine.

        Args:
            study: what all cells share.
            engine: the cell's engine, with the variant's own options.
            variant: what to lower.
            time_ns: profiled time of each site, for groups by share of time.

        Raises:
            UserError: a group that matches no site.
        """


def support_of(engine: CellEngine, recipe: Recipe) -> tuple[str, str]:
    """What the engine says of a recipe's format, with its scheme, and of its base."""
    entry = recipe.quantize[0]
    state, reason = engine.support(support_key(entry.format, entry.scheme))
    base, why = engine.support(recipe.base)
    if base != "native" and state != "absent":
        return "absent", f"base {recipe.base}: {why}"
    return state, reason


def groups_without_times(study: StudyContext, variant: VariantConfig) -> list[str]:
    """The variant's groups that are by share of time."""
    by_time = {g.name for g in study.config.group if g.top_share is not None}
    return [name for name in variant.groups if name in by_time]


def identified(facts: VariantFacts, engine: CellEngine) -> VariantFacts:
    """``facts`` with the hash of the resolved recipe."""
    options = engine.options
    identity = identity_sha256(
        facts, engine.engine, engine.info["version"], threads=options.threads,
        optimization=options.optimization, streams=options.streams, extra=dict(options.extra),
    )  # fmt: skip
    return facts.model_copy(update={"recipe_sha256": identity, "recipe_identity": IDENTITY})
