"""Bounds and expectations from made-up profiles and rates whose answer can be worked out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitworth.errors import UserError
from bitworth.record.device_profile import (
    CopyTime,
    DeviceProfile,
    ProductTime,
    read_device_profile,
)
from bitworth.record.profile_facts import LayerFact
from bitworth.record.variant_bounds import WorkFact, outlook


def layer(name: str, op: str, ns: float, *sites: str, inputs: tuple[int, ...] = ()) -> LayerFact:
    return LayerFact(
        name=name, op=op, kernel=op, precision="f32", time_ns=ns, sites=sites, format="fp32",
        inputs=inputs,
    )  # fmt: skip


def work(m: int, n: int, k: int) -> WorkFact:
    return WorkFact(kind="gemm", batch=1, m=m, n=n, k=k, inputs=m * k, weights=k * n, outputs=m * n)


#: 2 operations a ns in fp32, 8 in int8 at the best and 4 at the site's own shape; 1e6 bytes a ns.
DEVICE = DeviceProfile(
    engine="mock", engine_version="1", device="d", threads=1, details={}, created="",
    products=(
        ProductTime(kind="gemm", format="fp32", m=10, n=10, k=10, time_ns=1000),
        ProductTime(kind="gemm", format="int8", m=10, n=10, k=10, time_ns=500),
        ProductTime(kind="gemm", format="int8", m=100, n=100, k=100, time_ns=250_000),
    ),
    copies=(CopyTime(bytes=1_000_000, time_ns=2),),
)  # fmt: skip
LAYERS = (
    layer("conv", "Conv", 1000, "a"),
    layer("relu", "Relu", 200, inputs=(0,)),
    layer("conv2", "Conv", 1000, "b", inputs=(1,)),
    layer("softmax", "NonMaxSuppression", 800, inputs=(2,)),
)
WORK = {"a": work(10, 10, 10), "b": work(10, 10, 10)}


def test_a_group_cannot_give_more_than_its_limit() -> None:
    found = outlook(LAYERS, None, {"a": "int8"}, WORK, DEVICE)
    assert found is not None
    assert found.share == pytest.approx(1 / 3)
    # 1000 ns of conv fall to 2000 operations at 8 a ns, 200 of relu to a quarter.
    assert found.ceiling == pytest.approx(3000 / (3000 - (1000 - 250) - 150))
    # The product itself took 500 ns in place of 1000; 100 elements are quantized, next to nothing.
    assert found.expected == pytest.approx(3000 / 2500, rel=1e-3)


def test_both_groups_together_give_more() -> None:
    one = outlook(LAYERS, None, {"a": "int8"}, WORK, DEVICE)
    both = outlook(LAYERS, None, {"a": "int8", "b": "int8"}, WORK, DEVICE)
    assert one is not None
    assert both is not None
    assert both.ceiling > one.ceiling
    assert both.ceiling == pytest.approx(3000 / (3000 - 1500 - 150))


def test_time_outside_of_layers_stays() -> None:
    inside = outlook(LAYERS, 3000, {"a": "int8"}, WORK, DEVICE)
    gap = outlook(LAYERS, 6000, {"a": "int8"}, WORK, DEVICE)
    assert inside is not None
    assert gap is not None
    assert gap.ceiling == pytest.approx(6000 / (6000 - 900))
    assert gap.ceiling < inside.ceiling


def test_bytes_limit_where_operations_do_not() -> None:
    slow = DEVICE.model_copy(update={"copies": (CopyTime(bytes=300, time_ns=600),)})
    found = outlook(LAYERS[:1], None, {"a": "int8"}, WORK, slow)
    assert found is not None
    # 300 bytes at 1 a ns are more than 250 ns of operations.
    assert found.ceiling == pytest.approx(1000 / 300)


def test_a_format_that_was_not_measured_is_limited_by_bytes_alone() -> None:
    found = outlook(LAYERS, None, {"a": "nvfp4"}, WORK, DEVICE)
    assert found is not None
    assert found.expected is None
    assert found.ceiling == pytest.approx(3000 / (3000 - 1000 - 200 * 7 / 8), rel=1e-3)


def test_weights_alone_are_limited_by_the_devices_highest_rate() -> None:
    """An engine may round activations itself, so that no format's own rate is a limit."""
    found = outlook(LAYERS, None, {"a": "int4"}, WORK, DEVICE, weight_only={"a"})
    assert found is not None
    # 2000 operations at int8's 8 a ns; the Relu between keeps its type and its time.
    assert found.ceiling == pytest.approx(3000 / (3000 - (1000 - 250)))
    assert found.expected is None


def test_weights_alone_shrink_and_activations_do_not() -> None:
    slow = DEVICE.model_copy(update={"copies": (CopyTime(bytes=1, time_ns=2.0),)})
    found = outlook(LAYERS, None, {"a": "int4"}, WORK, slow, weight_only={"a"})
    assert found is not None
    # 100 weights of half a byte, 200 activations of two: 450 bytes, of which 1 moves in a ns.
    assert found.ceiling == pytest.approx(3000 / (3000 - (1000 - 450)))


def test_layers_that_no_site_reaches_stay() -> None:
    reached = (*LAYERS, layer("other", "Relu", 500, inputs=(3,)))
    apart = (*LAYERS, layer("other", "Relu", 500))
    near = outlook(reached, None, {"b": "int8"}, WORK, DEVICE)
    far = outlook(apart, None, {"b": "int8"}, WORK, DEVICE)
    assert near is not None
    assert far is not None
    # relu stands before b in both; other moves a quarter of the bytes where b reaches it.
    assert near.ceiling == pytest.approx(3500 / (3500 - 750 - 150 - 375))
    assert far.ceiling == pytest.approx(3500 / (3500 - 750 - 150))


def test_without_a_profile_there_is_no_bound() -> None:
    assert outlook((), None, {"a": "int8"}, WORK, DEVICE) is None


def test_the_nearest_shape_gives_the_rate() -> None:
    assert DEVICE.time_ns("gemm", "int8", 10, 10, 20) == pytest.approx(1000)
    assert DEVICE.time_ns("gemm", "int8", 90, 100, 100) == pytest.approx(225_000)
    assert DEVICE.time_ns("gemm", "bf16", 10, 10, 10) is None
    assert DEVICE.peak("int8") == 8
    assert DEVICE.bandwidth() == 1e6


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("not json", "is no JSON"),
        ("[1]", "version None"),
        (json.dumps({"version": 7}), "version 7, this Bitworth reads 1"),
        (json.dumps({"version": 1}), "engine: Field required"),
    ],
)
def test_a_device_profile_that_cannot_be_used(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(content)
    with pytest.raises(UserError, match=told):
        read_device_profile(path)


def test_a_device_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(DEVICE.model_dump_json())
    assert read_device_profile(path) == DEVICE
    with pytest.raises(UserError, match="cannot be read"):
        read_device_profile(tmp_path / "missing.json")
