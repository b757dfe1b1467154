"""Arrays of many samples on disk: written once, streaming, and read by every variant."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 and the FP8 types with numpy
import numpy as np
from numpy.typing import NDArray

from bitworth.errors import UserError

_DATA = "arrays.bin"
_INDEX = "index.json"


class ArrayStore:
    """Arrays of sample i by name; shapes may differ from sample to sample."""

    def __init__(self, folder: Path) -> None:
        self._index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        path = folder / _DATA
        self._bytes: NDArray[np.uint8] = (
            np.memmap(path, dtype=np.uint8, mode="r")
            if path.stat().st_size
            else np.empty(0, np.uint8)
        )

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, sample: int) -> dict[str, NDArray[np.generic]]:
        return {
            name: self._bytes[start : start + size].view(np.dtype(dtype)).reshape(shape)
            for name, (dtype, shape, start, size) in self._index[sample].items()
        }


def is_stored(folder: Path) -> bool:
    """Whether a complete store lies in ``folder``."""
    return (folder / _INDEX).exists()


def store_arrays(
    samples: Iterable[Mapping[str, NDArray[np.generic]]],
    count: int,
    folder: Path,
    progress: Callable[[int], None],
) -> ArrayStore:
    """Write ``count`` samples to ``folder``, one in memory at a time.

    Raises:
        UserError: the disk has no room for them; nothing half-written is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, tuple[str, list[int], int, int]]] = []
    part, index_part = folder / (_DATA + ".part"), folder / (_INDEX + ".part")
    try:
        with part.open("wb") as stream:
            for done, arrays in enumerate(samples, start=1):
                entry = {}
                for name, value in arrays.items():
                    data = np.asarray(value, order="C")
                    start = stream.tell()
                    # Offsets stay multiples of 64, so that every view is aligned.
                    stream.write(data.tobytes() + b"\0" * (-data.nbytes % 64))
                    entry[name] = (str(data.dtype), list(data.shape), start, data.nbytes)
                index.append(entry)
                if done == 1:
                    _check_room(folder, stream.tell() * count)
                progress(done)
        part.replace(folder / _DATA)
        index_part.write_text(json.dumps(index), encoding="utf-8")
        index_part.replace(folder / _INDEX)
    except OSError as error:
        _remove(part, index_part, folder / _DATA)
        raise UserError(
            f"{folder}: {count} samples cannot be written ({error.strerror or error}); "
            "free some space or choose another folder with --output"
        ) from error
    except BaseException:
        _remove(part, index_part, folder / _DATA)
        raise
    return ArrayStore(folder)


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; "
            "use fewer held-out samples or choose another folder with --output"
        )
