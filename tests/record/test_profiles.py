"""Where the time goes, and what did not fuse: from made-up profiles whose answer is known."""

from __future__ import annotations

import pytest

from bitworth.record.conversions import TOLD, conversions
from bitworth.record.derive import derive
from bitworth.record.op_classes import (
    ATTENTION,
    CONVERSION,
    MOVEMENT,
    OTHER,
    POINTWISE,
    PRODUCT,
    op_class,
)
from bitworth.record.profile_derived import own_profile
from bitworth.record.profile_facts import LayerFact, ProfileFacts, site_times
from bitworth.record.schema import Record, VariantFacts
from bitworth.record.time_split import KERNELS, REST, UNMAPPED, time_split

GROUPS = {"conv": ("c1", "c2"), "fc": ("fc",), "all": ("c1", "c2", "fc")}


def layer(
    name: str,
    op: str,
    ns: float,
    *sites: str,
    form: str = "fp32",
    inputs: tuple[int, ...] = (),
) -> LayerFact:
    return LayerFact(
        name=name, op=op, kernel=op, precision=form, time_ns=ns, sites=sites, format=form,
        inputs=inputs,
    )  # fmt: skip


def profile(*layers: LayerFact, plain: float | None = None) -> ProfileFacts:
    return ProfileFacts(plan_sha256="0" * 64, calls=20, plain_ns=plain, layers=layers)


BASELINE = profile(
    layer("conv1", "FusedConv", 40, "c1"),
    layer("conv2", "Conv", 20, "c2", inputs=(0,)),
    layer("add", "Add", 10, inputs=(0, 1)),
    layer("fc", "MatMul", 10, "fc", inputs=(2,)),
    layer("qk", "MatMul", 15, "@matmul:a/1", inputs=(3,)),
    layer("turn", "Transpose", 5, inputs=(4,)),
    plain=110.0,
)


def test_the_split_adds_up_to_the_whole() -> None:
    found = time_split("baseline", BASELINE, GROUPS)
    assert found is not None
    assert {s.name: s.share_of_profile for s in found.by_class} == {
        PRODUCT: 0.7, ATTENTION: 0.15, POINTWISE: 0.1, MOVEMENT: 0.05,
    }  # fmt: skip
    assert [s.name for s in found.by_class] == [PRODUCT, ATTENTION, POINTWISE, MOVEMENT]
    assert {s.name: (s.layers, s.share_of_profile) for s in found.by_group} == {
        "conv": (2, 0.6), "fc": (1, 0.1), "all": (3, 0.7), UNMAPPED: (2, 0.15),
    }  # fmt: skip
    assert sum(s.share_of_profile for s in found.by_kernel) == pytest.approx(1)
    assert sum(s.layers for s in found.by_kernel) == found.layers == 6
    assert found.coverage_ratio == 0.85
    assert found.layers_ns == 100
    # A call takes 10 ns more than its layers.
    assert found.gap_ratio == pytest.approx(10 / 110, rel=1e-5)


def test_a_layer_of_several_sites_is_shared() -> None:
    both = profile(layer("both", "Conv", 9, "c1", "c2", "fc"), layer("r", "Relu", 1))
    found = time_split("v", both, GROUPS)
    assert found is not None
    assert {s.name: s.share_of_profile for s in found.by_group} == {
        "conv": 0.6, "fc": 0.3, "all": 0.9, UNMAPPED: 0.1,
    }  # fmt: skip
    assert found.gap_ratio is None


def test_site_times_share_what_layers_share() -> None:
    layers = [layer("x", "Conv", 10, "a", "b"), layer("y", "Conv", 3, "a"), layer("z", "Relu", 99)]
    assert site_times(layers) == {"a": 8.0, "b": 5.0}
    assert site_times([]) == {}


def test_kernels_beyond_the_listed_ones_are_summed() -> None:
    many = [layer(f"k{i}", f"Op{i}", 100 - i) for i in range(KERNELS + 5)]
    found = time_split("v", profile(*many), {})
    assert found is not None
    assert len(found.by_kernel) == KERNELS + 1
    assert (found.by_kernel[-1].name, found.by_kernel[-1].layers) == (REST, 5)
    assert sum(s.share_of_profile for s in found.by_kernel) == pytest.approx(1, abs=1e-4)


def test_without_times_there_is_no_split() -> None:
    assert time_split("v", profile(), GROUPS) is None
    assert conversions("v", BASELINE, profile(), ()) is None
    assert conversions("v", profile(), BASELINE, ()) is None


