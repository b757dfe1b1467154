"""Two records of one question: which answers changed, and what could explain it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bitworth.record.names import BASELINE
from bitworth.record.schema import CellFacts, Record, VariantFacts, VariantSummary

#: Facts of the environment that are compared, beside every library's version.
_ENVIRONMENT = ("bitworth", "python", "platform", "cpu", "cores", "memory_bytes")
Explained = Literal["plan", "environment", "nothing"]


@dataclass(frozen=True)
class EnvironmentChange:
    """Something around the study that is not what it was; empty where there was or is none."""

    what: str
    old: str
    new: str


@dataclass(frozen=True)
class VariantChange:
    """A variant whose verdict changed, or whose interval lies apart from the older one.

    Attributes:
        cell: name of the cell in both records.
        variant: its name.
        old_verdict, new_verdict: empty where there was or is none.
        old_ratio, new_ratio: value, low and high of the time over the baseline's; None: void.
        beyond: whether the two intervals have no point in common.
        explained: what differs that could explain it: the ``plan`` (another graph, recipe or
            engine wrote other bytes), the ``environment`` alone, or ``nothing``.
    """

    cell: str
    variant: str
    old_verdict: str
    new_verdict: str
    old_ratio: tuple[float, float, float] | None
    new_ratio: tuple[float, float, float] | None
    beyond: bool
    explained: Explained


@dataclass(frozen=True)
class DecisionChange:
    """A decision that is not what it was: of a cell, or of the study where its name is empty."""

    cell: str
    old: str
    new: str


@dataclass(frozen=True)
class Difference:
    """What changed from one record to another.

    Attributes:
        same_subject: whether both studied the same model.
        same_policy: whether both decided by the same policy.
        environment: what is around the studies and differs.
        decisions: decisions that changed, the study's last.
        variants: variants that changed.
        only_old, only_new: variants of a cell, or whole cells, that the other record has not.
    """

    same_subject: bool
    same_policy: bool
    environment: tuple[EnvironmentChange, ...]
    decisions: tuple[DecisionChange, ...]
    variants: tuple[VariantChange, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]


def difference(old: Record, new: Record) -> Difference:
    """What changed from ``old`` to ``new``; cells belong together by engine, mode and shape."""
    environment = tuple(_environment(old, new))
    before, after = _cells(old, new)
    shared = [name for name in before if name in after]
    variants: list[VariantChange] = []
    decisions: list[DecisionChange] = []
    only_old = [name for name in before if name not in after]
    only_new = [name for name in after if name not in before]
    for name in shared:
        i, j = before[name], after[name]
        was = {s.variant: s for s in old.derived.cells[i].variants}
        now = {s.variant: s for s in new.derived.cells[j].variants}
        only_old += [f"{name}: {v}" for v in was if v not in now]
        only_new += [f"{name}: {v}" for v in now if v not in was]
        one, other = old.facts.cells[i], new.facts.cells[j]
        for variant in was:
            if variant in now and variant != BASELINE:
                plan = _plans(one, variant) != _plans(other, variant)
                changed = _variant(name, was[variant], now[variant], plan, bool(environment))
                if changed is not None:
                    variants.append(changed)
        decisions += _decision(name, _answer(old, i), _answer(new, j))
    decisions += _decision("", _answer(old, None), _answer(new, None))
    return Difference(
        same_subject=old.facts.subject.sha256 == new.facts.subject.sha256,
        same_policy=old.facts.policy == new.facts.policy,
        environment=environment,
        decisions=tuple(decisions),
        variants=tuple(variants),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
    )


def _cells(old: Record, new: Record) -> tuple[dict[str, int], dict[str, int]]:
    """Place of each cell by what was asked for in it; an engine's version is what may change.

    Threads tell cells apart where one of the records has several that are alike but for them;
    else they follow from the machine.
    """
    names = [[_cell_name(cell) for cell in record.facts.cells] for record in (old, new)]
    alike = {name for each in names for name in each if each.count(name) > 1}
    found: list[dict[str, int]] = []
    for record, each in zip((old, new), names, strict=True):
        places: dict[str, int] = {}
        for place, (cell, name) in enumerate(zip(record.facts.cells, each, strict=True)):
            told = f"{name}, {cell.threads} threads" if name in alike else name
            while told in places:
                told += " again"
            places[told] = place
        found.append(places)
    return found[0], found[1]


def _cell_name(cell: CellFacts) -> str:
    shape = "; ".join(f"{k} {'x'.join(map(str, v))}" for k, v in sorted(cell.shape.items()))
    parts = [cell.engine, cell.mode, shape]
    parts += [f"batch {cell.batch}"] if cell.batch is not None else []
    parts += [f"quantile {cell.quantile:g}"] if cell.quantile is not None else []
    return ", ".join(parts)


def _environment(old: Record, new: Record) -> Iterator[EnvironmentChange]:
    one, other = old.facts.environment, new.facts.environment
    for name in _ENVIRONMENT:
        was, now = str(getattr(one, name)), str(getattr(other, name))
        if was != now:
            yield EnvironmentChange(name, was, now)
    for name in sorted({*one.libraries, *other.libraries}):
        was, now = one.libraries.get(name, ""), other.libraries.get(name, "")
        if was != now:
            yield EnvironmentChange(name, was, now)
    before, after = _cells(old, new)
    for name in (n for n in before if n in after):
        a, b = old.facts.cells[before[name]], new.facts.cells[after[name]]
        for what in ("version", "device", "threads"):
            was, now = str(getattr(a, what)), str(getattr(b, what))
            if was != now:
                yield EnvironmentChange(f"{a.engine} {what}", was, now)
        for key in sorted({*a.options, *b.options} - {"threads"}):
            was, now = a.options.get(key, ""), b.options.get(key, "")
            if was != now:
                yield EnvironmentChange(f"{a.engine} option {key}", was, now)


def _plans(cell: CellFacts, variant: str) -> tuple[object, ...]:
    """What the two sides of a ratio were: the variant, and the baseline."""
    return tuple(_bytes(v) for v in cell.variants if v.name in (variant, BASELINE))


def _variant(
    cell: str, was: VariantSummary, now: VariantSummary, plan: bool, environment: bool
) -> VariantChange | None:
    """None for a variant with the same verdict and intervals that share a point."""
    old, new = _ratio(was), _ratio(now)
    before, after = _verdict(was), _verdict(now)
    beyond = old is not None and new is not None and (old[2] < new[1] or new[2] < old[1])
    if before == after and not beyond:
        return None
    explained: Explained = "nothing"
    if plan:
        explained = "plan"
    elif environment:
        explained = "environment"
    return VariantChange(cell, was.variant, before, after, old, new, beyond, explained)


def _verdict(summary: VariantSummary) -> str:
    return summary.comparison.verdict if summary.comparison is not None else ""


def _bytes(variant: VariantFacts) -> tuple[object, ...]:
    """What was built and how it is run: the graph, the plan's own bytes, its own options."""
    plan = variant.plan.sha256 if variant.plan is not None else None
    return variant.lowered_sha256, plan, tuple(sorted(variant.options.items()))


def _ratio(summary: VariantSummary) -> tuple[float, float, float] | None:
    made = summary.comparison
    if made is None or made.verdict == "void":
        return None
    ratio, low, high = made.time_ratio, made.time_ratio_low, made.time_ratio_high
    return None if ratio is None or low is None or high is None else (ratio, low, high)


def _answer(record: Record, cell: int | None) -> str:
    decision = record.derived.decision if cell is None else record.derived.cells[cell].decision
    return f"{decision.kind} {decision.variant}" if decision.variant else decision.kind


def _decision(cell: str, old: str, new: str) -> list[DecisionChange]:
    return [DecisionChange(cell, old, new)] if old != new else []
