"""What changed between two records, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bitworth.record.difference import Difference, VariantChange

_WHY = {
    "plan": "another plan: its graph, recipe or engine wrote other bytes",
    "environment": "the same plan: only the environment differs",
    "nothing": "the same plan in the same environment: what differs was not recorded",
}


def render(found: Difference) -> Group:
    """Decisions first, then variants with what could explain them, then the environment."""
    return Group(*_parts(found))


def _parts(found: Difference) -> Iterator[RenderableType]:
    if not found.same_subject:
        yield Text("The models differ: this compares two questions.", style="yellow")
    if not found.same_policy:
        yield Text("The policies differ: a decision may have changed with them alone.")
    if not found.decisions:
        yield Text("Every decision is what it was.")
    for decision in found.decisions:
        name = decision.cell or "the study"
        yield Text(f"{name}: was '{decision.old}', is '{decision.new}'", style="bold")
    if found.variants:
        yield Text()
        yield _variants(found.variants)
    else:
        yield Text("Every verdict is what it was, and every interval meets the older one.")
    for title, names in (("Only before", found.only_old), ("Only now", found.only_new)):
        if names:
            yield Text(f"{title}: {', '.join(names)}")
    if found.environment:
        yield Text()
        yield _environment(found)
    else:
        yield Text("The environment is the same.")


def _variants(changes: tuple[VariantChange, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("cell", "variant", "was", "is", "intervals", "what could explain it"):
        table.add_column(title, overflow="fold")
    for change in changes:
        table.add_row(
            Text(change.cell),
            Text(change.variant),
            Text(_told(change.old_verdict, change.old_ratio)),
            Text(_told(change.new_verdict, change.new_ratio)),
            Text("apart" if change.beyond else "meet"),
            Text(_WHY[change.explained]),
        )
    return table


def _told(verdict: str, ratio: tuple[float, float, float] | None) -> str:
    if ratio is None:
        return verdict or "no time"
    value, low, high = ratio
    return f"{verdict} {1 / value:.3f}× ({1 / high:.3f} to {1 / low:.3f})"


def _environment(found: Difference) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("environment", "was", "is"):
        table.add_column(title, overflow="fold")
    for change in found.environment:
        table.add_row(Text(change.what), Text(change.old or "none"), Text(change.new or "none"))
    return table
