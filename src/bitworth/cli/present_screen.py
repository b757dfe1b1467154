"""A screen as a table, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bitworth.study.screening import Prospect, Screen

#: Variants that are named as worth building.
WORTH = 3


def render(screen: Screen) -> Group:
    """The prospects of one engine, what they rest on, and what to build."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    heads = ("group", "format", "sites", "share of the time", "at most", "expected", "within reach")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < 2 or place == 6 else "right")
    for p in screen.prospects:
        table.add_row(
            p.group,
            p.format,
            str(p.sites),
            f"{p.outlook.share:.1%}",
            f"{p.outlook.ceiling:.2f}×",
            "–" if p.outlook.expected is None else f"{p.outlook.expected:.2f}×",
            "yes" if p.within_reach else "no",
        )
    there = screen.limits.device if screen.evidence == "estimated" else screen.device
    title = Text(f"{screen.engine} {screen.version}, {there}", style="bold")
    return Group(title, table, Text(_basis(screen)), Text(_advice(screen)), Text())


def _basis(screen: Screen) -> str:
    limits = screen.limits
    mapped = sum(layer.time_ns for layer in screen.profile.layers if layer.sites)
    total = sum(layer.time_ns for layer in screen.profile.layers)
    if screen.evidence == "estimated":
        return (
            f"Every number is estimated: time of each operator on {limits.device}, from rates that "
            f"were measured there through {limits.engine} {limits.engine_version}, with a baseline "
            f"in {limits.products[0].format}. Within reach of {screen.min_speedup:.4g}×."
        )
    return (
        f"At most: {screen.evidence} from the baseline's own profile ({len(screen.profile.layers)} "
        f"layers, {mapped / total:.0%} of their time mapped to sites) and the highest rates of "
        "this device. Expected: estimated from products of the sites' own shapes, alone. Within "
        f"reach of {screen.min_speedup:.4g}×."
    )


def _advice(screen: Screen) -> str:
    chosen = worth_building(screen)
    if not chosen:
        return f"No group can reach {screen.min_speedup:.4g}×: nothing is worth building here."
    named = "; ".join(f"{p.format} {p.group} ({_expected(p)})" for p in chosen)
    return f"Worth building, best first: {named}."


def _expected(prospect: Prospect) -> str:
    if prospect.outlook.expected is None:
        return f"at most {prospect.outlook.ceiling:.2f}×"
    return f"expected {prospect.outlook.expected:.2f}×"


def worth_building(screen: Screen) -> list[Prospect]:
    """The few prospects that can reach the policy's speed-up, best first.

    What is expected to stay below it is left out, where that is known.
    """
    return [
        p
        for p in screen.prospects
        if p.within_reach and (p.outlook.expected or p.outlook.ceiling) >= screen.min_speedup
    ][:WORTH]


def as_json(screen: Screen) -> dict[str, Any]:
    """Plain values with their evidence."""
    return {
        "engine": screen.engine,
        "version": screen.version,
        "device": screen.device,
        "min_speedup": screen.min_speedup,
        "limits": screen.limits.model_dump(mode="json"),
        "profile": screen.profile.model_dump(mode="json"),
        "prospects": [
            {
                "group": p.group,
                "format": p.format,
                "sites": p.sites,
                "within_reach": p.within_reach,
                **asdict(p.outlook),
                "ceiling_evidence": screen.evidence,
                "expected_evidence": "estimated",
            }
            for p in screen.prospects
        ],
    }
