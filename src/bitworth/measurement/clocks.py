"""What the machine did meanwhile: CPU time that went elsewhere, and clocks, by session and block.

Everything is read outside the timed region. What a machine does not show is said to be not
observable, with the reason; it is never taken as passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

from bitworth.measurement.nvml import open_gpu

Observed = Mapping[str, float | None]
#: CLOCK_PROCESS_CPUTIME_ID of another process is its complemented id and this.
_CPU_CLOCK = 2


class BlockClocks(Protocol):
    """Observes the machine around each block."""

    @property
    def not_observable(self) -> Mapping[str, str]:
        """Quantities that it never shows and why, as far as is known by now."""

    def begin(self, pid: int) -> Callable[[], Observed]:
        """Read before a block of process ``pid``; call the result right after the block.

        It returns what was observed by quantity, None where this block shows nothing.
        """


#: Opens the observer of a session: NVML's index of the GPU or None, and the workers' process ids.
OpenClocks = Callable[[int | None, Sequence[int]], AbstractContextManager[BlockClocks]]


@dataclass(frozen=True)
class Interference:
    """Shares of all CPU time of a session that went elsewhere; None where not observable.

    Attributes:
        steal_ratio: time that the hypervisor gave to other machines.
        others_ratio: time that processes other than the workers and the controller used.
    """

    steal_ratio: float | None
    others_ratio: float | None


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds so far; those of the whole machine in ticks of 10 ms."""

    wall_s: float
    busy_s: float | None
    steal_s: float | None
    ours_s: float | None


def read_cpu(pids: Sequence[int]) -> CpuReading:
    """CPU time of the machine, and of this process and ``pids``."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        # The first line is the sum over CPUs; there are as many more lines as there are CPUs.
        with Path("/proc/stat").open("rb", buffering=0) as file:
            fields = file.read(256).split(b"\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    except (OSError, ValueError):
        return CpuReading(perf_counter(), None, None, None)
    busy = user + nice + system + irq + softirq
    each = [_process_s(pid) for pid in {os.getpid(), *pids}]  # a shared process counts once
    known = [t for t in each if t is not None]
    # The time of a process that has ended would be counted as that of others.
    ours = sum(known) if len(known) == len(each) else None
    return CpuReading(perf_counter(), busy / ticks, steal / ticks, ours)


def interference(before: CpuReading, after: CpuReading) -> Interference:
    """What happened between two readings of the same processes."""
    steal, others = _shares(before, after)
    return Interference(_clipped(steal), _clipped(others))


def _shares(before: CpuReading, after: CpuReading) -> tuple[float | None, float | None]:
    """Shares of stolen time and of others' time, as read: the latter can come out negative."""
    capacity = (after.wall_s - before.wall_s) * (os.cpu_count() or 1)
    if capacity <= 0:
        return None, None
    steal = others = None
    if before.steal_s is not None and after.steal_s is not None:
        steal = round((after.steal_s - before.steal_s) / capacity, 4)
    if None not in (before.busy_s, after.busy_s, before.ours_s, after.ours_s):
        busy = (after.busy_s or 0.0) - (before.busy_s or 0.0)
        ours = (after.ours_s or 0.0) - (before.ours_s or 0.0)
        others = round((busy - ours) / capacity, 4)
    return steal, others


def _clipped(share: float | None) -> float | None:
    return None if share is None else min(max(share, 0.0), 1.0)


def _process_s(pid: int) -> float | None:
    """CPU time of a process, all threads: its clock counts ns, /proc/PID/stat ticks of 10 ms."""
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return None


