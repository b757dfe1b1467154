from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bitworth.calibration import Calibration, RangeAccumulator
from bitworth.calibration.cache import from_arrays, load, save, to_arrays
from bitworth.calibration.merging import rescaled


@pytest.fixture
def calibration() -> Calibration:
    found = {}
    rng = np.random.default_rng(0)
    for index, size in enumerate((0, 3, 20_000)):
        accumulator = RangeAccumulator()
        accumulator.add(rng.standard_normal(size).astype(np.float32))
        found[f"value {index} ü"] = accumulator.finish()
    for channels in (0, 1, 5):
        extremes = np.sort(rng.standard_normal((2, channels)), axis=0)
        found[f"channels {channels}"] = replace(
            found["value 2 ü"], channel_minimum=extremes[0], channel_maximum=extremes[1]
        )
    found["rescaled"] = rescaled(found["channels 5"], np.full(5, 2.0))
    found["last"] = found["value 1 ü"]
    return Calibration(found, samples=7, tensor_batches=2, peak_run_bytes=99)


def check_equal(a: Calibration, b: Calibration | None) -> None:
    assert b is not None
    one, other = to_arrays(a), to_arrays(b)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert list(a.statistics) == list(b.statistics)


def test_arrays_hold_everything(calibration: Calibration) -> None:
    back = from_arrays(to_arrays(calibration))
    check_equal(calibration, back)
    for name, statistics in calibration.statistics.items():
        for field, value in vars(statistics).items():
            got = getattr(back.statistics[name], field)
            assert type(got) is type(value)
            assert np.array_equal(got, value)
    assert (back.samples, back.tensor_batches, back.peak_run_bytes) == (7, 2, 99)


@pytest.mark.parametrize("missing", ["channel_counts", "channel_extremes", "shape_known"])
def test_a_file_of_an_older_version_is_no_calibration(
    calibration: Calibration, tmp_path: Path, missing: str
) -> None:
    path = tmp_path / "calibration.npz"
    arrays = to_arrays(calibration)
    np.savez(path, key=np.array("a"), **arrays)
    check_equal(calibration, load(path, "a"))
    del arrays[missing]
    np.savez(path, key=np.array("a"), **arrays)
    assert load(path, "a") is None


def test_nothing_observed() -> None:
    empty = Calibration({}, 1, 0, 0)
    check_equal(empty, from_arrays(to_arrays(empty)))


def test_save_and_load(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.npz"
    assert load(path, "a") is None
    save(path, calibration, "a")
    check_equal(calibration, load(path, "a"))
    assert load(path, "b") is None
    assert [p.name for p in tmp_path.iterdir()] == ["calibration.npz"]


def test_a_changed_byte_is_noticed(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.npz"
    save(path, calibration, "a")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)
    assert load(path, "a") is None


@pytest.mark.parametrize("keep", [0, 10, 2000])
def test_a_damaged_file_is_no_calibration(
    calibration: Calibration, tmp_path: Path, keep: int
) -> None:
    path = tmp_path / "calibration.npz"
    save(path, calibration, "a")
    path.write_bytes(path.read_bytes()[:keep])
    assert load(path, "a") is None


def test_pickles_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "calibration.npz"
    np.savez(path, key=np.array("a"), names=np.array([{}], dtype=object))
    assert load(path, "a") is None
