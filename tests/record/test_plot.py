from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.record.labels import Frame, Spot, place_labels
from bitworth.record.plot import speed_loss_chart, speed_loss_svg
from bitworth.record.schema import Record


def words(svg: str) -> str:
    return " ".join("".join(e.itertext()) for e in ElementTree.fromstring(svg).iter())


def test_same_record_gives_the_same_bytes(record: Record) -> None:
    again = Record.model_validate_json(record.model_dump_json())
    assert speed_loss_svg(record) == speed_loss_svg(again)


def test_timed_variants_are_drawn_and_the_others_named(record: Record) -> None:
    svg = speed_loss_svg(record)
    for name in ("baseline", "int8 all", "int8 MatMul", "int8 tail", "int8 wide"):
        assert svg.count(f">{name}</text>") == 2
    assert ">int8 broken</text>" not in svg
    found = words(svg)
    for text in ("emulated, so without a time: fp8 all", "void: int8 broken", "failed: int8 s8"):
        assert f"not drawn, {text}" in found


def test_partial_and_hostile_records_are_drawn(
    partial_record: Record, hostile_record: Record
) -> None:
    assert "not drawn, not timed: int8 all" in words(speed_loss_svg(partial_record))
    assert "<b>" in words(speed_loss_svg(hostile_record))


def test_without_a_metric_the_error_is_drawn(make_record: Callable[..., Record]) -> None:
    record = make_record(engines=("onnxruntime",))
    cells = tuple(
        cell.model_copy(
            update={
                "variants": tuple(
                    v.model_copy(update={"scores": {}, "losses": ()}) for v in cell.variants
                )
            }
        )
        for cell in record.derived.cells
    )
    derived = record.derived.model_copy(update={"cells": cells})
    assert "relative L2" in words(speed_loss_svg(record.model_copy(update={"derived": derived})))


@given(
    st.lists(
        st.tuples(st.floats(0.5, 2), st.floats(-1, 10), st.text("abc ", min_size=1, max_size=20)),
        min_size=1,
        max_size=7,
    )
)
@settings(max_examples=50)
def test_every_spot_has_one_label(points: list[tuple[float, float, str]]) -> None:
    spots = [Spot(text, x, y, (x - 0.1, x + 0.1), (y - 1, y + 1)) for x, y, text in points]
    labels = place_labels(spots, Frame(0.3, 2.2, -3, 12, 430, 330))
    assert sorted(label.text for label in labels) == sorted(spot.text for spot in spots)


def test_labels_of_a_cluster_do_not_cover_each_other() -> None:
    spots = [Spot(f"variant {k}", 1 + 0.01 * k, 0.1 * k, (1, 1.05), (0, 0.5)) for k in range(5)]
    frame = Frame(0.5, 2, -2, 8, 430, 330)
    boxes = []
    for label in place_labels(spots, frame):
        x, y = frame.pixel(label.x, label.y)
        width = 7.0 * len(label.text)
        left = x + label.dx - {"left": 0, "center": width / 2, "right": width}[label.align]
        boxes.append((left, y + label.dy - 6, left + width, y + label.dy + 6))
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert min(a[2], b[2]) <= max(a[0], b[0]) or min(a[3], b[3]) <= max(a[1], b[1])


@pytest.mark.parametrize("engines", [("onnxruntime",), ("onnxruntime", "openvino")])
def test_one_panel_a_cell(make_record: Callable[..., Record], engines: tuple[str, ...]) -> None:
    chart = speed_loss_chart(make_record(engines=engines)).to_dict()
    assert len(chart["concat"]) == len(engines)
