"""All synthetic figures of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.timing.synthetic import (
    UNITS,
    IdenticalPlans,
    InjectedTruth,
    identical_plans,
    injected_truth,
)
from benchmarks.timing.synthetic_carry_over import CarryOver, carry_overs
from benchmarks.timing.synthetic_machine import NOISE
from benchmarks.timing.synthetic_power import Power, power
from benchmarks.timing.synthetic_stopping import Stopping, stopping
from bitworth.verdict import TimingRules

#: Cells of a power figure: variants and sessions.
POWER_CELLS = ((1, 6), (1, 12), (9, 6), (9, 12))


#: Noise of a block at which a precision of 2% takes 6 and some 13 sessions.
STOPPING_NOISE = (0.03, 0.075)


@dataclass(frozen=True)
class Sizes:
    """Trials of each figure."""

    identical: int = 1000
    truth: int = 300
    power: int = 400
    stopping: int = 200


@dataclass(frozen=True)
class NamedStopping:
    """A rule of stopping at a level of block noise (a fraction), and what it led to."""

    name: str
    noise: float
    found: Stopping


@dataclass(frozen=True)
class SyntheticReport:
    """Figures on machines whose truth is known."""

    identical: tuple[IdenticalPlans, ...]
    truth: tuple[InjectedTruth, ...]
    power: tuple[Power, ...]
    stopping: tuple[NamedStopping, ...]
    carry_over: tuple[CarryOver, ...]


def synthetic_report(sizes: Sizes, seed: int, say: Callable[[str], None]) -> SyntheticReport:
    """Run all synthetic trials; ``say`` takes a line for each figure."""

    def told(text: str) -> None:
        say(f"synthetic: {text}")

    identical = []
    for noise in NOISE:
        told(f"identical plans, {noise}")
        identical.append(identical_plans(noise, sizes.identical, seed))
    truths = []
    for noise in NOISE:
        told(f"injected truth, {noise}")
        truths += [injected_truth(noise, units, sizes.truth, seed) for units in UNITS]
    powers = []
    for comparisons, sessions in POWER_CELLS:
        told(f"power of {comparisons} comparisons in {sessions} sessions")
        powers.append(power(comparisons, sessions, sizes.power, seed))
    stops = []
    for name, until_settled in (("precision", False), ("--until-settled", True)):
        for sigma in STOPPING_NOISE:
            told(f"stopping by {name}, block noise {sigma:.1%}")
            rules = TimingRules(until_settled=until_settled)
            found = stopping(sizes.stopping, seed, sigma, rules)
            stops.append(NamedStopping(name, sigma, found))
    return SyntheticReport(
        tuple(identical), tuple(truths), tuple(powers), tuple(stops), carry_overs(seed)
    )
