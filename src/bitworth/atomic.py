"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bitworth.errors import UserError


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` through a temporary name in the same folder.

    Raises:
        UserError: the disk is full or the folder cannot be written; ``path`` is untouched.
    """
    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)  # mkstemp makes private files; a record is shared
        os.replace(part, path)
    except OSError as error:
        if part is not None and os.path.exists(part):
            os.unlink(part)
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "free some space or choose another folder with --output"
        ) from error
