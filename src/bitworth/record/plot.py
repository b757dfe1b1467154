"""Speed-up against loss of every variant that was timed, one panel a cell."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import altair as alt

from bitworth.record.address import clean, loss_unit, shown
from bitworth.record.chart_style import FONT, GRID, INK, MUTED, chart_title, compiled
from bitworth.record.labels import Frame, Label, Spot, place_labels
from bitworth.record.names import BASELINE
from bitworth.record.schema import Record, VariantSummary
from bitworth.record.tables import cell_title, fact_of, metric_names

WIDTH, HEIGHT = 430, 330
# Okabe, M. and Ito, K. (2008), Color Universal Design. Black is the baseline; yellow is too light
# for a point, so it shades the policy's corner.
_CORNER = "#F0E442"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# One more shape than colours, so that no pair of both comes twice among 42 variants.
_SHAPES = (
    "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "circle",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A variant in the picture: speed-up and loss, each with its interval."""

    name: str
    x: float
    x_low: float
    x_high: float
    y: float
    y_low: float
    y_high: float


@dataclass(frozen=True)
class Loss:
    """What the upright axis shows: a task metric, or relative L2 where ``metric`` is empty."""

    metric: str
    title: str
    scale: float
    limit: float | None


def speed_loss_svg(record: Record) -> str:
    """The chart as SVG; the same record gives the same bytes."""
    return compiled(speed_loss_chart(record))


def speed_loss_chart(record: Record) -> alt.ConcatChart:
    """Speed-up (x) against loss (y) with intervals; the policy's corner is shaded.

    Loss is of the policy's first metric, or else the first metric, or else relative L2.
    """
    loss = _loss(record)
    panels = [_panel(record, i, loss) for i in range(len(record.derived.cells))]
    title = chart_title(f"Speed against loss: {shown(record, '/facts/subject/name')}")
    chart: alt.ConcatChart = (
        alt.concat(*panels, columns=2, title=title, background="white", padding=14)
        .configure(font=FONT)
        .configure_view(stroke=GRID)
        .configure_axis(
            gridColor=GRID, domainColor=MUTED, tickColor=MUTED, labelColor=MUTED,
            titleColor=INK, labelFontSize=12, titleFontSize=13, titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_concat(spacing=36)
    )  # fmt: skip
    return chart


def _loss(record: Record) -> Loss:
    policy, metrics = record.facts.policy, metric_names(record)
    if not metrics:
        return Loss("", "relative L2 error (lower is better)", 1.0, policy.max_rel_l2)
    metric = metrics[0]
    unit = loss_unit(record, metric)
    scale = 100.0 if unit else 1.0
    unit = f", {unit}" if unit else ""
    limit = dict(policy.max_loss).get(metric)
    title = f"loss of {shown_name(metric)}{unit} (lower is better)"
    return Loss(metric, title, scale, None if limit is None else limit * scale)


def _points(record: Record, i: int, loss: Loss) -> list[Point]:
    points = []
    for summary in record.derived.cells[i].variants:
        y = _interval(summary, loss)
        if summary.variant == BASELINE:
            zero = y[0] if y is not None and not loss.metric else 0.0
            points.append(Point(BASELINE, 1.0, 1.0, 1.0, zero, zero, zero))
            continue
        made = summary.comparison
        if made is None or made.verdict == "void" or y is None:
            continue
        ratio, low, high = made.time_ratio, made.time_ratio_low, made.time_ratio_high
        if ratio and low and high:
            points.append(Point(summary.variant, 1 / ratio, 1 / high, 1 / low, *y))
    return points


def _interval(summary: VariantSummary, loss: Loss) -> tuple[float, float, float] | None:
    if not loss.metric:
        error = summary.rel_l2
        return None if error is None else (error, error, error)
    for found in summary.losses:
        if found.metric == loss.metric:
            low, high = found.low * loss.scale, found.high * loss.scale
            return found.loss * loss.scale, low, high
    return None


def _frame(points: list[Point], min_speedup: float, limit: float | None) -> Frame:
    """Axis ranges that hold every interval and the policy's corner, with room for labels."""
    xs = [1.0, min_speedup, *(v for p in points for v in (p.x_low, p.x_high))]
    ys = [0.0, *(v for p in points for v in (p.y_low, p.y_high))]
    if limit is not None:
        ys.append(limit)
    x_room = 0.14 * (max(xs) - min(xs)) or 0.1
    y_room = 0.10 * (max(ys) - min(ys)) or 1.0
    return Frame(
        min(xs) - x_room, max(xs) + x_room, min(ys) - y_room, max(ys) + y_room, WIDTH, HEIGHT
    )


def _panel(record: Record, i: int, loss: Loss) -> alt.LayerChart:
    points = _points(record, i, loss)
    limit, min_speedup = loss.limit, record.facts.policy.min_speedup
    frame = _frame(points, min_speedup, limit)
    rows = [
        {
            "name": shown_name(p.name), "x": p.x, "x_low": p.x_low, "x_high": p.x_high,
            "y": p.y, "y_low": p.y_low, "y_high": p.y_high,
        }
        for p in points
    ]  # fmt: skip
    names = [str(row["name"]) for row in rows]
    colours = [
        INK if p.name == BASELINE else _COLOURS[(k - 1) % len(_COLOURS)]
        for k, p in enumerate(points)
    ]
    colour = alt.Color(
        "name:N", legend=None, scale=alt.Scale(domain=names, range=colours), sort=None
    )
    shapes = [_SHAPES[(k - 1) % len(_SHAPES)] for k in range(len(points))]
    shape = alt.Shape("name:N", legend=None, scale=alt.Scale(domain=names, range=shapes))
    x = alt.X(
        "x:Q", title="speed-up over the baseline (higher is better)",
        scale=alt.Scale(domain=[frame.x_low, frame.x_high], nice=False, zero=False),
        axis=alt.Axis(tickCount=6),
    )  # fmt: skip
    y = alt.Y(
        "y:Q", title=loss.title,
        scale=alt.Scale(domain=[frame.y_low, frame.y_high], nice=False, zero=False),
        axis=alt.Axis(tickCount=6),
    )  # fmt: skip
    base = alt.Chart(alt.InlineData(values=rows))
    layers: list[alt.Chart] = [
        _corner(frame, min_speedup, limit),
        _line(x=1.0),
        _line(y=0.0),
        base.mark_rule(strokeWidth=1.8, opacity=0.75).encode(
            x=alt.X("x_low:Q"), x2="x_high:Q", y=y, color=colour
        ),
        base.mark_rule(strokeWidth=1.8, opacity=0.75).encode(
            y=alt.Y("y_low:Q"), y2="y_high:Q", x=x, color=colour
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape
        ),
    ]
    spots = [
        Spot(row_name, p.x, p.y, (p.x_low, p.x_high), (p.y_low, p.y_high))
        for row_name, p in zip(names, points, strict=True)
    ]
    labels = place_labels(spots, frame)
    # Under the points, as a hair must not cross a mark.
    layers[3:3] = [_leader(label) for label in labels if label.leader is not None]
    layers += [_label(label) for label in labels]
    return alt.LayerChart(
        layer=layers, width=WIDTH, height=HEIGHT, title=_panel_title(record, i, points, loss)
    )


def shown_name(name: str) -> str:
    """A name on one line, cut where it would run through the picture."""
    text = clean(name)
    return text if len(text) <= 32 else text[:31] + "…"


def _corner(frame: Frame, min_speedup: float, limit: float | None) -> alt.Chart:
    top = frame.y_high if limit is None else limit
    area = {"x": min_speedup, "x2": frame.x_high, "y": frame.y_low, "y2": top}
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[area]))
        .mark_rect(color=_CORNER, opacity=0.28)
        .encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q")
    )
    return chart


