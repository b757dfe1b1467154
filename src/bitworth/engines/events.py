"""Layer times from the events of a profiler that reports every run of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bitworth.engines.base import EngineError

#: Starts and durations in whole microseconds overlap by this much where layers follow at once.
ROUNDED_US = 2.0


@dataclass(frozen=True)
class Event:
    """One run of one layer.

    Attributes:
        name: the layer's.
        start_us, duration_us: when it ran, on one clock.
    """

    name: str
    start_us: float
    duration_us: float


def own_times(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Each event's name with its duration less that of the events inside it, in order of start.

    The body of a loop runs inside the loop's own event: counted once, times add up to the whole.

    Raises:
        EngineError: a duration is negative, or two events overlap and neither is inside the other:
            layers that ran at once have no times that add up.
    """
    ordered = sorted(events, key=lambda e: (e.start_us, -e.duration_us))
    own = [event.duration_us for event in ordered]
    open_: list[int] = []
    for index, event in enumerate(ordered):
        if event.duration_us < 0:
            raise EngineError(
                f"its profiler reports {event.duration_us:g} us for layer '{event.name}': the "
                "profile is not used"
            )
        while open_ and _end(ordered[open_[-1]]) <= event.start_us + _slack(event):
            open_.pop()
        if open_:
            outer = ordered[open_[-1]]
            if _end(event) > _end(outer) + ROUNDED_US:
                raise EngineError(
                    f"its profiler reports layers '{outer.name}' and '{event.name}' at the same "
                    "time: their times do not add up, and the profile is not used"
                )
            own[open_[-1]] = max(0.0, own[open_[-1]] - event.duration_us)
        open_.append(index)
    return [(event.name, time) for event, time in zip(ordered, own, strict=True)]


def _end(event: Event) -> float:
    return event.start_us + event.duration_us


def _slack(event: Event) -> float:
    # An event shorter than the rounding may lie inside another or behind it: either is right.
    return min(ROUNDED_US, event.duration_us)


def per_call(times: Sequence[float], calls: int) -> tuple[float, float]:
    """Time and runs of one layer in one call, of which the first (cold) one is left out.

    The median over the calls, where each ran the layer equally often; else the mean.

    Args:
        times: of each run of the layer, in order.
        calls: profiled calls after the first.
    """
    runs, odd = divmod(len(times), calls + 1)
    if odd or not runs:
        warm = times[len(times) // (calls + 1) :]
        return sum(warm) / calls, len(warm) / calls
    bounds = range(runs, len(times) + 1, runs)
    return median(sum(times[a:b]) for a, b in pairwise(bounds)), float(runs)
