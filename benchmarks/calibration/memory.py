"""How much memory a process holds, and has held at most: Linux tells it by process."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(process: int | None = None) -> int:
    """Resident memory now: allocated, and pages of mapped files.

    Raises:
        OSError: the process is gone, or the system has no /proc.
    """
    return _field("VmRSS", process)


def peak_bytes() -> int:
    """The most that was resident in this process since it began or `forget_peak` was called.

    Not ``ru_maxrss``, which a process inherits from the one that started it.
    """
    return _field("VmHWM", None)


def forget_peak() -> None:
    """Let the peak begin anew, at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _field(name: str, process: int | None) -> int:
    status = Path(f"/proc/{process or os.getpid()}/status").read_text()
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(f"process {process}: has ended")
