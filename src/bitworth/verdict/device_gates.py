"""What clocks and interference, observed block by block, say about a comparison.

Values have the shape of a session's order, (rounds, k), by position, NaN where nothing was seen.
A throttled block is dropped. Clocks that differ between two labels, and time that others took from
one label rather than the other, only warn: they may be the variant's own doing (a denser kernel
draws more power, so that a capped device runs it at a lower clock). The ratio of cycles then says
what the variant would be worth at the same clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.estimate import Interval, label_logs, round_location, t_interval
from bitworth.verdict.gates import Gate, percent
from bitworth.verdict.rounding import number_text, sig6
from bitworth.verdict.rules import TimingRules

#: A block whose SM clock is under this share of what its label usually runs at is dropped.
SM_CLOCK_LIMIT = 0.75
#: NVML's clocks event reasons that drop a block: hardware slowdown (0x08), thermal slowdown by
#: software (0x20) and by hardware (0x40), power brake (0x80). A power cap (0x04) is no fault.
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80
#: Clocks of two labels that differ by more than this, as a fraction, are told.
FREQUENCY_LIMIT = 0.01
#: So are shares of CPU time that went elsewhere, when they differ by more than this.
BALANCE_LIMIT = 0.01

Values = NDArray[np.float64]


@dataclass(frozen=True)
class CycleRatio:
    """A comparison in clock cycles (time times clock); 6 significant digits.

    Attributes:
        variant: label of the variant.
        baseline: label of what it is compared with.
        clock: the quantity that was taken as the clock, such as ``sm_mhz``.
        cycle_ratio: cycles of the variant over the baseline's.
        cycle_ratio_low: lower end of its interval, at the error rate of the comparison.
        cycle_ratio_high: upper end.
        clock_ratio: clock in the variant's blocks over that in the baseline's.
        n: sessions.
    """

    variant: str
    baseline: str
    clock: str
    cycle_ratio: float
    cycle_ratio_low: float
    cycle_ratio_high: float
    clock_ratio: float
    n: int


def by_label(order: NDArray[np.int64], values: Values) -> Values:
    """Reorder (rounds, k) values from positions to labels."""
    result = np.empty_like(values)
    np.put_along_axis(result, order, values, axis=1)
    return result


def throttled(
    orders: Sequence[NDArray[np.int64]], sm_mhz: Sequence[Values], bits: Sequence[Values]
) -> list[NDArray[np.bool_]]:
    """Which blocks of each session ran on a throttled device.

    A block is, when a bit of ``SLOWDOWN_BITS`` was set or its SM clock is under ``SM_CLOCK_LIMIT``
    of the median over its label's blocks in all sessions. That reference, and neither the device's
    highest clock nor the baseline's, as a power-capped device runs far under the former all the
    time (an H200 at 1395 of 1980 MHz in a large bf16 product), and a variant that draws more power
    has a lower steady clock of its own: both are what its user will get. A device that is
    throttled throughout shows it in the bits.

    Args:
        orders: label at each position, shape (rounds, k), for each session.
        sm_mhz: SM clock at the end of each block in MHz.
        bits: NVML's clocks event reasons.
    """
    found = []
    usual = _label_medians([by_label(o, v) for o, v in zip(orders, sm_mhz, strict=True)])
    for order, clock, reasons in zip(orders, sm_mhz, bits, strict=True):
        slow = clock < SM_CLOCK_LIMIT * usual[order]  # false for NaN
        braked = np.nan_to_num(reasons, nan=0.0).astype(np.int64) & SLOWDOWN_BITS != 0
        found.append(slow | braked)
    return found


def _label_medians(values: Sequence[Values]) -> Values:
    """Median of each label over all sessions; NaN where nothing was seen."""
    joined = np.concatenate([np.empty((0, values[0].shape[1])), *values]) if values else None
    if joined is None:
        return np.empty(0)
    return np.array(
        [
            np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else np.nan
            for column in joined.T
        ]
    )


def throttling_gate(
    orders: Sequence[NDArray[np.int64]],
    found: Sequence[NDArray[np.bool_]],
    label: int,
    rules: TimingRules,
) -> Gate:
    """Fail when over ``rules.drop_limit`` of a label's blocks ran on a throttled device."""
    total = sum(len(order) for order in orders)
    bad = sum(int(np.sum(b[o == label])) for o, b in zip(orders, found, strict=True))
    text = (
        f"{bad} of {total} blocks dropped: thermal slowdown, power brake, or an SM clock under "
        f"{number_text(SM_CLOCK_LIMIT * 100)}% of the usual one"
    )
    if bad > rules.drop_limit * total:
        return Gate("throttling", "failed", text)
    return Gate("throttling", "warning" if bad else "passed", text)


