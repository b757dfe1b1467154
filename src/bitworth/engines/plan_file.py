"""A plan on disk: one file, and its weights beside it where one file cannot hold them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

DATA_SUFFIX = ".data"


def at_load_mark(path: Path) -> Path:
    """The file whose presence says that the plan at ``path`` is optimized when it is loaded."""
    return path.with_name(path.name + ".at-load")


def plan_files(path: Path) -> tuple[Path, ...]:
    """The plan's files that exist: ``path``, ``plan.onnx.data`` beside it, and its mark."""
    beside = (path.with_name("plan.onnx" + DATA_SUFFIX), at_load_mark(path))
    return (path, *(file for file in beside if file.exists()))


def plan_bytes(path: Path) -> int:
    """Bytes of all files of the plan."""
    return sum(f.stat().st_size for f in plan_files(path))


def plan_sha256(path: Path) -> str:
    """SHA-256 over the bytes of the plan's files, in order."""
    digest = hashlib.sha256()
    for file in plan_files(path):
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` under a temporary name first; a failure leaves nothing."""
    _through_part(path, lambda part: part.write_bytes(data))


def publish(source: Path, target: Path) -> None:
    """Copy a plan's files to ``target``'s folder, each under a temporary name first.

    The weights come before the file that names them, so that a plan that exists is whole.
    """
    at_load_mark(target).unlink(missing_ok=True)  # of a plan that had this name before
    names = {source: target, at_load_mark(source): at_load_mark(target)}
    for file in reversed(plan_files(source)):
        final = names.get(file, target.with_name(file.name))
        _through_part(final, partial(shutil.copyfile, file))


def _through_part(final: Path, write: Callable[[Path], object]) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(final.name + ".part")
    try:
        write(part)
        part.replace(final)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
