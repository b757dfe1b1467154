"""The tables of the synthetic part of the report, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.timing.render_real import percent, table
from benchmarks.timing.synthetic import IdenticalPlans, InjectedTruth, SequentialCounts
from benchmarks.timing.synthetic_power import Power
from benchmarks.timing.synthetic_stopping import Stopping

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
        ">observed effect", ">predicted / observed",
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
            ]
            for p in found
        ],
    )


def stopping_line(found: Stopping) -> str:
    """What stopping on precision costs, in a sentence."""
    low, middle, high = found.sessions
    return (
        f"Stopping on precision: of {found.trials} studies of identical plans that stopped by the "
        f"rule (after {low:g} to {high:g} sessions, median {middle:g}), "
        f"{_share(found.false_verdicts, found.trials)} had a false verdict and "
        f"{_share(found.covered, found.trials)} an interval that holds the truth."
    )
