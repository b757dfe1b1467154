"""One timing run at a time on a device, across processes."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitworth.errors import UserError


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Hold the lock of ``device`` while timing.

    Raises:
        UserError: another process holds it.
    """
    what = f"{device}: another timing run is on this device and the two would disturb each other"
    with hold(lock_path(device), what):
        yield


def lock_path(device: str) -> Path:
    """The lock file of a device: one for all users of the machine."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", device).strip("-")
    return Path(tempfile.gettempdir()) / f"bitworth-{name}.lock"


def _open(path: Path) -> int:
    # A link that someone laid in a shared folder would have its target emptied.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # Without O_CREAT: in a sticky folder Linux refuses it for another user's file
        # (fs.protected_regular).
        return os.open(path, flags)
    except FileNotFoundError:
        handle = os.open(path, flags | os.O_CREAT, 0o666)
    with suppress(PermissionError):  # another user's, made a moment ago
        os.fchmod(handle, 0o666)  # the umask would shut every other user out
    return handle


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel drops it when the holder dies.

    Args:
        path: the file, created if need be; it stays.
        what: what is wrong when another process holds it.

    Raises:
        UserError: another process holds it, or it cannot be created.
    """
    try:
        handle = _open(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be opened ({error.strerror}); make it writable or remove it"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise UserError(f"{what} (process {holder}); wait for it to end") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
