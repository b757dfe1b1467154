"""What all charts have in common: fonts, inks, the compiler, and a title."""

from __future__ import annotations

from typing import Any

import altair as alt

FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
INK, MUTED, GRID = "#1b1f24", "#57606a", "#e6e8eb"
_COMPILER = "6.1"


def compiled(chart: Any) -> str:
    """A chart as SVG; the same chart gives the same bytes."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_dict(validate=False), vl_version=_COMPILER))


def chart_title(text: str) -> alt.Title:
    """The title of a whole chart, above its panels."""
    return alt.Title(text, anchor="start", fontSize=16, color=INK, offset=14)
