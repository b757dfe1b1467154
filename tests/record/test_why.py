"""Why a variant is as fast as it is: sentences whose numbers can be worked out."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from bitworth.record.conversions import conversions
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.record.time_split import time_split
from bitworth.record.why import MOST, Why, why
from bitworth.verdict import Comparison

GROUPS = {"all": ("a", "b")}


def layer(
    name: str, op: str, ns: float, *sites: str, form: str = "fp32", inputs: tuple[int, ...] = ()
) -> LayerFact:
    return LayerFact(
        name=name, op=op, kernel=op, precision=form, time_ns=ns, sites=sites, format=form,
        inputs=inputs,
    )  # fmt: skip


BASELINE = (
    layer("a", "Conv", 40, "a"),
    layer("b", "Conv", 40, "b", inputs=(0,)),
    layer("act", "Gelu", 20, inputs=(1,)),
)
#: a got twice as fast, b stayed in float, a Dequantize appeared, and Gelu takes longer.
VARIANT = (
    layer("a", "QLinearConv", 20, "a", form="int8"),
    layer("d", "DequantizeLinear", 10, inputs=(0,)),
    layer("b", "Conv", 40, "b", inputs=(1,)),
    layer("act", "Gelu", 25, inputs=(2,)),
)


def told(
    ratio: float | None = 0.95,
    verdict: str = "faster",
    layers: tuple[LayerFact, ...] = VARIANT,
    reachable: float | None = None,
) -> Why | None:
    profiles = [
        ProfileFacts(plan_sha256=None, calls=9, plain_ns=None, layers=made)
        for made in (BASELINE, layers)
    ]
    before, after = (time_split(n, p, GROUPS) for n, p in zip("bv", profiles, strict=True))
    converted = conversions("v", *profiles, ("a", "b"))
    assert before is not None
    assert after is not None
    assert converted is not None
    values = {field.name: None for field in fields(Comparison)}
    comparison = Comparison(**{**values, "time_ratio": ratio, "verdict": verdict})  # type: ignore[arg-type]
    return why("v", comparison, before, after, converted, 5.0, reachable, ("a", "b"))


def test_every_sentence_has_its_numbers() -> None:
    found = told()
    assert found is not None
    limit, products, converted, unchanged, rest = found.sentences
    assert "2 quantized sites take 80% of" in limit
    assert "5 times as fast; measured: 1.05" in limit
    # 80 of 100 before; 60 of 95, times 0.95, after.
    assert "from 80.0% to 60.0%" in products
    assert "1 of 2 sites in a narrower format" in products
    assert "from 0 to 1 and cost 10.0%" in converted
    assert "DequantizeLinear: Conv of b read in fp32" in converted
    assert "1 of 2 quantized sites" in unchanged
    assert unchanged.endswith(": b.")
    assert "took 20.0% of the baseline's time and takes 25.0% now, pointwise +5.0%" in rest
    assert len(found.sentences) <= MOST
    assert all(re.search(r"\d", sentence) for sentence in found.sentences)


def test_the_limit_is_the_devices_where_it_was_measured() -> None:
    found = told(reachable=1.9)
    assert found is not None
    assert "highest rates that this device was measured to reach" in found.sentences[0]
    assert "1.9 times as fast; measured: 1.05" in found.sentences[0]


def test_what_does_not_change_has_no_sentence() -> None:
    found = told(ratio=1.0, layers=BASELINE)
    assert found is not None
    assert not any("Quantize, dequantize" in s or "went from" in s for s in found.sentences)
    assert any("2 of 2 quantized sites compute in the baseline's format" in s
               for s in found.sentences)  # fmt: skip


@pytest.mark.parametrize(("ratio", "verdict"), [(None, "faster"), (0.9, "void")])
def test_without_a_verdict_about_the_time_there_is_no_why(
    ratio: float | None, verdict: str
) -> None:
    assert told(ratio, verdict) is None
