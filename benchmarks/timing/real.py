"""What the banks of this machine say: false verdicts, coverage, cost, and one process or many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from benchmarks.timing.bank import Bank, BankSession
from benchmarks.timing.cost import (
    Choice,
    SessionCost,
    pair_estimates,
    session_cost,
    sessions_needed,
    settling,
    time_to_reach,
)
from benchmarks.timing.designs import MODELS, TRUTH_UNITS, curve, identical, shared, truth
from benchmarks.timing.models import ENGINES
from benchmarks.timing.trials import Tally, identical_trials, tally, truth_trials
from bitworth.measurement.timing import LEAD_IN_NS
from bitworth.record.timing_verdicts import INTERFERENCE_LIMIT
from bitworth.verdict import TimingRules, sig6, t_interval

#: Blocks that the curve compares, in time; the lead-in is the product's.
BLOCKS_NS = (10_000_000, 20_000_000, 30_000_000, 60_000_000, 90_000_000)
#: Times since a worker was continued in which its calls are compared with later ones.
SETTLING_NS = tuple(round(ms * 1e6) for ms in (0, 1, 2, 4, 8, 12, 16, 20, 32, 48))
WIDTHS = (0.04, 0.02, 0.01)
VARIANTS = (2, 5, 10)


@dataclass(frozen=True)
class Spread:
    """One bank of identical plans.

    Attributes:
        sessions: in the bank.
        tally: of its trials, quiet or not.
        quiet: sessions in which other processes took no more than a study lets pass.
        cost: what a quiet session is worth; None without one.
        seconds_to_2_percent: until 2 variants have half-widths of 2% in such sessions.
        loud_deviation: standard deviation of the log ratio over the other sessions.
    """

    sessions: int
    tally: Tally
    quiet: int
    cost: SessionCost | None
    seconds_to_2_percent: float | None
    loud_deviation: float | None


@dataclass(frozen=True)
class Price:
    """Wall seconds until so many variants have intervals of this half-width.

    Attributes:
        variants: of one cell; a study divides them into jobs, each with the baseline twice.
        half_width: fraction.
        sessions: that it takes, of all jobs.
        seconds: that they take.
    """

    variants: int
    half_width: float
    sessions: int
    seconds: float


@dataclass(frozen=True)
class Foretold:
    """Sessions that a half-width took against those foretold from the spread of all.

    Attributes:
        half_width: fraction.
        foretold: sessions by the normal theory of the t interval.
        observed: median over pairs of plans of the sessions until the width was reached; None
            where half of them did not reach it within the bank.
        pairs: pairs of plans that reached it within the bank.
        of: all of them.
    """

    half_width: float
    foretold: int
    observed: float | None
    pairs: int
    of: int


@dataclass(frozen=True)
class RealReport:
    """Everything that was measured, by ``<model> <engine>`` or by true ratio."""

    identical: dict[str, Spread]
    shared: dict[str, Spread]
    truth: dict[str, Tally]
    blocks: dict[str, tuple[tuple[Choice, float, float], ...]]
    settling: dict[str, tuple[tuple[int, float], ...]]
    prices: dict[str, tuple[Price, ...]]
    foretold: dict[str, tuple[Foretold, ...]]


def real_report(folder: Path, rules: TimingRules) -> RealReport:
    """Judge the banks in ``folder``; banks without sessions are left out."""
    names = [(f"{m} {e}", m, e) for m in MODELS for e in ENGINES]
    alike = {n: s for n, m, e in names if (s := _sessions(folder, identical(m, e).bank))}
    one = {n: s for n, m, e in names if (s := _sessions(folder, shared(m, e).bank))}
    long = {n: s for n, m, e in names if (s := _sessions(folder, curve(m, e).bank))}
    injected = _sessions(folder, truth().bank)
    spreads = {name: _spread(sessions, rules) for name, sessions in alike.items()}
    quiet = {name: found for name, s in alike.items() if (found := quiet_sessions(s))}
    return RealReport(
        identical=spreads,
        shared={name: _spread(sessions, rules) for name, sessions in one.items()},
        truth={
            f"{units / min(TRUTH_UNITS):g}": tally(
                list(truth_trials(injected, units)), units / min(TRUTH_UNITS), rules
            )
            for units in sorted(set(TRUTH_UNITS))[1:]
            if injected
        },
        blocks={name: _blocks(sessions, rules) for name, sessions in long.items()},
        settling={
            name: tuple((edge, sig6(value)) for edge, value in settling(sessions, SETTLING_NS))
            for name, sessions in long.items()
        },
        prices={name: _prices(session_cost(found), rules) for name, found in quiet.items()},
        foretold={name: _foretold(found, rules) for name, found in quiet.items()},
    )


def _sessions(folder: Path, bank: str) -> list[BankSession]:
    return Bank(folder / f"{bank}.jsonl.gz").sessions


def quiet_sessions(sessions: Sequence[BankSession]) -> list[BankSession]:
    """Those in which other processes took no more than a study lets pass without a word."""
    return [s for s in sessions if s.others_ratio is None or s.others_ratio <= INTERFERENCE_LIMIT]


def _spread(sessions: Sequence[BankSession], rules: TimingRules) -> Spread:
    quiet = quiet_sessions(sessions)
    loud = [session for session in sessions if session not in quiet]
    cost = session_cost(quiet) if quiet else None
    return Spread(
        sessions=len(sessions),
        tally=tally(list(identical_trials(sessions)), 1.0, rules),
        quiet=len(quiet),
        cost=cost,
        seconds_to_2_percent=sig6(time_to_reach(cost, 0.02, 2, rules)[1] / 1e9) if cost else None,
        loud_deviation=sig6(session_cost(loud).deviation) if loud else None,
    )


def _blocks(
    sessions: Sequence[BankSession], rules: TimingRules
) -> tuple[tuple[Choice, float, float], ...]:
    """For each block: what it is in whole calls, the deviation, seconds to 2% for 2 variants."""
    found: dict[Choice, tuple[Choice, float, float]] = {}
    for block_ns in BLOCKS_NS:
        cost = session_cost(sessions, Choice(LEAD_IN_NS, block_ns))
        seconds = time_to_reach(cost, 0.02, 2, rules)[1] / 1e9
        # Blocks that round to as many calls of the model are one block.
        found.setdefault(cost.choice, (cost.choice, sig6(cost.deviation), sig6(seconds)))
    return tuple(found.values())


def _prices(cost: SessionCost, rules: TimingRules) -> tuple[Price, ...]:
    found = []
    for variants in VARIANTS:
        for width in WIDTHS:
            sessions, total_ns = time_to_reach(cost, width, variants, rules)
            found.append(Price(variants, width, sessions, sig6(total_ns / 1e9)))
    return tuple(found)


def _foretold(sessions: Sequence[BankSession], rules: TimingRules) -> tuple[Foretold, ...]:
    """Whether the sessions that a width takes are those that its price assumes."""
    series = list(zip(*(pair_estimates(s.blocks()) for s in sessions), strict=True))
    deviation = session_cost(sessions).deviation
    found = []
    for width in WIDTHS[:2]:
        reached = [n for values in series if (n := _sessions_until(values, width, rules))]
        found.append(
            Foretold(
                half_width=width,
                foretold=sessions_needed(deviation, width, rules.alpha, rules.min_sessions),
                observed=_median_with_missing(reached, len(series)),
                pairs=len(reached),
                of=len(series),
            )
        )
    return tuple(found)


def _median_with_missing(reached: Sequence[int], count: int) -> float | None:
    """Median of ``count`` numbers, of which those that are not known are larger than all others."""
    middle = median_low([*reached, *[math.inf] * (count - len(reached))])
    return middle if math.isfinite(middle) else None


def _sessions_until(values: Sequence[float], width: float, rules: TimingRules) -> int | None:
    for n in range(rules.min_sessions, len(values) + 1):
        if t_interval(values[:n], rules.alpha).half_width <= math.log1p(width):
            return n
    return None
