"""Typed claims: a number knows what it is of and how it is known; what it cannot say raises.

Numbers from different runs, regions, baselines, shapes or units of account form no ratio, an
estimate becomes no bound, a share knows its whole and what that leaves out, and a range names the
variants and cells that it covers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Literal

#: How a number is known, the strongest first; what is formed of several is known as the weakest.
EVIDENCE = ("measured", "derived", "emulated", "estimated")
Evidence = Literal["measured", "derived", "emulated", "estimated"]
#: What binary fractions may differ by.
_SLACK = 1e-9
Rule = Literal["places", "bound", "share", "range", "arithmetic", "unit"]


class ClaimError(ValueError):
    """Something that these numbers cannot say.

    Attributes:
        rule: which of the rules above it breaks.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(message)
        self.rule: Rule = rule


@dataclass(frozen=True)
class Place:
    """What a number is of, beside its variant.

    Attributes:
        run: the job whose numbers compare.
        cell: engine, version and device.
        region: the part of the work: a whole call, a block's products.
        accounting: what one unit is: a call, a block, a sample, a batch.
        baseline: what stands for the variant "baseline" in its run, where there are several.
        shape: of the inputs, where the cell does not say it.
    """

    run: str
    cell: str
    region: str
    accounting: str
    baseline: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Number:
    """A number as printed, with one unit of its last place; 0 for one that was not rounded."""

    value: float
    unit_in_last_place: float = 0.0

    @staticmethod
    def printed(text: str) -> Number:
        """The number that ``text`` shows, such as ``1.05``.

        Raises ValueError where it is none.
        """
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise ValueError(f"'{text}' is no number") from None
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"'{text}' is no finite number")
        return Number(float(number), float(Decimal(1).scaleb(exponent)))

    @property
    def ends(self) -> tuple[float, float]:
        """Its value, one unit in the last place less and more."""
        return self.value - self.unit_in_last_place, self.value + self.unit_in_last_place


@dataclass(frozen=True)
class Measurement:
    """A number of one variant in one place.

    Attributes:
        number: the value.
        unit: such as ``ms``; empty for a plain number.
        variant: what it is of.
        place: where it is from.
        evidence: how it is known.
        n: samples or sessions behind it; None: not told.
        interval: its lower and upper end; None: not told.
        source: who published it; empty for a number of this record.
    """

    number: Number
    unit: str
    variant: str
    place: Place
    evidence: Evidence = "measured"
    n: int | None = None
    interval: tuple[float, float] | None = None
    source: str = ""


@dataclass(frozen=True)
class Ratio:
    """One number over another of the same place; ``low`` and ``high`` allow for their rounding."""

    top: Measurement
    bottom: Measurement
    value: float
    low: float
    high: float
    evidence: Evidence


@dataclass(frozen=True)
class Share:
    """A part of a whole, what the whole counts and what it leaves out."""

    part: Measurement
    whole: Measurement
    value: float
    low: float
    high: float
    counted: tuple[str, ...]
    leaves_out: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Estimate:
    """A number that was never measured: an isolated one times how often it occurs."""

    of: Measurement
    times: float
    value: float
    evidence: Evidence = "estimated"


@dataclass(frozen=True)
class Bound:
    """The most that something can be; derived from what was measured, never from an estimate."""

    value: float
    of: tuple[Measurement, ...]
    evidence: Evidence = "derived"


@dataclass(frozen=True)
class Range:
    """The least and the most of some numbers, and the variants and cells that it covers."""

    low: float
    high: float
    variants: tuple[str, ...]
    cells: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Cited:
    """A claim that someone else published; nobody here measured what it says."""

    claim: Measurement | Ratio | Share | Estimate | Bound | Range
    source: str
    evidence: Literal["cited"] = "cited"


def cited(claim: Measurement | Ratio | Share | Estimate | Bound | Range, source: str) -> Cited:
    """``claim`` as its source published it.

    Raises:
        ClaimError: no source is named.
    """
    if not source:
        raise ClaimError("places", "a cited claim names its source")
    return Cited(claim, source)


def ratio(top: Measurement, bottom: Measurement) -> Ratio:
    """``top`` over ``bottom``.

    Raises:
        ClaimError: they are of different runs, cells, regions, baselines or units, or the lower
            one may be zero.
    """
    _same_place((top, bottom))
    low, high = _quotient(top.number, bottom.number)
    return Ratio(
        top, bottom, top.number.value / bottom.number.value, low, high, weakest((top, bottom))
    )


def difference(one: Measurement, other: Measurement) -> Measurement:
    """``one`` less ``other``, with the rounding of both.

    Raises:
        ClaimError: they are of different runs, cells, regions, baselines or units.
    """
    _same_place((one, other))
    number = Number(
        one.number.value - other.number.value,
        one.number.unit_in_last_place + other.number.unit_in_last_place,
    )
    variant = f"{one.variant} less {other.variant}"
    return replace(
        one, number=number, variant=variant, evidence=weakest((one, other)), interval=None, n=None
    )


