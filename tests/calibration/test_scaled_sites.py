from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bitworth.calibration import RangeAccumulator, RangeStatistics, quantize_sites
from bitworth.recipe import Calibrator, Quantize, Site

ENTRY = Quantize("all", "int8", sign="u8", zero_point="symmetric", weight_range="full")


def site(index: int, activation: str, output: str, shape: tuple[int, ...] = (4, 4)) -> Site:
    name = f"w{index}"
    return Site(name, f"n{index}", "MatMul", name, shape, 1, 1, activation, output)


def seen(x: NDArray[np.generic] | list[float]) -> RangeStatistics:
    accumulator = RangeAccumulator()
    accumulator.add(np.asarray(x))
    return accumulator.finish()


@pytest.fixture
def model(chain: Callable[..., ir.Model]) -> ir.Model:
    dead = np.eye(4, dtype=np.float32)
    dead[:, [1, 3]] = 0
    dead[0, 0] = 1e-41
    return chain(
        ["MatMul", "MatMul", "MatMul"],
        ["n", 4],
        [np.eye(4, dtype=np.float32), dead, np.full((4, 4), 1e-42, np.float32)],
    )


STATISTICS = {"x": seen([0.0, 3.0]), "v0": seen([-1.0, 2.0]), "v1": seen([0.0, 0.0])}


def test_scales_lists_and_order(model: ir.Model) -> None:
    sites = [
        (site(1, "v0", "v1"), ENTRY),
        (site(0, "x", "v0"), ENTRY),
        (site(2, "v1", "v2"), ENTRY),
    ]
    done = quantize_sites(model, sites, STATISTICS, {"w0": "v0", "w1": "v1", "w2": None})
    assert [q.site.id for q in done.quantized] == ["w1", "w0"]
    second, first = done.quantized
    # One value, one scale, whichever site it belongs to.
    assert first.output is second.activation
    assert first.output_value == "v0"
    assert (first.activation.zero_point, second.activation.zero_point) == (0, 128)
    assert done.dead == (
        ("w1", "value 'v1' is always zero"),
        ("w1", "weight 'w1': 2 of 4 output channels are all zeros (1, 3)"),
        (
            "w1",
            "weight 'w1': 1 of 4 output channels are too small for a float32 scale of their own "
            "(0)",
        ),
    )
    ((left, reason),) = done.left_out
    assert left == "w2"
    assert reason == "weight 'w2': its scale of 7.88e-45 underflows in float32"


def test_recipes_that_differ_give_scales_that_differ(model: ir.Model) -> None:
    other = replace(ENTRY, calibrator=Calibrator("percentile", 50.0))
    sites = [(site(0, "x", "v0"), ENTRY), (site(1, "v0", "v1"), other)]
    done = quantize_sites(model, sites, STATISTICS, {"w0": "v0"})
    assert done.quantized[0].output is not None
    assert done.quantized[0].output.scale > done.quantized[1].activation.scale
    assert done.quantized[1].output is None


def test_an_activation_without_finite_values_leaves_its_site_out(model: ir.Model) -> None:
    statistics = {**STATISTICS, "x": seen([np.nan])}
    done = quantize_sites(model, [(site(0, "x", "v0"), ENTRY)], statistics, {})
    assert done.left_out == (("w0", "value 'x': calibration saw no finite value of it"),)


def test_a_dead_weight(chain: Callable[..., ir.Model]) -> None:
    model = chain(["MatMul"], ["n", 4], [np.zeros((4, 4), np.float32)])
    done = quantize_sites(model, [(site(0, "x", "v0"), ENTRY)], STATISTICS, {})
    assert done.dead == (("w0", "weight 'w0' is all zeros"),)
    assert (done.quantized[0].weight.scale == 1.0).all()


def test_what_is_missing_is_named(model: ir.Model) -> None:
    with pytest.raises(ValueError, match="value 'v7' was not observed"):
        quantize_sites(model, [(site(0, "v7", "v0"), ENTRY)], STATISTICS, {})
    with pytest.raises(ValueError, match="no initializer 'w9'"):
        quantize_sites(model, [(site(9, "x", "v0"), ENTRY)], STATISTICS, {})
