"""A 3 GB model with external data goes through a study's steps in little more than its own size.

It takes a minute or two, 6 GB of disk and 4 GB of memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("large_model.py")
SIZE, LAYERS = 8192, 12
MODEL_BYTES = 4 * SIZE * SIZE * LAYERS
#: A protobuf message ends here.
MESSAGE_BYTES = 2 << 30

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak is read from Linux's /proc"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with room for the model and its lowered copy; emptied at once afterwards."""
    path = tmp_path_factory.mktemp("large")
    needed = 2 * MODEL_BYTES + (1 << 30)
    free = shutil.disk_usage(path).free
    if free < needed:
        pytest.fail(f"{path}: {free >> 30} GiB free, {needed >> 30} needed; choose --basetemp")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def lowered(folder: Path) -> dict[str, Any]:
    return call("lower", folder, SIZE, LAYERS)


def call(*arguments: object) -> dict[str, Any]:
    """What the script found, in a process of its own."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 0


def test_memory_stays_near_the_size_of_the_model(lowered: dict[str, Any]) -> None:
    # Everything that is resident counts: the interpreter, what is allocated, and the pages of the
    # mapped weights, which the system could take back.
    peaks = {name: peak / MODEL_BYTES for name, peak in lowered["peaks"].items()}
    assert {name: round(peak, 3) for name, peak in peaks.items() if peak > 1.3} == {}
    # Without running the model its weights are not read whole, or one at a time.
    assert max(peaks[name] for name in ("write the model", "load", "prepare", "sites")) < 0.1


def test_every_layer_was_found_and_the_group_lowered(lowered: dict[str, Any]) -> None:
    assert lowered["sites"] == LAYERS + 1
    assert lowered["samples"] == 3
    assert lowered["quantized"] == [f"layer{i}.weight" for i in (1, 2, 3, 5, 6)]


def test_what_was_saved_is_smaller_and_within_protobuf(
    folder: Path, lowered: dict[str, Any]
) -> None:
    weight = 4 * SIZE * SIZE
    saved = (folder / "lowered.onnx.data").stat().st_size
    # int8: a quarter; int4: an eighth; both with their scales.
    expected = MODEL_BYTES - 3 * weight * 3 / 4 - 2 * weight * 7 / 8
    assert expected <= saved < 1.01 * expected
    assert saved > MESSAGE_BYTES > 100 * (folder / "lowered.onnx").stat().st_size


def test_what_was_saved_runs(folder: Path, lowered: dict[str, Any]) -> None:
    if available_bytes() < 1.5 * MODEL_BYTES:
        pytest.skip(f"{available_bytes() >> 30} GiB of memory are available; onnxruntime copies")
    found = call("run", folder, SIZE)
    assert found["finite"]
    # The same samples: rounding five layers of twelve moves the largest value little.
    assert found["largest"] == pytest.approx(lowered["largest"], rel=0.3)
