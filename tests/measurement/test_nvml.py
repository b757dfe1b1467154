"""The GPU's observer on a library that is scripted; a real one is not on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bitworth.measurement.nvml import QUANTITIES, open_gpu


class NVMLError(Exception):
    pass


class Library:
    """As much of pynvml as is used; a value that is an exception is raised."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = {
            "init": None, "handle": "device", "sm": 1755, "memory": 3201, "bits": [0x4, 0x20],
            "power": 612_345, "cap": 700_000, "temperature": 64, "pids": [10, 11, 99],
            **values,
        }  # fmt: skip
        self.open = 0

    def _give(self, name: str) -> Any:
        value = self.values[name]
        if isinstance(value, list) and name == "bits":
            value = value.pop(0) if len(value) > 1 else value[0]
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None:
        self._give("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._give("handle")

    def nvmlDeviceGetClockInfo(self, device: Any, kind: int) -> Any:
        return self._give({1: "sm", 2: "memory"}[kind])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any) -> Any:
        return self._give("bits")

    def nvmlDeviceGetPowerUsage(self, device: Any) -> Any:
        return self._give("power")

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any) -> Any:
        return self._give("cap")

    def nvmlDeviceGetTemperature(self, device: Any, sensor: int) -> Any:
        return self._give("temperature")

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> Any:
        found = self._give("pids")
        return [SimpleNamespace(pid=pid) for pid in found]


def test_what_is_read_around_a_block() -> None:
    # The first reading is to see whether it can be read; then before the block, and after it.
    library = Library(bits=[0, 0x4, 0x21])
    with open_gpu(0, [10, 11], library) as gpu:
        end = gpu.begin(10)
        seen = end()
        assert library.open == 1
    assert library.open == 0
    assert tuple(seen) == QUANTITIES
    assert seen == {
        "sm_mhz": 1755, "memory_mhz": 3201, "throttle_bits": 0x25, "power_w": 612.345,
        "power_cap_w": 700.0, "temperature_c": 64, "other_processes": 1,
    }  # fmt: skip
    assert gpu.not_observable == {}


def test_what_a_gpu_does_not_show() -> None:
    library = Library(power=NVMLError("Not Supported"), bits=NVMLError("Not Supported"))
    with open_gpu(0, [10, 11, 99], library) as gpu:
        seen = gpu.begin(10)()
    assert gpu.not_observable == dict.fromkeys(("power_w", "throttle_bits"), "NVML: Not Supported")
    assert set(seen) == set(QUANTITIES) - {"power_w", "throttle_bits"}
    assert seen["other_processes"] == 0


def test_a_reading_that_fails_once_is_a_hole() -> None:
    library = Library()
    with open_gpu(0, [10], library) as gpu:
        end = gpu.begin(10)
        library.values["sm"] = NVMLError("Unknown Error")
        assert end()["sm_mhz"] is None
        library.values["sm"] = 1200
        library.values["pids"] = NVMLError("Unknown Error")
        seen = gpu.begin(10)()
    assert (seen["sm_mhz"], seen["other_processes"]) == (1200, None)
    assert gpu.not_observable == {}


def test_process_ids_of_another_namespace() -> None:
    with open_gpu(0, [10], Library(pids=[4711])) as gpu:
        assert gpu.begin(10)()["other_processes"] is None
    assert "another process namespace" in gpu.not_observable["other_processes"]
    with open_gpu(0, [10], Library(pids=NVMLError("No Permission"))) as gpu:
        assert "other_processes" not in gpu.begin(10)()
    assert gpu.not_observable["other_processes"] == "NVML: No Permission"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"init": NVMLError("Driver Not Loaded")}, "NVML: Driver Not Loaded"),
        ({"handle": NVMLError("Invalid Argument")}, "NVML, GPU 5: Invalid Argument"),
    ],
)
def test_no_gpu(values: dict[str, Any], reason: str) -> None:
    library = Library(**values)
    with open_gpu(5, [10], library) as gpu:
        assert gpu.not_observable == dict.fromkeys(QUANTITIES, reason)
        assert gpu.begin(10)() == {}
    assert library.open == 0


def test_without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with open_gpu(0, []) as gpu:
        assert gpu.not_observable["sm_mhz"].endswith("pip install nvidia-ml-py")


def test_the_real_library_answers_or_says_why() -> None:
    """The names that are used exist in pynvml, and a machine without a GPU is told."""
    pynvml = pytest.importorskip("pynvml")
    used: Callable[[str], bool] = lambda name: hasattr(pynvml, name)  # noqa: E731
    assert all(used(name) for name in dir(Library) if name.startswith(("nvml", "NVML")))
    with open_gpu(0, []) as gpu:
        seen = gpu.begin(0)()
    assert {*seen, *gpu.not_observable} == set(QUANTITIES)
