from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.verdict import (
    SessionBlocks,
    TimingRules,
    balance_gate,
    clock_estimates,
    cycle_ratio,
    frequency_gate,
    session_schedule,
    throttled,
    throttling_gate,
)

RULES = TimingRules()
NAN = math.nan
Values = NDArray[np.float64]


def orders(sessions: int, k: int = 3) -> list[NDArray[np.int64]]:
    return [np.array(session_schedule(k, seed=1, session=i).rounds) for i in range(sessions)]


def by_position(order: NDArray[np.int64], labels: Any) -> Values:
    """Values by label, (k,) or (rounds, k), as they stand at each position."""
    wide = np.broadcast_to(np.asarray(labels, dtype=np.float64), order.shape)
    return np.take_along_axis(wide, order, axis=1)


def test_a_block_under_three_quarters_of_its_labels_clock_is_throttled() -> None:
    order = np.array([[0, 1], [1, 0], [0, 1], [1, 0]])
    # A dense variant runs at half the baseline's clock all the time: that is its own clock.
    clock = by_position(order, [[1900, 900], [1900, 900], [1420, 900], [1900, 670]])
    nothing = np.full(order.shape, NAN)
    found = throttled([order], [clock], [nothing])[0]
    assert found.tolist() == [[False, False], [False, False], [True, False], [True, False]]
    assert not throttled([order], [nothing], [nothing])[0].any()


def test_the_usual_clock_is_that_of_all_sessions() -> None:
    """A session whose clock was held down as a whole is found."""
    found = orders(4, k=2)
    clocks = [by_position(o, [1900.0 if i else 900.0, 1800.0]) for i, o in enumerate(found)]
    holes = [np.full(o.shape, NAN) for o in found]
    bad = throttled(found, clocks, holes)
    assert [int(b.sum()) for b in bad] == [len(found[0]), 0, 0, 0]
    assert (found[0][bad[0]] == 0).all()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0, False), (0x1, False), (0x2, False), (0x4, False), (0x10, False), (NAN, False),
        (0x8, True), (0x20, True), (0x40, True), (0x80, True), (0x44, True),
    ],
)  # fmt: skip
def test_which_bits_drop_a_block(bits: float, expected: bool) -> None:
    """Idle, application clocks, a power cap and sync boost are no fault."""
    order = np.array([[0, 1]])
    flags = np.array([[bits, 0.0]])
    clock = np.full((1, 2), NAN)
    assert throttled([order], [clock], [flags])[0].tolist() == [[expected, False]]


@pytest.mark.parametrize(("count", "state"), [(0, "passed"), (1, "warning"), (4, "failed")])
def test_over_a_tenth_of_throttled_blocks_fails(count: int, state: str) -> None:
    found = orders(3, k=2)
    bad = [np.zeros(o.shape, dtype=bool) for o in found]
    for i in range(count):
        bad[0][i] = found[0][i] == 1
    gate = throttling_gate(found, bad, 1, RULES)
    assert gate.state == state
    assert gate.detail.startswith(f"{count} of 30 blocks dropped")
    assert throttling_gate(found, bad, 0, RULES).state == "passed"


def clocks_of(ratio: float, sigma: float = 0.002, sessions: int = 6) -> tuple[Any, Any]:
    generator = np.random.default_rng(4)
    found = orders(sessions)
    mhz = []
    for order in found:
        level = 1500 * np.exp(0.02 * generator.standard_normal())  # sessions differ
        noise = np.exp(sigma * generator.standard_normal(order.shape))
        mhz.append(by_position(order, [1, 1, ratio]) * level * noise)
    return found, mhz


@pytest.mark.parametrize(
    ("ratio", "state"), [(1.0, "passed"), (0.995, "passed"), (0.95, "warning"), (1.04, "warning")]
)
def test_a_clock_that_differs_is_told(ratio: float, state: str) -> None:
    found, mhz = clocks_of(ratio)
    estimates = clock_estimates(found, mhz, 2, 0)
    assert np.mean(estimates) == pytest.approx(math.log(ratio), abs=0.001)
    assert frequency_gate("sm clock", estimates, "baseline", RULES).state == state


def test_a_difference_within_its_noise_is_none() -> None:
    found, mhz = clocks_of(0.97, sigma=0.2)
    gate = frequency_gate("sm clock", clock_estimates(found, mhz, 2, 0), "baseline", RULES)
    assert gate.state == "passed"


def test_clocks_that_were_not_seen() -> None:
    found, mhz = clocks_of(0.9, sessions=3)
    for values in mhz[1:]:
        values[:] = NAN
    estimates = clock_estimates(found, mhz, 2, 0)
    assert [math.isfinite(value) for value in estimates] == [True, False, False]
    assert frequency_gate("sm clock", estimates, "baseline", RULES).state == "not_observable"


@pytest.mark.parametrize(
    ("extra", "sigma", "state"),
    [(0.0, 0.1, "passed"), (0.2, 0.1, "warning"), (0.006, 0.001, "passed"), (0.05, 0.5, "passed")],
)
def test_others_that_took_time_from_one_label(extra: float, sigma: float, state: str) -> None:
    generator = np.random.default_rng(0)
    found = orders(6)
    shares = [
        by_position(o, [0.03, 0.03, 0.03 + extra]) + sigma * generator.standard_normal(o.shape)
        for o in found
    ]
    gate = balance_gate(found, shares, 2, 0, "baseline", RULES)
    assert gate.state == state, gate.detail
    assert "in those of baseline" in gate.detail
    assert balance_gate(found, shares, 1, 0, "baseline", RULES).state == "passed"
    nothing = [np.full(o.shape, NAN) for o in found]
    assert balance_gate(found, nothing, 2, 0, "baseline", RULES).state == "not_observable"


def blocks_of(order: NDArray[np.int64], value: Values) -> SessionBlocks:
    halves = np.full(order.shape, NAN)
    return SessionBlocks(order, value, halves, halves)


def test_the_same_cycles_at_a_lower_clock() -> None:
    """A capped device runs the variant at 0.9 of the clock: its time says less than its cycles."""
    found, mhz = clocks_of(0.9)
    cycles = 0.8
    sessions = [
        blocks_of(o, by_position(o, [1, 1, cycles]) * 1e9 / m)
        for o, m in zip(found, mhz, strict=True)
    ]
    ratio = cycle_ratio(sessions, mhz, ("baseline", "again", "int8"), 2, 0, "sm_mhz", 0.035)
    assert ratio is not None
    assert (ratio.variant, ratio.baseline, ratio.clock, ratio.n) == (
        "int8",
        "baseline",
        "sm_mhz",
        6,
    )
    assert ratio.cycle_ratio == pytest.approx(cycles, rel=1e-4)
    assert ratio.cycle_ratio_low <= ratio.cycle_ratio <= ratio.cycle_ratio_high
    assert ratio.clock_ratio == pytest.approx(0.9, rel=2e-3)


def test_cycles_need_every_session() -> None:
    found, mhz = clocks_of(0.9, sessions=3)
    sessions = [blocks_of(o, 1e9 / m) for o, m in zip(found, mhz, strict=True)]
    labels = ("baseline", "again", "int8")
    assert cycle_ratio(sessions, mhz, labels, 2, 0, "sm_mhz", 0.035) is not None
    assert cycle_ratio(sessions[:1], mhz[:1], labels, 2, 0, "sm_mhz", 0.035) is None
    mhz[1][:] = NAN
    assert cycle_ratio(sessions, mhz, labels, 2, 0, "sm_mhz", 0.035) is None
