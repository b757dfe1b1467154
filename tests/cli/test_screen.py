"""``bitworth screen``: on the mock, whose profile is known, and on both engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitworth.record.device_profile import CopyTime, DeviceProfile, ProductTime

Bitworth = Callable[..., Any]
ARGUMENTS = ("--random-inputs", "--shape", "x=16,4")


def elsewhere(path: Path, faster: float) -> Path:
    """A device on which int8 products take 1 / ``faster`` of the time."""
    profile = DeviceProfile(
        engine="torch", engine_version="2.11", device="Some GPU", threads=1, details={},
        created="2026-01-01T00:00:00Z",
        products=(
            ProductTime(kind="gemm", format="fp32", m=16, n=6, k=4, time_ns=1000),
            ProductTime(kind="gemm", format="int8", m=16, n=6, k=4, time_ns=1000 / faster),
        ),
        copies=(CopyTime(bytes=1 << 20, time_ns=1),),
    )  # fmt: skip
    path.write_text(profile.model_dump_json())
    return path


@pytest.mark.parametrize("engine", ["mock", "onnxruntime", "openvino"])
def test_every_group_has_its_ceiling(bitworth: Bitworth, tiny: Path, engine: str) -> None:
    done = bitworth("screen", tiny, *ARGUMENTS, "--engine", engine, "--json")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)
    assert found["engine"] == engine
    rows = {(p["group"], p["format"]): p for p in found["prospects"]}
    assert {"all", "MatMul"} <= {group for group, _ in rows}
    assert "int8" in {form for _, form in rows}
    for row in rows.values():
        assert 0 <= row["share"] <= 1
        assert row["ceiling"] >= 1
        assert row["ceiling_evidence"] == "derived"
        assert row["expected_evidence"] == "estimated"
    assert rows["all", "int8"]["share"] == rows["MatMul", "int8"]["share"]
    assert rows["all", "int8"]["sites"] == 2
    formats = {p["format"] for p in found["limits"]["products"]}
    assert {"fp32", "int8"} <= formats


def test_another_devices_rates_are_estimates(
    bitworth: Bitworth, tiny: Path, tmp_path: Path
) -> None:
    device = elsewhere(tmp_path / "gpu.json", faster=4)
    done = bitworth(
        "screen", tiny, *ARGUMENTS, "--engine", "mock", "--device-profile", device, "--json"
    )
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)
    assert {p["ceiling_evidence"] for p in found["prospects"]} == {"estimated"}
    assert found["limits"]["device"] == "Some GPU"


def test_it_says_what_is_worth_building(bitworth: Bitworth, tiny: Path, tmp_path: Path) -> None:
    device = elsewhere(tmp_path / "gpu.json", faster=4)
    given = ("screen", tiny, *ARGUMENTS, "--engine", "mock", "--device-profile", device)
    done = bitworth(*given)
    assert done.code == 0, done.err
    assert "Worth building, best first: int8 " in done.out
    assert "estimated" in done.out
    none = bitworth(*given, "--min-speedup", "100")
    assert "nothing is worth building here" in none.out


def test_a_format_that_gains_nothing_is_not_worth_building(
    bitworth: Bitworth, tiny: Path, tmp_path: Path
) -> None:
    device = elsewhere(tmp_path / "slow.json", faster=0.9)
    done = bitworth("screen", tiny, *ARGUMENTS, "--engine", "mock", "--device-profile", device)
    assert done.code == 0, done.err
    assert "nothing is worth building here" in done.out


def test_real_data_is_taken_and_none_is_refused(
    bitworth: Bitworth, tiny: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "h.npz", x=np.ones((3, 4), np.float32))
    done = bitworth("screen", tiny, "--holdout", tmp_path / "h.npz", "--engine", "mock")
    assert done.code == 0, done.err
    none = bitworth("screen", tiny, "--engine", "mock")
    assert none.code == 2
    assert none.err.count("\n") == 1
    assert "--holdout h.npz" in none.err
    assert "--calibration" not in none.err


def test_a_device_profile_of_another_version_is_refused(
    bitworth: Bitworth, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"version": 0}')
    done = bitworth("screen", tiny, *ARGUMENTS, "--device-profile", path)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "old.json" in done.err
    assert "bitworth roofline" in done.err


def test_a_device_is_measured_once_and_screened_with_elsewhere(
    bitworth: Bitworth, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "device.json"
    done = bitworth("roofline", "--engine", "onnxruntime", "--shapes", "16x6x4,16x3x6", "-o", path)
    assert done.code == 0, done.err
    assert "operations a ns" in done.out
    found = DeviceProfile.model_validate_json(path.read_text())
    assert {"fp32", "int8"} <= {p.format for p in found.products}
    assert {p.kind for p in found.products} == {"gemm", "conv"}
    assert {(p.m, p.n, p.k) for p in found.products} >= {(16, 6, 4), (16, 3, 6)}
    screened = bitworth("screen", tiny, *ARGUMENTS, "--engine", "mock", "--device-profile", path)
    assert screened.code == 0, screened.err
    assert "Every number is estimated" in screened.out


@pytest.mark.parametrize("shapes", ["4x4", "axbxc", "4x4x0", "", "4x4x4,"])
def test_shapes_that_are_none_are_refused(bitworth: Bitworth, shapes: str, tmp_path: Path) -> None:
    done = bitworth("roofline", "--shapes", shapes, "-o", tmp_path / "d.json")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "MxNxK" in done.err
    assert not (tmp_path / "d.json").exists()
