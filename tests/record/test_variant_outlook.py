"""What a variant could give beside what it gave."""

from __future__ import annotations

from dataclasses import fields

import pytest

from bitworth.record.derive import derive
from bitworth.record.device_profile import CopyTime, DeviceProfile, ProductTime
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record
from bitworth.record.variant_bounds import WorkFact
from bitworth.record.variant_outlook import VariantOutlook, beyond, measured_formats
from bitworth.verdict import Comparison

DEVICE = DeviceProfile(
    engine="onnxruntime", engine_version="1", device="d", threads=2, details={}, created="",
    products=(
        ProductTime(kind="conv", format="fp32", m=100, n=100, k=100, time_ns=100_000),
        ProductTime(kind="conv", format="int8", m=100, n=100, k=100, time_ns=50_000),
    ),
    copies=(CopyTime(bytes=1 << 20, time_ns=1 << 17),),
)  # fmt: skip
WORK = {
    name: WorkFact(
        kind="conv", batch=1, m=100, n=100, k=100, inputs=10_000, weights=10_000, outputs=10_000
    )
    for name in ("conv_0.weight", "conv_1.weight")
}


def compared(ratio: float | None, high: float | None) -> Comparison:
    given = {field.name: None for field in fields(Comparison)}
    values = {**given, "time_ratio": ratio, "time_ratio_high": high, "verdict": "faster"}
    return Comparison(**values)  # type: ignore[arg-type]


def with_limits(record: Record) -> Record:
    cells = tuple(c.model_copy(update={"limits": DEVICE, "work": WORK}) for c in record.facts.cells)
    facts = record.facts.model_copy(update={"cells": cells})
    return record.model_copy(update={"facts": facts, "derived": derive(facts)})


def test_every_variant_in_a_measured_format_has_its_bound(record: Record) -> None:
    cell = with_limits(record).derived.cells[0]
    names = [entry.variant for entry in cell.outlooks]
    assert "int8 all" in names
    assert "bf16" not in names  # no site is quantized
    assert "baseline" not in names
    timed = {v.variant: v.comparison for v in cell.variants}
    for entry in cell.outlooks:
        # Two convolutions take 2 of 4.3 ms; each needs 50 us at least.
        assert entry.share_of_profile == pytest.approx(2.0 / 4.3, rel=1e-4)
        # The gap of 0.7 ms and what the convolutions do not reach stay as they are; the product
        # behind them is a site of its own.
        assert entry.ceiling_speedup == pytest.approx(5.0 / (5.0 - 1.9), rel=1e-3)
        assert entry.expected_speedup == pytest.approx(5.0 / (5.0 - 1.0), rel=0.02)
        made = timed[entry.variant]
        if made is not None and made.verdict != "void" and made.time_ratio is not None:
            saved = 1 - made.time_ratio
            assert entry.reached_ratio == pytest.approx(saved / (1.9 / 5.0), rel=1e-3)


def test_without_limits_there_is_no_bound(record: Record) -> None:
    assert all(cell.outlooks == () for cell in record.derived.cells)
    assert "What each variant could give" not in render_markdown(record, "a.svg")


def test_the_table_has_bound_and_measurement(record: Record) -> None:
    text = render_markdown(with_limits(record), "a.svg")
    assert "What each variant could give" in text
    assert "at most (derived)" in text
    assert "expected (estimated)" in text


@pytest.mark.parametrize(
    ("ceiling", "high", "expected"),
    [(2.0, 0.45, True), (2.0, 0.55, False), (2.0, None, False), (2.3, 0.45, False)],
)
def test_beyond_is_the_whole_interval(ceiling: float, high: float | None, expected: bool) -> None:
    entry = VariantOutlook(
        variant="v", share_of_profile=0.5, ceiling_speedup=ceiling, expected_speedup=None,
        reached_ratio=None,
    )  # fmt: skip
    assert beyond(entry, compared(0.4, high)) is expected


def test_weights_alone_need_no_measured_format(record: Record) -> None:
    """Each site is limited by what the device does at all, and nothing is expected of it."""
    record = with_limits(record)
    cell = record.facts.cells[0]
    alone = tuple(
        v.model_copy(
            update={
                "sites": tuple(
                    s.model_copy(update={"format": "int4", "activation": None}) for s in v.sites
                )
            }
        )
        for v in cell.variants
    )
    (found, *_) = (
        derive(
            record.facts.model_copy(
                update={"cells": (cell.model_copy(update={"variants": alone}),)}
            )
        )
        .cells[0]
        .outlooks
    )
    assert found.ceiling_speedup > 1
    assert found.expected_speedup is None


def test_formats_that_were_not_measured_have_no_bound() -> None:
    assert measured_formats([("a", "int8"), ("b", "int8")], DEVICE) == {"a": "int8", "b": "int8"}
    assert measured_formats([("a", "int8"), ("b", "fp8_e4m3")], DEVICE) == {}
