"""Clocks, power and throttling of an NVIDIA GPU, through NVML, around each block."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

#: In the order in which they are read at the end of a block: the SM clock falls first.
QUANTITIES = (
    "sm_mhz",
    "memory_mhz",
    "throttle_bits",
    "power_w",
    "power_cap_w",
    "temperature_c",
    "other_processes",
)
_HIDDEN = (
    "NVML does not list this session's own processes (it numbers those of another process "
    "namespace), so nobody can tell which ones are others"
)


class NoGpu:
    """A GPU of which nothing can be read; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        self.not_observable: Mapping[str, str] = dict.fromkeys(QUANTITIES, reason)

    def begin(self, pid: int) -> Callable[[], Mapping[str, float | None]]:
        """Read nothing."""
        del pid
        return dict


class GpuClocks:
    """What NVML shows of one GPU.

    Values are those at the end of a block, read as soon as the controller has its answer. NVML
    renews them about every 100 ms: on an H200 the SM clock of a busy GPU (1395 MHz) still stood 50
    ms after its work had ended, and the idle one's (1935) was there after 100 ms. So they are the
    busy clock, without reading in the middle of a block; but a block shorter than that shows in
    part what the one before it did, and only labels over many blocks can be compared.
    ``throttle_bits`` are NVML's clocks event reasons before and after the block, joined;
    ``power_w`` is NVML's own mean over about a second; ``other_processes`` counts compute
    processes that are not the session's.

    Args:
        library: ``pynvml``, initialized.
        device: its handle.
        pids: process ids of the session's workers.
    """

    def __init__(self, library: Any, device: Any, pids: Sequence[int]) -> None:
        self._library = library
        self._device = device
        self._pids = set(pids)
        self._reads: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: library.nvmlDeviceGetClockInfo(device, library.NVML_CLOCK_SM),
            "memory_mhz": lambda: library.nvmlDeviceGetClockInfo(device, library.NVML_CLOCK_MEM),
            # The older of its two names, which every driver knows.
            "throttle_bits": lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(device),
            "power_w": lambda: library.nvmlDeviceGetPowerUsage(device) / 1000,
            "power_cap_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
            "temperature_c": lambda: library.nvmlDeviceGetTemperature(
                device, library.NVML_TEMPERATURE_GPU
            ),
        }
        self._reasons: dict[str, str] = {}
        for name, read in list(self._reads.items()):
            try:
                read()
            except library.NVMLError as error:
                del self._reads[name]
                self._reasons[name] = f"NVML: {error}"
        try:
            library.nvmlDeviceGetComputeRunningProcesses(device)
        except library.NVMLError as error:
            self._reasons["other_processes"] = f"NVML: {error}"

    @property
    def not_observable(self) -> Mapping[str, str]:
        """Quantities that this GPU does not show, and why."""
        return self._reasons

    def begin(self, pid: int) -> Callable[[], Mapping[str, float | None]]:
        """Read before a block of process ``pid``."""
        before = self._read("throttle_bits")

        def end() -> Mapping[str, float | None]:
            seen: dict[str, float | None] = {name: self._read(name) for name in self._reads}
            after = seen.get("throttle_bits")
            if before is not None and after is not None:
                seen["throttle_bits"] = int(before) | int(after)
            if "other_processes" not in self._reasons:
                seen["other_processes"] = self._others(pid)
            return seen

        return end

    def _read(self, name: str) -> float | None:
        read = self._reads.get(name)
        if read is None:
            return None
        try:
            return read()
        except self._library.NVMLError:
            return None

    def _others(self, pid: int) -> int | None:
        try:
            found = self._library.nvmlDeviceGetComputeRunningProcesses(self._device)
        except self._library.NVMLError:
            return None
        listed = {process.pid for process in found}
        if pid not in listed:
            self._reasons["other_processes"] = _HIDDEN
            return None
        return len(listed - self._pids)


@contextmanager
def open_gpu(index: int, pids: Sequence[int], library: Any = None) -> Iterator[GpuClocks | NoGpu]:
    """Observe GPU ``index``; where NVML does not answer, an observer that says why.

    Args:
        index: as NVML counts; CUDA_VISIBLE_DEVICES does not renumber it.
        pids: process ids of the session's workers.
        library: ``pynvml``; imported by default.
    """
    try:
        library = library or importlib.import_module("pynvml")
    except ImportError:
        yield NoGpu("pynvml is not installed: pip install nvidia-ml-py")
        return
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        yield NoGpu(f"NVML: {error}")
        return
    try:
        try:
            device = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            yield NoGpu(f"NVML, GPU {index}: {error}")
            return
        yield GpuClocks(library, device, pids)
    finally:
        with suppress(library.NVMLError):
            library.nvmlShutdown()


def gpu_name(index: int = 0) -> str:
    """The name of a GPU; empty where NVML finds none."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception:  # not installed, or no driver: there is no GPU to name
        return ""
    try:
        name = library.nvmlDeviceGetName(library.nvmlDeviceGetHandleByIndex(index))
        return name.decode() if isinstance(name, bytes) else str(name)
    except library.NVMLError:
        return ""
    finally:
        with suppress(library.NVMLError):
            library.nvmlShutdown()
