"""The tables of the synthetic part of the report, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.timing.machines import NamedStopping
from benchmarks.timing.render_real import percent, table
from benchmarks.timing.synthetic import IdenticalPlans, InjectedTruth, SequentialCounts
from benchmarks.timing.synthetic_carry_over import CarryOver
from benchmarks.timing.synthetic_power import Power

_SEQUENTIAL = (">fixed order, Welch t", ">halves, Welch t", ">pooled, Welch t")


def _share(count: int, trials: int) -> str:
    return f"{100 * count / trials:.1f}%"


def _counts(counts: SequentialCounts, trials: int) -> list[str]:
    return [_share(n, trials) for n in (counts.fixed_order, counts.halved, counts.pooled)]


def identical_table(found: Sequence[IdenticalPlans]) -> str:
    """False verdicts under each kind of noise."""
    titles = ("noise", ">trials", ">false verdicts", ">void", *_SEQUENTIAL)
    return table(
        titles,
        [
            [
                row.noise,
                str(row.trials),
                f"**{_share(row.false_verdicts, row.trials)}**",
                _share(row.void, row.trials),
                *_counts(row.sequential, row.trials),
            ]
            for row in found
        ],
    )


def truth_table(found: Sequence[InjectedTruth]) -> str:
    """Coverage of injected ratios: by noise, and by effect."""
    effects = sorted({row.time_ratio for row in found})
    kinds = list(dict.fromkeys(row.noise for row in found))
    by = {(row.noise, row.time_ratio): row for row in found}
    titles = ("noise", *(f">{100 * (e - 1):g}%" for e in effects), *_SEQUENTIAL)
    rows = []
    for kind in kinds:
        here = [by[kind, effect] for effect in effects]
        trials = sum(row.trials for row in here)
        total = SequentialCounts(
            pooled=sum(row.sequential.pooled for row in here),
            halved=sum(row.sequential.halved for row in here),
            fixed_order=sum(row.sequential.fixed_order for row in here),
        )
        cells = [f"**{_share(row.covered, row.trials)}**" for row in here]
        rows.append([kind, *cells, *_counts(total, trials)])
    return table(titles, rows)


def power_table(found: Sequence[Power]) -> str:
    """Predicted against observed detectable effect."""
    titles = (
        ">comparisons", ">sessions", ">predicted effect", ">detected there", ">95% interval",
        ">observed effect", ">predicted / observed", ">pooled, Welch t: detected",
    )  # fmt: skip
    return table(
        titles,
        [
            [
                str(p.comparisons),
                str(p.sessions),
                percent(p.predicted_ratio - 1),
                f"{p.detected} of {p.trials}",
                f"{100 * p.low:.0f} to {100 * p.high:.0f}%",
                percent(p.observed_ratio - 1),
                f"{1 + p.error:.2f}",
                f"{p.pooled_detected} of {p.trials}",
            ]
            for p in found
        ],
    )


def stopping_table(found: Sequence[NamedStopping]) -> str:
    """Studies of identical plans, each stopped by its rule."""
    titles = (
        "rule", ">block noise", ">studies", ">false verdicts", ">intervals that hold the truth",
        ">void", ">sessions (10, 50, 90% of studies)", ">halves, Welch t", ">pooled, Welch t",
    )  # fmt: skip
    rows = []
    for row in found:
        stopping = row.found
        low, middle, high = stopping.sessions
        rows.append(
            [
                row.name,
                percent(row.noise),
                str(stopping.trials),
                f"**{_share(stopping.false_verdicts, stopping.trials)}**",
                f"**{_share(stopping.covered, stopping.trials)}**",
                _share(stopping.void, stopping.trials),
                f"{low:g}, {middle:g}, {high:g}",
                _share(stopping.halved_false, stopping.trials),
                _share(stopping.pooled_false, stopping.trials),
            ]
        )
    return table(titles, rows)


def carry_over_table(found: Sequence[CarryOver]) -> str:
    """What stays in a comparison of what the baseline leaves to the next block."""
    titles = (">variants", ">the baseline's plan adds to the next block", ">bias of a variant")
    rows = [
        [str(row.variants), percent(row.carry_over), f"{100 * row.bias:+.2f}%"] for row in found
    ]
    return table(titles, rows)
