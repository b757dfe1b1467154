"""One timing run at a time on a device, across processes."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitworth.errors import UserError

#: Tests lay their locks elsewhere: they must not wait for real measurements, nor stop them.
TEST_FOLDER = "BITWORTH_LOCK_FOLDER_OF_TESTS"
#: Places that all users of a machine share. The first is made for locks, where it is open to all
#: (Debian and its kin). Not TMPDIR, which may be each user's own; not /dev/shm, from which systemd
#: removes a user's files when they log out, though their study may go on.
_SHARED = (Path("/run/lock"), Path("/tmp"))


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
    """The lock file of a device: one for all users of the machine, whatever their TMPDIR.

    Containers have folders of their own: between two of them there is no lock.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", device).strip("-")
    return _folder() / f"bitworth-{name}.lock"


def _folder() -> Path:
    if of_tests := os.environ.get(TEST_FOLDER):
        return Path(of_tests)
    for folder in _SHARED:
        # A property of the machine and not of the user, so that all come to the same folder.
        if _is_shared(folder):
            return folder
    return Path(tempfile.gettempdir())


def _is_shared(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH) and not read_only


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


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel drops it when the holder dies.

    Args:
        path: the file, created if need be; it stays.
        what: what is wrong when another process holds it.

    Raises:
        UserError: another process holds it, or it cannot be created.
    """
    handle = _locked(path, what)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(path: Path, what: str) -> int:
    while True:
        try:
            handle = _open(path)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be opened ({error.strerror}); make it writable or remove it"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise UserError(f"{what} (process {holder}); wait for it to end") from None
        # Removed between the two calls: whoever comes next would lock another file.
        if _is_at(handle, path):
            return handle
        os.close(handle)
