"""What the machine did during a session: steal time and the load of other processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter


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
    """CPU seconds so far."""

    wall_s: float
    busy_s: float | None
    steal_s: float | None
    ours_s: float | None


def read_cpu(pids: Sequence[int]) -> CpuReading:
    """CPU time of the machine, and of this process and ``pids``."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    except (OSError, ValueError):
        return CpuReading(perf_counter(), None, None, None)
    busy = user + nice + system + irq + softirq
    each = [_process_ticks(pid) for pid in (os.getpid(), *pids)]
    known = [t for t in each if t is not None]
    # The time of a process that has ended would be counted as that of others.
    ours = sum(known) / ticks if len(known) == len(each) else None
    return CpuReading(perf_counter(), busy / ticks, steal / ticks, ours)


def interference(before: CpuReading, after: CpuReading) -> Interference:
    """What happened between two readings of the same processes."""
    capacity = (after.wall_s - before.wall_s) * (os.cpu_count() or 1)
    if capacity <= 0:
        return Interference(None, None)
    steal = others = None
    if before.steal_s is not None and after.steal_s is not None:
        steal = _share((after.steal_s - before.steal_s) / capacity)
    if None not in (before.busy_s, after.busy_s, before.ours_s, after.ours_s):
        busy = (after.busy_s or 0.0) - (before.busy_s or 0.0)
        ours = (after.ours_s or 0.0) - (before.ours_s or 0.0)
        others = _share((busy - ours) / capacity)
    return Interference(steal, others)


def _share(value: float) -> float:
    return round(min(max(value, 0.0), 1.0), 4)


def _process_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces; utime and stime are fields 14 and 15.
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
