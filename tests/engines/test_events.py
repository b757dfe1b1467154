"""Events of a profiler become times that add up, or none at all."""

from __future__ import annotations

import pytest

from bitworth.engines.base import EngineError
from bitworth.engines.events import Event, own_times, per_call


def test_layers_one_after_another_keep_their_times() -> None:
    events = [Event("b", 10, 5), Event("a", 0, 10), Event("c", 15, 0)]
    assert own_times(events) == [("a", 10), ("b", 5), ("c", 0)]


def test_what_runs_inside_is_counted_once() -> None:
    """A Loop whose body runs a MatMul twice, with an If inside."""
    events = [
        Event("loop", 0, 100),
        Event("matmul", 10, 30),
        Event("if", 50, 40),
        Event("matmul", 55, 30),
        Event("after", 100, 7),
    ]
    own = own_times(events)
    assert own == [("loop", 30), ("matmul", 30), ("if", 10), ("matmul", 30), ("after", 7)]
    assert sum(time for _, time in own) == 107


def test_whole_microseconds_may_overlap_by_their_rounding() -> None:
    assert own_times([Event("a", 0, 10), Event("b", 9, 5)]) == [("a", 10), ("b", 5)]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([Event("a", 0, 10), Event("b", 5, 20)], "'a' and 'b' at the same time"),
        ([Event("out", 0, 90), Event("a", 1, 40), Event("b", 20, 40)], "'a' and 'b'"),
        ([Event("a", 0, 10), Event("b", 10, -1)], "-1 us for layer 'b'"),
    ],
)
def test_times_that_do_not_add_up_are_refused(events: list[Event], told: str) -> None:
    with pytest.raises(EngineError, match=told):
        own_times(events)


def test_the_cold_call_is_left_out_and_the_median_taken() -> None:
    assert per_call([900, 1, 2, 60], 3) == (2, 1)
    # Twice a call.
    assert per_call([900, 900, 1, 2, 3, 4, 50, 60], 3) == (7, 2)


def test_a_layer_that_some_calls_skip_has_its_mean() -> None:
    """A branch of an If, taken in two of four calls."""
    assert per_call([10, 20], 3) == (10, pytest.approx(2 / 3))
    assert per_call([10, 20, 30, 40, 50], 3) == (pytest.approx(140 / 3), pytest.approx(4 / 3))
