"""Where the time goes: a stacked bar for each plan, one panel a cell."""

from __future__ import annotations

from typing import Any

import altair as alt

from bitworth.record.address import shown
from bitworth.record.chart_style import FONT, GRID, INK, MUTED, chart_title, compiled
from bitworth.record.names import BASELINE
from bitworth.record.op_classes import (
    ATTENTION,
    CLASSES,
    CONVERSION,
    MOVEMENT,
    NORMALIZATION,
    OTHER,
    POINTWISE,
    PRODUCT,
    REDUCTION,
)
from bitworth.record.plot import shown_name
from bitworth.record.schema import CellDerived, Record
from bitworth.record.tables import cell_title

WIDTH, BAR = 640, 26
# Okabe and Ito again; conversions, which cost what a format saves, in the warning colour.
_COLOURS = {
    PRODUCT: "#0072B2", ATTENTION: "#56B4E9", NORMALIZATION: "#CC79A7", POINTWISE: "#009E73",
    REDUCTION: "#F0E442", MOVEMENT: "#E69F00", CONVERSION: "#D55E00", OTHER: "#9aa0a6",
}  # fmt: skip
_DARK = {PRODUCT, CONVERSION, POINTWISE}
#: A part of a bar that is narrower than this share of the axis has no number in it.
_TOLD = 0.045


def time_split_svg(record: Record) -> str:
    """The chart as SVG; the same record gives the same bytes."""
    return compiled(time_split_chart(record))


def time_split_chart(record: Record) -> alt.VConcatChart:
    """A bar for each plan with a profile; its length is the measured time over the baseline's.

    The parts are the shares of the plan's own profile. A plan that was profiled and has no verdict
    about its time has no length, and no bar.
    """
    cells = enumerate(record.derived.cells)
    panels = [_panel(record, i, cell) for i, cell in cells if len(cell.splits) > 1]
    title = chart_title(f"Where the time goes: {shown(record, '/facts/subject/name')}")
    chart: alt.VConcatChart = (
        alt.vconcat(*panels, title=title, background="white", padding=14)
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            gridColor=GRID, domainColor=MUTED, tickColor=MUTED, labelColor=INK,
            titleColor=INK, labelFontSize=12, titleFontSize=13, titleFontWeight="normal",
            titlePadding=8, labelLimit=240,
        )
        .configure_legend(labelFontSize=12, titleFontSize=12, labelColor=INK, symbolSize=130)
        .configure_concat(spacing=30)
    )  # fmt: skip
    return chart


def time_ratios(cell: CellDerived) -> dict[str, float]:
    """By plan with a profile its measured time over the baseline's, where there is one."""
    found = {
        v.variant: v.comparison.time_ratio
        for v in cell.variants
        if v.comparison is not None and v.comparison.verdict != "void"
    }
    known = {BASELINE: 1.0} | {name: ratio for name, ratio in found.items() if ratio}
    return {s.variant: known[s.variant] for s in cell.splits if s.variant in known}


def _panel(record: Record, i: int, cell: CellDerived) -> alt.LayerChart:
    ratios = time_ratios(cell)
    rows: list[dict[str, Any]] = []
    longest = max(ratios.values(), default=1.0)
    for split in cell.splits:
        if split.variant not in ratios:
            continue
        start, ratio = 0.0, ratios[split.variant]
        # Rounded shares need not sum to 1; a bar ends where its time does.
        total = sum(s.share_of_profile for s in split.by_class)
        for share in split.by_class:
            end = start + share.share_of_profile / total * ratio
            told = f"{share.share_of_profile * 100:.0f}%"
            rows.append(
                {
                    "plan": shown_name(split.variant),
                    "work": share.name,
                    "start": start,
                    "end": end,
                    "middle": (start + end) / 2,
                    "told": told if end - start >= _TOLD * longest else "",
                    "dark": share.name in _DARK,
                }
            )
            start = end
    order = list(dict.fromkeys(row["plan"] for row in rows))
    present = [name for name in CLASSES if any(row["work"] == name for row in rows)]
    colour = alt.Color(
        "work:N", sort=None, title=None,
        scale=alt.Scale(domain=present, range=[_COLOURS[name] for name in present]),
        legend=alt.Legend(orient="top", columns=4, symbolType="square", labelLimit=260),
    )  # fmt: skip
    y = alt.Y("plan:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False))
    x = alt.X(
        "start:Q", title="time over the baseline's (lower is better)",
        scale=alt.Scale(domain=[0, longest * 1.02], nice=False),
    )  # fmt: skip
    base = alt.Chart(alt.InlineData(values=rows))
    bars = base.mark_bar(height=BAR - 8, stroke="white", strokeWidth=0.8).encode(
        x=x, x2="end:Q", y=y, color=colour
    )
    numbers = base.mark_text(fontSize=11.5, baseline="middle").encode(
        x=alt.X("middle:Q"),
        y=y,
        text="told:N",
        color=alt.condition("datum.dark", alt.value("white"), alt.value(INK)),
    )
    line = (
        alt.Chart(alt.InlineData(values=[{"one": 1.0}]))
        .mark_rule(color=MUTED, strokeDash=[3, 3])
        .encode(x="one:Q")
    )
    return alt.LayerChart(
        layer=[bars, line, numbers],
        width=WIDTH,
        height=BAR * max(1, len(order)),
        title=alt.Title(
            cell_title(record, i).text, anchor="start", frame="group", fontSize=14, color=INK,
            subtitle=_absent(cell, ratios), subtitleColor=MUTED, subtitleFontSize=12, offset=10,
        ),
    )  # fmt: skip


def _absent(cell: CellDerived, ratios: dict[str, float]) -> list[str]:
    missing = [shown_name(s.variant) for s in cell.splits if s.variant not in ratios]
    return [f"not drawn, without a time: {', '.join(missing)}"] if missing else []
