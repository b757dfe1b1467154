"""Why a variant is as fast as it is: at most five sentences, from its profile by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from bitworth.record.conversions import Conversions
from bitworth.record.op_classes import ATTENTION, CONVERSION, PRODUCT
from bitworth.record.part import Part
from bitworth.record.time_split import TimeSplit
from bitworth.verdict import Comparison

MOST = 5
#: A change of time below this share of the baseline's is not worth a sentence.
WORTH = 0.01


class Why(Part):
    """What made a variant faster or slower than the baseline."""

    variant: str
    evidence: str = "derived"
    sentences: tuple[str, ...] = Field(description="each carries its numbers")


def why(
    variant: str,
    comparison: Comparison | None,
    before: TimeSplit,
    after: TimeSplit,
    converted: Conversions,
    ceiling: float | None,
    reachable: float | None,
    quantized: Sequence[str],
) -> Why | None:
    """The sentences about one variant; None where its time has no verdict.

    Times are in units of the baseline's: a part's share of its plan's profile, times the measured
    ratio of the two times.

    Args:
        variant: its name.
        comparison: of its time with the baseline's.
        before, after: splits of the two plans.
        converted: its conversions against the baseline's.
        ceiling: speed-up if its quantized sites took no time; None where that is not known.
        reachable: speed-up at the highest rates that the device was measured to reach, likewise.
        quantized: ids of its quantized sites.
    """
    if comparison is None or comparison.verdict == "void" or not comparison.time_ratio:
        return None
    ratio = comparison.time_ratio
    told = [
        *_limit(1 / ratio, ceiling, reachable, quantized),
        *_products(before, after, ratio, converted, quantized),
        *_conversions(before, after, ratio, converted),
        *_unchanged(converted, quantized),
        *_rest(before, after, ratio),
    ]
    return Why(variant=variant, sentences=tuple(told[:MOST]))


def _limit(
    speedup: float, ceiling: float | None, reachable: float | None, quantized: Sequence[str]
) -> Iterator[str]:
    if ceiling is None or not quantized:
        return
    share = 1 - 1 / ceiling
    if reachable is None:
        limit = f"if they took none, the whole would be {ceiling:.3g} times as fast"
    else:
        limit = (
            "at the highest rates that this device was measured to reach in their format the whole "
            f"would be {reachable:.3g} times as fast"
        )
    yield (
        f"Its {len(quantized)} quantized sites take {share:.0%} of the baseline's layer time: "
        f"{limit}; measured: {speedup:.3g}."
    )


def _products(
    before: TimeSplit,
    after: TimeSplit,
    ratio: float,
    converted: Conversions,
    quantized: Sequence[str],
) -> Iterator[str]:
    was = sum(_share(before, name) for name in (PRODUCT, ATTENTION))
    now = sum(_share(after, name) for name in (PRODUCT, ATTENTION)) * ratio
    if not was or abs(was - now) < WORTH:
        return
    moved = len(quantized) - len(converted.unchanged)
    inside = f", {moved} of {len(quantized)} sites in a narrower format" if quantized else ""
    yield (
        f"Products and convolutions went from {was:.1%} to {now:.1%} of the baseline's time, "
        f"{was / now:.3g} times as fast{inside}."
        if now
        else f"Products and convolutions took {was:.1%} of the baseline's time."
    )


def _conversions(
    before: TimeSplit, after: TimeSplit, ratio: float, converted: Conversions
) -> Iterator[str]:
    was, now = _share(before, CONVERSION), _share(after, CONVERSION) * ratio
    if now - was < WORTH:
        return
    text = (
        f"Quantize, dequantize, cast and reformat layers went from {converted.count_before} to "
        f"{converted.count_after} and cost {now - was:.1%} of the baseline's time"
    )
    if converted.told:
        first = converted.told[0]
        text += f"; the longest is a {first.op}: {first.why}"
    yield f"{text}."


def _unchanged(converted: Conversions, quantized: Sequence[str]) -> Iterator[str]:
    if not converted.unchanged:
        return
    names = ", ".join(converted.unchanged[:3])
    more = len(converted.unchanged) - 3
    yield (
        f"{len(converted.unchanged)} of {len(quantized)} quantized sites compute in the baseline's "
        f"format all the same: {names}{f' and {more} more' if more > 0 else ''}."
    )


def _rest(before: TimeSplit, after: TimeSplit, ratio: float) -> Iterator[str]:
    """What no narrower product touches: all other work, before and after."""
    own = (PRODUCT, ATTENTION, CONVERSION)
    was = sum(s.share_of_profile for s in before.by_class if s.name not in own)
    changes = _changes(before, after, ratio, own)
    if was < WORTH:
        return
    now = was + sum(changes.values())
    largest = max(changes, key=lambda name: abs(changes[name]), default="")
    text = f"All other work took {was:.1%} of the baseline's time and takes {now:.1%} now"
    if largest and abs(changes[largest]) >= WORTH:
        text += f", {largest} {changes[largest]:+.1%}"
    yield f"{text}."


def _changes(
    before: TimeSplit, after: TimeSplit, ratio: float, without: Sequence[str]
) -> Mapping[str, float]:
    names = {s.name for s in (*before.by_class, *after.by_class)} - set(without)
    return {name: _share(after, name) * ratio - _share(before, name) for name in sorted(names)}


def _share(split: TimeSplit, name: str) -> float:
    return next((s.share_of_profile for s in split.by_class if s.name == name), 0.0)
