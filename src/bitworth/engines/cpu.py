"""Facts about the CPU that decide which formats compute natively."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

#: Instruction sets that matter to 8- and 16-bit inference, by the kernel's flag names.
ISA_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")

_CPU = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(usable_cpus())


def usable_cpus() -> tuple[int, ...]:
    """Numbers of the logical CPUs that this process may use, as the system counts them."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Physical cores behind the usable logical CPUs; as many as those where it is not told."""
    cpus = usable_cpus()
    try:
        return len({(_CPU / f"cpu{n}/topology/thread_siblings_list").read_text() for n in cpus})
    except OSError:
        return len(cpus)


@cache
def cpu_model() -> str:
    """The CPU's name as the system tells it."""
    for line in _cpuinfo().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def isa() -> tuple[str, ...]:
    """The instruction sets of ``ISA_FLAGS`` that this CPU has."""
    for line in _cpuinfo().splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            return tuple(f for f in ISA_FLAGS if f in flags)
    return ()


def has_int8_dot() -> bool:
    """Whether 8-bit products are summed in 32 bits by one instruction.

    Without it (AVX2, AVX-512 before VNNI) the u8 x s8 product goes through ``vpmaddubsw``, whose
    16-bit sums saturate (Intel SDM, PMADDUBSW).
    """
    return any(f in isa() for f in ("avx_vnni", "avx512_vnni", "amx_int8"))


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