def test_every_conversion_is_told_with_what_it_stands_between() -> None:
    variant = profile(
        layer("q", "QuantizeLinear", 4, form="int8"),
        layer("conv1", "QLinearConv", 15, "c1", form="int8", inputs=(0,)),
        layer("d", "DequantizeLinear", 3, inputs=(1,)),
        layer("add", "Add", 10, inputs=(2,)),
        layer("q2", "QuantizeLinear", 2, form="int8", inputs=(3,)),
        layer("conv2", "Conv", 20, "c2", inputs=(4,)),
        layer("norm", "LayerNormalization", 6, inputs=(3,)),
    )
    found = conversions("int8", BASELINE, variant, ("c1", "c2"))
    assert found is not None
    assert (found.layers_before, found.layers_after) == (6, 7)
    assert (found.count_before, found.count_after) == (0, 3)
    assert found.share_after == pytest.approx(9 / 60)
    assert found.share_added == pytest.approx(9 / 100)
    assert [(t.op, t.producer, t.readers) for t in found.told] == [
        ("QuantizeLinear", "", ("QLinearConv of c1",)),
        ("DequantizeLinear", "QLinearConv of c1", ("Add",)),
        ("QuantizeLinear", "Add", ("Conv of c2",)),
    ]
    first, second, third = (t.why for t in found.told)
    assert "input of the model" in first
    assert second == "Add read in fp32"
    assert third == "output of Add that also feeds LayerNormalization in fp32"
    # Quantized, and computed in float all the same.
    assert found.unchanged == ("c2",)


def test_what_the_baseline_converts_too_has_not_appeared() -> None:
    before = profile(layer("r", "ReorderInput", 10), layer("c", "Conv", 90, "c1"))
    after = profile(layer("r", "ReorderInput", 4), layer("c", "QLinearConv", 30, "c1", form="int8"))
    found = conversions("int8", before, after, ("c1",))
    assert found is not None
    assert found.told == ()
    assert found.unchanged == ()
    assert found.share_added == pytest.approx(-0.06)


def test_only_the_longest_are_told_one_by_one() -> None:
    after = profile(*(layer(f"q{i}", "Cast", i + 1) for i in range(TOLD + 3)))
    found = conversions("v", BASELINE, after, ())
    assert found is not None
    assert len(found.told) == TOLD
    assert found.untold == 3
    assert found.told[0].layer == f"q{TOLD + 2}"


def test_a_profile_of_another_plan_counts_for_nothing(record: Record) -> None:
    """Told by the hash of the plan; older records do not have one, and are believed."""
    cell = record.facts.cells[0]
    baseline = cell.variants[0]
    assert baseline.plan is not None
    assert baseline.profile is not None
    assert own_profile(baseline) is baseline.profile
    for sha256, expected in (("1" * 64, False), (None, True)):
        profile = baseline.profile.model_copy(update={"plan_sha256": sha256})
        foreign = baseline.model_copy(update={"profile": profile})
        assert (own_profile(foreign) is not None) is expected
    other = cell.model_copy(update={"variants": (foreign_to(baseline), *cell.variants[1:])})
    facts = record.facts.model_copy(update={"cells": (other, *record.facts.cells[1:])})
    derived = derive(facts).cells[0]
    assert "baseline" not in {split.variant for split in derived.splits}
    assert derived.conversions == derived.reasons == derived.bounds == ()


def foreign_to(variant: VariantFacts) -> VariantFacts:
    """The variant with the profile of another plan."""
    assert variant.profile is not None
    profile = variant.profile.model_copy(update={"plan_sha256": "1" * 64})
    return variant.model_copy(update={"profile": profile})


@pytest.mark.parametrize(
    ("op", "sites", "expected"),
    [
        ("QLinearConv", (), PRODUCT),
        ("Convolution", (), PRODUCT),
        ("Anything", ("w",), PRODUCT),
        ("MatMul", ("@matmul:a/1",), ATTENTION),
        ("MatMul", ("@matmul:a/1", "w"), PRODUCT),
        ("Reorder", (), CONVERSION),
        ("FakeQuantize", (), CONVERSION),
        ("NonMaxSuppression", (), OTHER),
    ],
)
def test_classes(op: str, sites: tuple[str, ...], expected: str) -> None:
    assert op_class(op, sites) == expected
