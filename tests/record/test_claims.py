"""What numbers can say of one another, and what raises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.record.claims import (
    ClaimError,
    Measurement,
    Number,
    Place,
    agrees,
    bound,
    cited,
    covered,
    difference,
    estimate,
    ratio,
    share,
    value_range,
)

PLACE = Place("job 1", "ort, cpu", "a call", "call", "fp32")


def of(text: str, variant: str = "v", **changes: str) -> Measurement:
    return Measurement(Number.printed(text), "ms", variant, replace(PLACE, **changes))


def test_a_ratio_allows_for_the_rounding_of_both() -> None:
    made = ratio(of("2.98", "bf16"), of("1.93", "fp8"))
    assert made.value == pytest.approx(2.98 / 1.93)
    assert made.low == pytest.approx(2.97 / 1.94)
    assert made.high == pytest.approx(2.99 / 1.92)
    assert made.evidence == "derived"


@pytest.mark.parametrize("field", ["run", "cell", "region", "accounting", "baseline", "shape"])
@pytest.mark.parametrize("form", [ratio, difference])
def test_numbers_of_different_places_form_nothing(field: str, form: object) -> None:
    assert callable(form)
    with pytest.raises(ClaimError, match=f"of different {field}s") as raised:
        form(of("2.0", "a"), of("1.0", "b", **{field: "another"}))
    assert raised.value.rule == "places"


def test_what_others_published_is_cited_and_not_compared_with_what_was_measured() -> None:
    theirs = replace(of("1.0"), source="their study")
    for form in (ratio, difference):
        with pytest.raises(ClaimError, match="different sources: here, and their study"):
            form(of("2.0"), theirs)
    found = cited(ratio(replace(of("2.0"), source="their study"), theirs), "their study")
    assert (found.evidence, found.source) == ("cited", "their study")
    with pytest.raises(ClaimError, match="names its source"):
        cited(theirs, "")


def test_units_do_not_mix() -> None:
    with pytest.raises(ClaimError) as raised:
        ratio(of("2.0"), replace(of("1.0"), unit="s"))
    assert raised.value.rule == "unit"


def test_nothing_is_over_what_may_be_zero() -> None:
    with pytest.raises(ClaimError, match="may be zero"):
        ratio(of("2.0"), of("0.1"))


def test_an_estimate_becomes_no_bound() -> None:
    alone = replace(of("1.09"), evidence="estimated")
    guess = estimate(alone, 1200)
    assert guess.value == pytest.approx(1308)
    assert guess.evidence == "estimated"
    for numbers in ([guess], [alone], [of("1.0"), alone], []):
        with pytest.raises(ClaimError) as raised:
            bound(1.3, numbers)
        assert raised.value.rule == "bound"
    assert bound(1.3, [of("1.0")]).evidence == "derived"


def test_what_is_formed_of_an_estimate_is_one() -> None:
    alone = replace(of("1.0"), evidence="estimated")
    assert ratio(of("2.0"), alone).evidence == "estimated"
    assert difference(alone, of("0.5")).evidence == "estimated"
    with pytest.raises(ClaimError):
        bound(1.0, [difference(alone, of("0.5"))])


def test_a_share_says_what_its_whole_leaves_out() -> None:
    part, whole = of("2.98", region="graph GEMMs"), of("14.4", region="block")
    with pytest.raises(ClaimError, match="leaves out b, and") as raised:
        share(part, whole, ["a"], ["a", "b"])
    assert raised.value.rule == "share"
    made = share(part, whole, ["a"], ["a", "b"], leaves_out=["b"])
    assert made.value == pytest.approx(2.98 / 14.4)
    assert made.leaves_out == ("b",)
    with pytest.raises(ClaimError, match="more than its whole"):
        share(of("2.88", region="convs"), of("1.298"), ["a"], ["a"])
    with pytest.raises(ClaimError, match="of different baselines"):
        share(replace(part, place=replace(part.place, baseline="x")), whole, ["a"], ["a"])


def test_a_range_names_what_it_covers() -> None:
    found = value_range([of("0.8", "per channel"), of("0.2", "per tensor", cell="gpu")])
    assert (found.low, found.high) == (0.2, 0.8)
    assert found.variants == ("per channel", "per tensor")
    assert found.cells == ("ort, cpu", "gpu")
    with pytest.raises(ClaimError, match="names no variant"):
        value_range([])


def exact(*values: float) -> list[Measurement]:
    return [replace(of("1.0"), number=Number(v)) for v in values]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ("1.05", "1.13", "lies outside"),
        ("1.06", "1.14", "lies outside"),
        ("1.05", "1.15", "no value reaches the end 1.15; the nearest is 1.14"),
        ("1.04", "1.14", "no value reaches the end 1.04"),
        ("1.05", "1.1", "lies outside"),
    ],
)
def test_a_printed_range_that_is_not_that_of_its_numbers(low: str, high: str, told: str) -> None:
    with pytest.raises(ClaimError, match=told):
        covered(Number.printed(low), Number.printed(high), exact(1.05, 1.1, 1.14))


@pytest.mark.parametrize(("low", "high"), [("1.05", "1.14"), ("1.0", "1.2"), ("1.050", "1.140")])
def test_a_range_may_be_rounded_away_from_its_numbers(low: str, high: str) -> None:
    covered(Number.printed(low), Number.printed(high), exact(1.05, 1.1, 1.14))


@given(
    a=st.decimals("0.5", "50", places=2, allow_nan=False, allow_infinity=False),
    b=st.decimals("0.5", "50", places=2, allow_nan=False, allow_infinity=False),
    errors=st.tuples(st.floats(-0.005, 0.005), st.floats(-0.005, 0.005)),
    places=st.integers(0, 3),
)
def test_honest_rounding_always_agrees(
    a: object, b: object, errors: tuple[float, float], places: int
) -> None:
    """Whatever the true operands were, the printed result of theirs is within the allowance."""
    one, other = of(str(a)), of(str(b))
    true = (one.number.value + errors[0]) / (other.number.value + errors[1])
    made = ratio(one, other)
    assert agrees(Number.printed(f"{true:.{places}f}"), made.low, made.high)
    less = (one.number.value + errors[0]) - (other.number.value + errors[1])
    assert agrees(Number.printed(f"{less:.{places}f}"), *difference(one, other).number.ends)


def test_a_result_that_no_rounding_gives() -> None:
    made = ratio(of("1.298"), of("1.418"))
    assert agrees(Number.printed("0.92"), made.low, made.high)
    assert not agrees(Number.printed("0.95"), made.low, made.high)


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "nan", "inf", "1,5"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        Number.printed(text)


def test_the_last_place_is_that_of_the_text() -> None:
    assert Number.printed("1.50").unit_in_last_place == pytest.approx(0.01)
    assert Number.printed("3").unit_in_last_place == 1.0
    assert Number.printed("-0.007").unit_in_last_place == pytest.approx(0.001)
