"""The facts of a study, put together from its cells."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from bitworth.recipe import Recipe
from bitworth.recipe.consistency import support_key
from bitworth.record.conditions import condition_name
from bitworth.record.schema import Facts, NotRun
from bitworth.record.store import canonical, sha256
from bitworth.study.cell_run import CellRun
from bitworth.study.context import StudyContext
from bitworth.study.environment import environment_facts
from bitworth.study.request import StudyRequest


def study_facts(
    request: StudyRequest,
    study: StudyContext,
    cells: Sequence[CellRun],
    begun: datetime.datetime,
    missing: str,
) -> Facts:
    """All that was observed so far; ``missing`` says why the rest was not, if there is a rest."""
    config = request.config
    tree = config.model_dump(mode="json")
    found = [facts for cell in cells if (facts := cell.facts()) is not None]
    return Facts(
        created=begun.isoformat(),
        command=request.command,
        config=tree,
        config_sha256=sha256(canonical(tree)),
        policy=study.policy,
        timing=study.rules,
        subject=study.subject.facts(study.workspace),
        data=study.data.facts,
        environment=environment_facts(),
        cells=tuple(found),
        not_run=_not_run(cells, missing),
        revisit=_revisit(cells),
    )


def _not_run(cells: Sequence[CellRun], missing: str) -> tuple[NotRun, ...]:
    lines = [NotRun(what="the rest of the study", reason=missing)] if missing else []
    for cell in cells:
        for what, reason in cell.failures:
            told = cell.study.workspace.without_paths(reason)
            lines.append(NotRun(what=f"{_name(cell)}: {what}", reason=told))
        for variant in cell.variants:
            if variant.state != "measured":
                what = f"{_name(cell)}: time of {variant.name}"
                lines.append(NotRun(what=what, reason=f"{variant.state}: {variant.reason}"))
    asked = {cell.config.mode for cell in cells}
    unasked = [] if "throughput" in asked else ["throughput"]
    unasked += [] if "cold" in asked else ["cold caches"]
    unasked += ["other input shapes"]
    lines.append(NotRun(what=", ".join(unasked), reason="not asked for"))
    return tuple(lines)


def _name(cell: CellRun) -> str:
    """The cell's engine, and what it times where that is not one sample after another."""
    config = cell.config
    parts = [config.engine, *([config.mode] if config.mode != "host" else [])]
    return ", ".join(parts if config.batch is None else [*parts, f"batch {config.batch}"])


def _support_key(recipe: Recipe) -> str:
    """The engine's name for what a recipe does: int8 with dynamic scales is not int8."""
    return support_key(recipe.quantize[0].format, recipe.quantize[0].scheme)


def _revisit(cells: Sequence[CellRun]) -> tuple[str, ...]:
    """When to look again, as conditions that a program can check."""
    conditions = []
    for cell in cells:
        if cell.engine is None:
            continue
        name, info = cell.config.engine, cell.engine.info
        base = cell.study.subject.base
        conditions.append(f"{name}.version > {info['version']}")
        conditions += [
            f"{name}.format.{condition_name(_support_key(variant.recipe))} == native"
            for variant in cell.variants
            if variant.state == "emulated" and variant.recipe and variant.recipe.quantize
        ]
        conditions += [
            f"{name}.format.{variant.recipe.base} == native"
            for variant in cell.variants
            if variant.state == "not run" and variant.recipe and variant.recipe.base != base
        ]
        isa = info["details"].get("isa", "").split()
        if isa and not any(flag.endswith("vnni") for flag in isa):
            conditions.append("cpu.isa has avx512_vnni")
    return tuple(dict.fromkeys(conditions))
