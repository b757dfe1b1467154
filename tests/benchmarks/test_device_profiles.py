"""Committed device profiles can be screened with, and hold rates that such a device can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitworth.record.device_profile import read_device_profile

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "benchmarks" / "results").glob("*/device_profile.json"))


def test_there_are_some() -> None:
    assert {path.parent.name for path in PATHS} >= {"nvidia-h200"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.parent.name)
def test_every_rate_is_below_its_formats_peak_and_above_nothing(path: Path) -> None:
    found = read_device_profile(path)
    assert found.products[0].format in ("fp16", "fp32")
    for product in found.products:
        peak = found.peak(product.format)
        assert peak is not None
        assert 0 < product.rate <= peak
    assert found.memory_bandwidth() is not None


def test_an_h200_computes_fp8_at_about_twice_the_rate_of_fp16() -> None:
    found = read_device_profile(ROOT / "benchmarks/results/nvidia-h200/device_profile.json")
    fp8, fp16 = found.peak("fp8_e4m3"), found.peak("fp16")
    assert fp8 is not None
    assert fp16 is not None
    assert 1.7 < fp8 / fp16 < 2.1
    # Its data sheet: 989 TFLOP/s in fp16, 4.8 TB/s.
    assert 500 < fp16 / 1000 < 989
    bandwidth = found.memory_bandwidth()
    assert bandwidth is not None
    assert 1.5 < bandwidth / 1000 < 4.8