def _line(**where: float) -> alt.Chart:
    """A line through the baseline: upright at ``x``, level at ``y``."""
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[where]))
        .mark_rule(color=MUTED, strokeDash=[3, 3], opacity=0.7)
        .encode(**{axis: f"{axis}:Q" for axis in where})
    )
    return chart


def _leader(label: Label) -> alt.Chart:
    """A hair from a label to its point, where another point lies nearer."""
    assert label.leader is not None
    row = {"x": label.x, "y": label.y, "x2": label.leader[0], "y2": label.leader[1]}
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[row]))
        .mark_rule(color=MUTED, strokeWidth=0.8)
        .encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q")
    )
    return chart


def _label(label: Label) -> alt.Chart:
    row = {"x": label.x, "y": label.y, "text": label.text}
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[row]))
        .mark_text(
            align=label.align, baseline="middle", dx=label.dx, dy=label.dy, fontSize=12.5,
            color=INK,
        )
        .encode(x="x:Q", y="y:Q", text="text:N")
    )  # fmt: skip
    return chart


def _panel_title(record: Record, i: int, points: list[Point], loss: Loss) -> alt.Title:
    policy = f"shaded: the policy, speed-up at least {record.facts.policy.min_speedup:.4g}"
    if loss.limit is not None:
        policy += f" and loss at most {loss.limit:.4g}"
    lines = [policy, *_absent(record, i, {p.name for p in points}, loss)]
    wrapped = [part for text in lines for part in textwrap.wrap(text, 66)]
    return alt.Title(
        cell_title(record, i).text, subtitle=wrapped, anchor="start", frame="group", fontSize=14,
        color=INK, subtitleColor=MUTED, subtitleFontSize=12, subtitlePadding=5, offset=10,
    )  # fmt: skip


def _absent(record: Record, i: int, drawn: set[str], loss: Loss) -> list[str]:
    """Variants that have no place in the picture, by reason."""
    found: dict[str, list[str]] = {}
    for summary in record.derived.cells[i].variants:
        if summary.variant in drawn:
            continue
        name = shown_name(summary.variant)
        y = _interval(summary, loss)
        if summary.evidence == "emulated" and y is not None:
            name += f" (loss {y[0]:+.3g}, {y[1]:+.3g} to {y[2]:+.3g})" if loss.metric else ""
        found.setdefault(_why_absent(record, i, summary), []).append(name)
    return [f"not drawn, {why}: {', '.join(names)}" for why, names in sorted(found.items())]


def _why_absent(record: Record, i: int, summary: VariantSummary) -> str:
    state = fact_of(record, i, summary.variant)[1].state
    if state != "measured":
        return "emulated, so without a time" if state == "emulated" else state
    if summary.comparison is None:
        return "not timed"
    return "void" if summary.comparison.verdict == "void" else "without a measured loss"
