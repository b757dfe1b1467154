"""The tables of the measured part of the report, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.timing.cost import Choice
from benchmarks.timing.real import Foretold, Price, RealReport, Spread
from benchmarks.timing.trials import Tally


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a title that starts with ``>`` is a column of numbers."""
    marks = ["--:" if title.startswith(">") else "---" for title in titles]
    lines = [[title.removeprefix(">") for title in titles], marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(value: float | None) -> str:
    """A fraction as a percentage with two significant digits at least; empty for None."""
    if value is None:
        return ""
    return f"{100 * value:.2g}%" if abs(value) < 0.1 else f"{100 * value:.0f}%"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def identical_table(spreads: dict[str, Spread]) -> str:
    """False verdicts on identical plans, and the sum over all."""
    rows = [[name, *_counts(spread.tally)] for name, spread in spreads.items()]
    tallies = [spread.tally for spread in spreads.values()]
    total = [
        "**all**",
        str(sum(t.trials for t in tallies)),
        *(f"**{sum(values)}**" for values in zip(*(_numbers(t) for t in tallies), strict=True)),
        "",
    ]
    titles = (
        "identical plans", ">trials", ">false verdicts", ">void",
        ">one after the other, Welch t", ">pooled, Welch t", ">half-width (median)",
    )  # fmt: skip
    return table(titles, [*rows, total])


def _numbers(tally: Tally) -> tuple[int, ...]:
    return tally.found, tally.verdicts.get("void", 0), tally.one_after_the_other, tally.pooled


def _counts(tally: Tally) -> list[str]:
    return [str(tally.trials), *map(str, _numbers(tally)), percent(tally.half_width)]


def truth_table(truth: dict[str, Tally]) -> str:
    """How often the interval holds an injected ratio."""
    titles = (
        "true time ratio", ">trials", ">interval holds it", ">called slower", ">called faster",
        ">one after the other: holds it", ">pooled: holds it", ">half-width (median)",
    )  # fmt: skip
    return table(
        titles,
        [
            [
                ratio,
                str(t.trials),
                f"**{t.covered}**",
                str(t.verdicts.get("slower", 0)),
                str(t.verdicts.get("faster", 0)),
                str(t.one_after_the_other_covered),
                str(t.pooled_covered),
                percent(t.half_width),
            ]
            for ratio, t in truth.items()
        ],
    )


def block_table(blocks: dict[str, tuple[tuple[Choice, float, float], ...]]) -> str:
    """What a block's length is worth."""
    titles = (
        "plan", ">lead-in", ">block", ">deviation of a session", ">half-width of 2%, 2 variants",
    )  # fmt: skip
    return table(
        titles,
        [
            [
                name,
                f"{choice.lead_in_ns / 1e6:.0f} ms",
                f"{choice.block_ns / 1e6:.0f} ms",
                percent(deviation),
                duration(seconds),
            ]
            for name, rows in blocks.items()
            for choice, deviation, seconds in rows
        ],
    )


def settling_table(settling: dict[str, tuple[tuple[int, float], ...]]) -> str:
    """How much slower a plan runs after it was continued."""
    edges = sorted({edge for rows in settling.values() for edge, _ in rows})
    titles = ("ms since the worker was continued", *(f">{edge / 1e6:g}" for edge in edges))
    return table(
        titles,
        [
            [name, *(f"{100 * found[e]:+.1f}%" if e in found else "" for e in edges)]
            for name, found in ((n, dict(rows)) for n, rows in settling.items())
        ],
    )


def price_table(prices: dict[str, tuple[Price, ...]]) -> str:
    """Wall time to a half-width."""
    widths = sorted({p.half_width for rows in prices.values() for p in rows}, reverse=True)
    titles = ("plan", ">variants", *(f">±{100 * w:g}%" for w in widths))
    rows = []
    for name, found in prices.items():
        by = {(p.variants, p.half_width): p for p in found}
        for variants in sorted({p.variants for p in found}):
            cells = [by[variants, w] for w in widths]
            rows.append(
                [
                    name,
                    str(variants),
                    *(f"{duration(p.seconds)} ({p.sessions} sessions)" for p in cells),
                ]
            )
    return table(titles, rows)


def foretold_table(foretold: dict[str, tuple[Foretold, ...]]) -> str:
    """Sessions foretold against sessions that it took."""
    titles = ("plan", ">half-width", ">sessions foretold", ">sessions it took (median)", ">pairs")
    return table(
        titles,
        [
            [
                name,
                f"±{100 * f.half_width:g}%",
                str(f.foretold),
                "not reached by half" if f.observed is None else f"{f.observed:g}",
                f"{f.pairs} of {f.of}",
            ]
            for name, rows in foretold.items()
            for f in rows
        ],
    )


def arrangement_table(report: RealReport) -> str:
    """One process a plan against one process for all."""
    titles = (
        "plan", "arrangement", ">quiet sessions", ">deviation", ">session of 10",
        ">half-width of 2%, 2 variants", ">other sessions", ">their deviation",
        ">false of all trials",
    )  # fmt: skip
    rows = []
    for name, own in report.identical.items():
        one = report.shared.get(name)
        for arrangement, spread in (("own processes", own), ("one process", one)):
            if spread is not None:
                rows.append([name, arrangement, *_arrangement(spread)])
    return table(titles, rows)


def _arrangement(spread: Spread) -> list[str]:
    cost, seconds, loud = spread.cost, spread.seconds_to_2_percent, spread.loud_deviation
    return [
        str(spread.quiet),
        "" if cost is None else percent(cost.deviation),
        "" if cost is None else duration(cost.session_ns(10) / 1e9),
        "" if seconds is None else duration(seconds),
        str(spread.sessions - spread.quiet),
        "" if loud is None else percent(loud),
        f"{spread.tally.found} of {spread.tally.trials}",
    ]