def clock_estimates(
    orders: Sequence[NDArray[np.int64]], mhz: Sequence[Values], variant: int, baseline: int
) -> list[float]:
    """Log ratio of the clocks in two labels' blocks, for each session, by Hodges-Lehmann.

    NaN for a session in which under half of the rounds show both.
    """
    found = []
    for order, values in zip(orders, mhz, strict=True):
        logs = np.full(values.shape, np.nan)
        np.log(values, out=logs, where=values > 0)
        labels = by_label(order, logs)
        found.append(round_location(labels[:, variant] - labels[:, baseline]))
    return found


def frequency_gate(name: str, estimates: Sequence[float], against: str, rules: TimingRules) -> Gate:
    """Warn when the clock in a label's blocks differs from that in another's.

    That is, by over ``FREQUENCY_LIMIT``, with an interval at ``rules.gate_alpha`` without 0.

    Args:
        name: of the gate, ``cpu frequency`` or ``sm clock``.
        estimates: as ``clock_estimates`` gives them.
        against: name of the other label.
        rules: the constants.
    """
    interval = _interval(estimates, rules)
    if interval is None:
        return Gate(name, "not_observable", "under two sessions show it in both plans' blocks")
    text = (
        f"{percent(interval.estimate)} against {against} "
        f"({percent(interval.low)} to {percent(interval.high)})"
    )
    differs = _beyond(interval, math.log1p(FREQUENCY_LIMIT))
    return Gate(name, "warning" if differs else "passed", text)


def balance_gate(
    orders: Sequence[NDArray[np.int64]],
    elsewhere: Sequence[Values],
    variant: int,
    baseline: int,
    against: str,
    rules: TimingRules,
) -> Gate:
    """Warn when others took CPU time from one label's blocks rather than from another's.

    One block's share is known to a tick or two, so means over a session's blocks are compared:
    the difference must be over ``BALANCE_LIMIT`` and its interval over sessions, at
    ``rules.gate_alpha``, must exclude 0.

    Args:
        orders: label at each position, shape (rounds, k), for each session.
        elsewhere: share of CPU time that other processes and other machines took, by block.
        variant: index of the label.
        baseline: index of the other label.
        against: name of the other label.
        rules: the constants.
    """
    name = "interference balance"
    pairs = []
    for order, values in zip(orders, elsewhere, strict=True):
        both = by_label(order, values)[:, [variant, baseline]]
        both = both[np.isfinite(both).all(axis=1)]
        pairs.append(np.mean(both, axis=0) if len(both) else np.full(2, np.nan))
    interval = _interval([float(v - b) for v, b in pairs], rules)
    if interval is None:
        return Gate(name, "not_observable", "under two sessions show it in both plans' blocks")
    ours, theirs = (float(np.nanmean([pair[i] for pair in pairs])) for i in (0, 1))
    text = (
        f"others took {ours:.1%} of CPU time in its blocks, {theirs:.1%} in those of {against} "
        f"(difference {interval.low:+.1%} to {interval.high:+.1%})"
    )
    return Gate(name, "warning" if _beyond(interval, BALANCE_LIMIT) else "passed", text)


def cycle_ratio(
    sessions: Sequence[SessionBlocks],
    mhz: Sequence[Values],
    labels: Sequence[str],
    variant: int,
    baseline: int,
    clock: str,
    alpha: float,
) -> CycleRatio | None:
    """Compare two labels in cycles: the block's median time times the clock of the block.

    None with under two sessions, or when one lacks the data.

    Args:
        sessions: sessions of one cell.
        mhz: clock of each block.
        labels: names of the labels.
        variant: index of the label.
        baseline: index of what it is compared with.
        clock: the quantity that ``mhz`` is.
        alpha: error rate of the interval.
    """
    clocks = clock_estimates([blocks.order for blocks in sessions], mhz, variant, baseline)
    cycles = []
    for blocks, values in zip(sessions, mhz, strict=True):
        logs = label_logs(replace(blocks, value_ns=blocks.value_ns * values))
        cycles.append(round_location(logs[:, variant] - logs[:, baseline]))
    if len(cycles) < 2 or not all(math.isfinite(value) for value in (*cycles, *clocks)):
        return None
    interval = t_interval(cycles, alpha)
    return CycleRatio(
        variant=labels[variant],
        baseline=labels[baseline],
        clock=clock,
        cycle_ratio=sig6(math.exp(interval.estimate)),
        cycle_ratio_low=sig6(math.exp(interval.low)),
        cycle_ratio_high=sig6(math.exp(interval.high)),
        clock_ratio=sig6(math.exp(float(np.mean(clocks)))),
        n=interval.n,
    )


def _interval(estimates: Sequence[float], rules: TimingRules) -> Interval | None:
    usable = [value for value in estimates if math.isfinite(value)]
    return t_interval(usable, rules.gate_alpha) if len(usable) > 1 else None


def _beyond(interval: Interval, limit: float) -> bool:
    return abs(interval.estimate) > limit and (interval.low > 0 or interval.high < 0)