def share(
    part: Measurement, whole: Measurement, counted: Collection[str], parts: Collection[str],
    leaves_out: Collection[str] = (),
) -> Share:  # fmt: skip
    """``part`` of ``whole``.

    Args:
        part: of one region.
        whole: of the region that holds it.
        counted: what the whole counts.
        parts: all that the whole's region has.
        leaves_out: what is said to be left out.

    Raises:
        ClaimError: the two are of different runs, cells or units of account; the whole leaves out
            more than is said; the part is more than the whole.
    """
    _same_place((part, replace(whole, place=replace(whole.place, region=part.place.region))))
    missing = [name for name in parts if name not in counted and name not in leaves_out]
    if missing:
        raise ClaimError(
            "share", f"the whole leaves out {', '.join(missing)}, and the share does not say so"
        )
    low, high = _quotient(part.number, whole.number)
    if low > 1:
        raise ClaimError(
            "share", f"the part ({part.number.value:g}) is more than its whole "
            f"({whole.number.value:g}): they are not of one account",
        )  # fmt: skip
    left = tuple(name for name in parts if name not in counted)
    return Share(
        part, whole, part.number.value / whole.number.value, low, high, tuple(counted), left,
        weakest((part, whole)),
    )  # fmt: skip


def estimate(of: Measurement, times: float) -> Estimate:
    """An isolated number times how often it occurs in the whole."""
    return Estimate(of, times, of.number.value * times)


def bound(value: float, of: Sequence[Measurement | Estimate]) -> Bound:
    """The most that something can be, by numbers of a profile.

    Raises:
        ClaimError: one of the numbers is an estimate.
    """
    measured = [m for m in of if isinstance(m, Measurement)]
    guessed = [m for m in of if m.evidence == "estimated"]
    if guessed or len(measured) != len(of):
        raise ClaimError(
            "bound", "an estimate from parts that were timed alone is no upper bound of the whole"
        )
    if not measured:
        raise ClaimError("bound", "a bound follows from a profile, and none is named")
    return Bound(value, tuple(measured))


def value_range(members: Sequence[Measurement]) -> Range:
    """The range of some numbers of one unit.

    Raises:
        ClaimError: there are none, or their units differ.
    """
    if not members:
        raise ClaimError("range", "a range names no variant and no cell that it covers")
    if len({m.unit for m in members}) > 1:
        raise ClaimError("unit", "a range holds numbers of one unit")
    values = [m.number.value for m in members]
    return Range(
        min(values),
        max(values),
        tuple(dict.fromkeys(m.variant for m in members)),
        tuple(dict.fromkeys(m.place.cell for m in members)),
        weakest(members),
    )


def covered(low: Number, high: Number, members: Sequence[Measurement]) -> Range:
    """The range of ``members``, where ``low`` to ``high`` is what was printed of it.

    An end that is rounded away from the others holds; one that cuts a member off does not, nor
    one that no member reaches. A member's own last place counts where it was computed.

    Raises:
        ClaimError: see ``value_range``; a member lies outside, or none reaches an end.
    """
    found = value_range(members)
    for member in members:
        least, most = member.number.ends
        if most < low.value - _SLACK or least > high.value + _SLACK:
            raise ClaimError(
                "range",
                f"{member.number.value:.4g} of '{member.variant}' in {member.place.cell} lies "
                f"outside of {low.value:g} to {high.value:g}",
            )
    rounding = max(m.number.unit_in_last_place for m in members)
    for end, reached in ((low, found.low), (high, found.high)):
        if abs(end.value - reached) > end.unit_in_last_place + rounding - _SLACK:
            raise ClaimError(
                "range", f"no value reaches the end {end.value:g}; the nearest is {reached:.4g}"
            )
    return found


def weakest(of: Sequence[Measurement]) -> Evidence:
    """How a number that is formed of several is known."""
    found = max((m.evidence for m in of), key=EVIDENCE.index)
    # What is computed from measurements is not measured itself.
    return "derived" if found == "measured" and len(of) > 1 else found


def agrees(printed: Number, low: float, high: float) -> bool:
    """Whether a printed result can be that of its operands, each rounded to its last place."""
    least, most = printed.ends
    slack = 1e-9 * max(1.0, abs(printed.value))
    return least <= high + slack and low - slack <= most


def _same_place(numbers: Sequence[Measurement]) -> None:
    first, *others = numbers
    for other in others:
        if first.unit != other.unit:
            raise ClaimError("unit", f"{first.unit or 'a plain number'} and {other.unit or 'none'}")
        if first.source != other.source:
            one, two = first.source or "here", other.source or "here"
            raise ClaimError("places", f"the numbers are of different sources: {one}, and {two}")
        for field in fields(Place):
            one, two = getattr(first.place, field.name), getattr(other.place, field.name)
            if one != two:
                raise ClaimError(
                    "places",
                    f"'{first.variant}' and '{other.variant}' are of different {field.name}s: "
                    f"{one or 'none'}, and {two or 'none'}",
                )


def _quotient(top: Number, bottom: Number) -> tuple[float, float]:
    least, most = bottom.ends
    if least <= 0 <= most:
        raise ClaimError("arithmetic", "what is divided by may be zero")
    found = [a / b for a in top.ends for b in (least, most)]
    return min(found), max(found)
