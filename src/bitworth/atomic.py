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
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        part = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)  # mkstemp makes private files; a record is shared
        part.replace(path)
    except BaseException as error:
        if part is not None:
            part.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "free some space or choose another folder with --output"
        ) from error
