"""Keeps what took long, so that a run that is stopped goes on where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

T = TypeVar("T")


def key(*parts: object) -> str:
    """A name for what depends on ``parts``: bytes are taken as they are, others by their repr."""
    digest = hashlib.sha256()
    for part in parts:
        taken = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(taken).to_bytes(8, "little") + taken)
    return digest.hexdigest()[:32]


def array(folder: Path, name: str, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """The array kept under ``name``, or made now."""
    path = folder / f"{name}.npy"
    if path.exists():
        return np.asarray(np.load(path, allow_pickle=False), np.float32)
    made = make()
    part = path.with_suffix(".part.npy")
    np.save(part, made, allow_pickle=False)
    part.replace(path)
    return made


def value(folder: Path, name: str, kind: type[T], make: Callable[[], T]) -> T:
    """The value of type ``kind`` kept under ``name``, or made now."""
    adapter = TypeAdapter(kind)
    path = folder / f"{name}.json"
    if path.exists():
        return adapter.validate_json(path.read_bytes())
    made = make()
    part = path.with_suffix(".part")
    part.write_bytes(adapter.dump_json(made))
    part.replace(path)
    return made
