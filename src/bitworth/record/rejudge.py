"""What today's rules make of a record's facts, and what that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bitworth.record.address import pointer
from bitworth.record.derive import cell_names, derive
from bitworth.record.schema import Record
from bitworth.verdict import Comparison, Decision, Gate, TimingRules

#: Fields of a comparison that a change shows for itself.
_SHOWN = ("verdict", "time_ratio", "time_ratio_low", "time_ratio_high", "gates")


@dataclass(frozen=True)
class GateChange:
    """A check by name with the states that it had and has; empty where there was or is none."""

    name: str
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonChange:
    """A comparison that today's rules judge otherwise.

    Attributes:
        cell: index of its cell.
        variant: index of its variant among the cell's.
        which: ``comparison`` with the baseline, or ``against_best``.
        old: as recorded; None when there was none.
        new: by today's rules.
        gates: checks whose state changed.
        also: other fields that changed.
    """

    cell: int
    variant: int
    which: str
    old: Comparison | None
    new: Comparison | None
    gates: tuple[GateChange, ...]
    also: tuple[str, ...]


@dataclass(frozen=True)
class DecisionChange:
    """A decision that changed: of the cell of this name, or of the study where it is empty."""

    cell: str
    old: Decision
    new: Decision


@dataclass(frozen=True)
class RuleChange:
    """A constant of the verdicts that is not what it was."""

    name: str
    old: float
    new: float


@dataclass(frozen=True)
class Rejudgement:
    """A record judged again.

    Attributes:
        old: the record as it is stored.
        new: the same facts with today's conclusions.
        rules: constants that differ.
        comparisons: comparisons that differ, by cell and variant.
        decisions: decisions that differ, the study's last.
        others: addresses of what else differs.
        changed: whether anything differs at all, the version of the rules included.
    """

    old: Record
    new: Record
    rules: tuple[RuleChange, ...]
    comparisons: tuple[ComparisonChange, ...]
    decisions: tuple[DecisionChange, ...]
    others: tuple[str, ...]
    changed: bool


def rejudge(record: Record) -> Rejudgement:
    """Derive a record's conclusions again, by today's rules, and compare them with its own.

    Raises:
        UserError: what the study asked of its timing is out of range.
    """
    new = record.model_copy(update={"derived": derive(record.facts)})
    before, after = (r.derived.model_dump(mode="json") for r in (record, new))
    return Rejudgement(
        old=record,
        new=new,
        rules=_rules(record.derived.timing, new.derived.timing),
        comparisons=tuple(_comparisons(record, new)),
        decisions=tuple(_decisions(record, new)),
        others=tuple(dict.fromkeys(_others(before, after, ("derived",)))),
        changed=before != after,
    )


def _rules(old: TimingRules, new: TimingRules) -> tuple[RuleChange, ...]:
    pairs = [(f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(TimingRules)]
    return tuple(RuleChange(*pair) for pair in pairs if pair[1] != pair[2])


def _comparisons(old: Record, new: Record) -> Iterator[ComparisonChange]:
    for i, (before, after) in enumerate(zip(old.derived.cells, new.derived.cells, strict=True)):
        was = {v.variant: v for v in before.variants}
        for j, now in enumerate(after.variants):
            for which in ("comparison", "against_best"):
                a = getattr(was.get(now.variant), which, None)
                b = getattr(now, which)
                if a != b:
                    yield ComparisonChange(i, j, which, a, b, _gates(a, b), _also(a, b))


def _gates(old: Comparison | None, new: Comparison | None) -> tuple[GateChange, ...]:
    before, after = (c.gates if c is not None else () for c in (old, new))
    names = dict.fromkeys(gate.name for gate in (*before, *after))
    found = [GateChange(name, _states(before, name), _states(after, name)) for name in names]
    return tuple(gate for gate in found if gate.old != gate.new)


def _states(gates: Sequence[Gate], name: str) -> tuple[str, ...]:
    return tuple(gate.state for gate in gates if gate.name == name)


def _also(old: Comparison | None, new: Comparison | None) -> tuple[str, ...]:
    if old is None or new is None:
        return ()
    names = [f.name for f in fields(Comparison) if f.name not in _SHOWN]
    return tuple(name for name in names if getattr(old, name) != getattr(new, name))


def _decisions(old: Record, new: Record) -> Iterator[DecisionChange]:
    cells = zip(old.derived.cells, new.derived.cells, strict=True)
    for name, (before, after) in zip(cell_names(new.facts), cells, strict=True):
        if before.decision != after.decision:
            yield DecisionChange(name, before.decision, after.decision)
    if old.derived.decision != new.derived.decision:
        yield DecisionChange("", old.derived.decision, new.derived.decision)


def _others(old: Any, new: Any, path: tuple[str | int, ...]) -> Iterator[str]:
    """Addresses that differ, but for what the changes of comparisons, decisions and rules tell."""
    if old == new or path[-1] in _TOLD:
        return
    if isinstance(old, dict) and isinstance(new, dict) and path[-2:-1] != ("verdicts",):
        for key in sorted({*old, *new}):
            yield from _others(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _others(a, b, (*path, index))
    else:
        yield pointer(*path)


_TOLD = ("rules_version", "timing", "comparison", "against_best", "decision")