class CpuClocks:
    """CPU time that went elsewhere during a block, and the CPU frequency at its end.

    ``steal_ratio`` and ``others_ratio`` are shares of the CPU time of the whole machine. The kernel
    counts that time in ticks of 10 ms, so a block of 40 ms on 2 CPUs has 8 of them, and its value
    is known to one or two: it is noise for one block, may be negative, and only the mean over many
    blocks says something. ``cpu_mhz`` is the mean over the CPUs that this process may use, read
    when the block has just ended, idle ones among them included: the kernel derives it from the
    last tick or so, and the worker is still running then.

    Args:
        root: where proc and sys are mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        files = [root / f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq" for n in cpus]
        self._files = [file for file in files if _number(file) is not None]
        self._info = root / "proc/cpuinfo"
        self._cpus = set(cpus)
        self._seen: set[float] = set()
        self._reasons: dict[str, str] = {}
        if read_cpu(()).busy_s is None:
            reason = "the system has no /proc/stat that says who used the CPUs"
            self._reasons = {"steal_ratio": reason, "others_ratio": reason}
        # Without the counters the kernel writes the frequency that it found at boot.
        if not self._files and "aperfmperf" not in _text(self._info):
            self._reasons["cpu_mhz"] = (
                "the system shows no cpufreq and no performance counters, as on most virtual "
                "machines: the frequency in /proc/cpuinfo is a constant"
            )

    @property
    def not_observable(self) -> Mapping[str, str]:
        """Quantities that this machine does not show, and why."""
        if not self._files and len(self._seen) == 1:
            return {"cpu_mhz": "the frequency in /proc/cpuinfo never changed", **self._reasons}
        return self._reasons

    def begin(self, pid: int) -> Callable[[], Observed]:
        """Read before a block of process ``pid``."""
        before = read_cpu((pid,))

        def end() -> Observed:
            mhz = None if "cpu_mhz" in self._reasons else self._mhz()
            steal, others = _shares(before, read_cpu((pid,)))
            return {"steal_ratio": steal, "others_ratio": others, "cpu_mhz": mhz}

        return end

    def _mhz(self) -> float | None:
        if self._files:
            found = [khz / 1000 for file in self._files if (khz := _number(file)) is not None]
        else:
            found = _cpuinfo_mhz(_text(self._info), self._cpus)
        if not found:
            return None
        mean = round(sum(found) / len(found), 1)
        self._seen.add(mean)
        return mean


class NoClocks:
    """Observes nothing."""

    not_observable: Mapping[str, str] = {}

    def begin(self, pid: int) -> Callable[[], Observed]:
        """Read nothing."""
        del pid
        return dict


class _Both:
    """Two observers as one; the second reads closest to the block."""

    def __init__(self, outer: BlockClocks, inner: BlockClocks) -> None:
        self._outer = outer
        self._inner = inner

    @property
    def not_observable(self) -> Mapping[str, str]:
        return {**self._outer.not_observable, **self._inner.not_observable}

    def begin(self, pid: int) -> Callable[[], Observed]:
        outer = self._outer.begin(pid)
        inner = self._inner.begin(pid)

        def end() -> Observed:
            nearest = inner()
            return {**outer(), **nearest}

        return end


@contextmanager
def machine_clocks(gpu: int | None, pids: Sequence[int]) -> Iterator[BlockClocks]:
    """Observe this machine's CPUs, and its NVIDIA GPU ``gpu`` where the target runs on one."""
    if gpu is None:
        yield CpuClocks()
    else:
        with open_gpu(gpu, pids) as device:
            yield _Both(CpuClocks(), device)


def as_columns(
    rows: Sequence[Sequence[Observed]], not_observable: Mapping[str, str]
) -> tuple[dict[str, tuple[tuple[float | None, ...], ...]], dict[str, str]]:
    """What was observed as columns ``[round][position]`` by quantity, and what was not and why.

    Args:
        rows: ``[round][position]``, empty where there was no block.
        not_observable: quantities that the observer never shows.
    """
    names = dict.fromkeys(name for row in rows for block in row for name in block)
    columns = {
        name: tuple(tuple(block.get(name) for block in row) for row in rows)
        for name in names
        if name not in not_observable
    }
    reasons = dict(not_observable)
    for name, column in list(columns.items()):
        if all(value is None for row in column for value in row):
            del columns[name]
            reasons[name] = "no block of the session showed it"
    return columns, reasons


def _cpuinfo_mhz(text: str, cpus: set[int]) -> list[float]:
    found = []
    for part in text.split("\n\n"):
        fields = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in part.splitlines())
        }
        try:
            if int(fields["processor"]) in cpus:
                found.append(float(fields["cpu MHz"]))
        except (KeyError, ValueError):
            continue
    return found


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or of a CPU that is offline
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
