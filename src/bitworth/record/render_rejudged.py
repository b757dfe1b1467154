"""What judging a record again changed, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bitworth.record.address import clean, pointer, shown
from bitworth.record.rejudge import ComparisonChange, DecisionChange, GateChange, Rejudgement
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title, speedup

#: Addresses of other changes that are listed; more are counted.
_LISTED = 8


def render(found: Rejudgement) -> Group:
    """Rules, comparisons and decisions, each as it was and as it is now."""
    if not found.changed:
        return Group(Text("nothing changed"))
    parts: list[RenderableType] = [Text(line) for line in _rules(found)]
    everywhere = _everywhere(found)
    parts += [Text(f"check of every comparison that changed: {_gate(gate)}") for gate in everywhere]
    shown_changes = [c for c in found.comparisons if set(c.gates) - set(everywhere) or c.also or
                     not _same(found, c)]  # fmt: skip
    if shown_changes:
        parts.append(_table(found, shown_changes, everywhere))
    total = sum(
        (v.comparison is not None) + (v.against_best is not None)
        for cell in found.new.derived.cells
        for v in cell.variants
    )
    if same := total - len(shown_changes):
        other = "other " if shown_changes else ""
        parts.append(Text(f"{same} {other}comparisons: verdict and interval as before"))
    for change in found.decisions:
        parts += _decision(change)
    if not found.decisions:
        parts.append(Text(f"no decision changed: {clean(found.new.derived.decision.sentence)}"))
    if found.others:
        more = len(found.others) - _LISTED
        listed = ", ".join(found.others[:_LISTED]) + (f" and {more} more" if more > 0 else "")
        parts.append(Text(f"also changed: {clean(listed)}"))
    return Group(*parts)


def as_json(found: Rejudgement) -> dict[str, Any]:
    """The changes as plain values; ``derived`` is what ``--write`` stores."""
    old, new = found.old.derived, found.new.derived
    return {
        "id": found.new.id,
        "changed": found.changed,
        "rules_version": {"old": old.rules_version, "new": new.rules_version},
        "rules": [asdict(rule) for rule in found.rules],
        "comparisons": [
            {**asdict(change), "variant": _name(found, change)} for change in found.comparisons
        ],
        "decisions": [asdict(change) for change in found.decisions],
        "others": list(found.others),
        "derived": new.model_dump(mode="json"),
    }


def _rules(found: Rejudgement) -> list[str]:
    old, new = found.old.derived.rules_version, found.new.derived.rules_version
    lines = [f"rules: version {old} -> {new}" if old != new else f"rules: version {new} as before"]
    return lines + [f"  {rule.name}: {rule.old} -> {rule.new}" for rule in found.rules]


def _decision(change: DecisionChange) -> list[RenderableType]:
    """A decision's kind, and of its sentence the parts that are not in the other one."""
    was, now = (clean(d.sentence).split("; ") for d in (change.old, change.new))
    kinds = dict.fromkeys((change.old.kind, change.new.kind))
    lines = [
        f"  {word}: {'; '.join(part for part in ours if part not in theirs) or 'nothing else'}"
        for word, ours, theirs in (("was", was, now), ("now", now, was))
    ]
    where = clean(change.cell) or "the study"
    return [
        Text(f"decision of {where}: {' -> '.join(kinds)}", style="bold"),
        *(Text(text) for text in lines),
    ]


def _everywhere(found: Rejudgement) -> tuple[GateChange, ...]:
    """Changes of checks that all changed comparisons have: such as a check that is new."""
    if len(found.comparisons) < 2:
        return ()
    first, *rest = found.comparisons
    return tuple(gate for gate in first.gates if all(gate in c.gates for c in rest))


def _gate(gate: GateChange) -> str:
    return f"{gate.name}: {', '.join(gate.old) or 'none'} -> {', '.join(gate.new) or 'none'}"


def _same(found: Rejudgement, change: ComparisonChange) -> bool:
    return _row(found.old, found, change) == _row(found.new, found, change)


def _table(
    found: Rejudgement, changes: Sequence[ComparisonChange], everywhere: Sequence[GateChange]
) -> Table:
    # One line for what was and one for what is: the two stand below one another.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    titles = ("variant", "", "verdict", "speed-up (interval)", "checks that changed, and what else")
    for title in titles:
        table.add_column(title, overflow="fold")
    cell = -1
    for change in changes:
        if change.cell != cell:
            cell = change.cell
            table.add_row(Text(cell_title(found.new, cell).text, style="bold"))
        name = clean(_name(found, change))
        against = " against the best" if change.which == "against_best" else ""
        checks = [_gate(gate) for gate in change.gates if gate not in everywhere]
        checks += [field.removesuffix("_ratio").replace("_", " ") for field in change.also]
        was, now = (_row(record, found, change) for record in (found.old, found.new))
        told = Text(clean("; ".join(checks)))
        if was == now:
            table.add_row(Text(name + against), "as before", *map(Text, now), told)
        else:
            table.add_row(Text(name + against), "was", *map(Text, was), "")
            table.add_row("", "now", *map(Text, now), told)
    return table


def _name(found: Rejudgement, change: ComparisonChange) -> str:
    return found.new.derived.cells[change.cell].variants[change.variant].variant


def _row(record: Record, found: Rejudgement, change: ComparisonChange) -> tuple[str, str]:
    """Verdict and interval of one side of a change."""
    variants, name = record.derived.cells[change.cell].variants, _name(found, change)
    index = next((j for j, v in enumerate(variants) if v.variant == name), None)
    if index is None or getattr(variants[index], change.which) is None:
        return "none", "–"
    path = ("derived", "cells", change.cell, "variants", index, change.which)
    return shown(record, pointer(*path, "verdict")), speedup(record, path).text
