"""Calibration samples in a file, read one at a time: no side holds more than it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Sample = dict[str, NDArray[np.float32]]


def write_samples(samples: Iterable[Sample], path: Path) -> tuple[str, tuple[int, ...]]:
    """Write samples of one input, all of one shape; returns its name and the shape.

    Raises:
        ValueError: there is no sample.
    """
    name, shape = "", ()
    with path.open("wb") as file:
        for sample in samples:
            ((name, array),) = sample.items()
            shape = array.shape
            file.write(np.ascontiguousarray(array, np.float32).data)
    if not name:
        raise ValueError("no samples to write")
    return name, shape


def read_samples(path: Path, name: str, shape: tuple[int, ...], count: int) -> Iterator[Sample]:
    """Yield the first ``count`` samples.

    Raises:
        ValueError: the file holds fewer.
    """
    size = int(np.prod(shape))
    with path.open("rb") as file:
        for _ in range(count):
            array = np.fromfile(file, np.float32, size)
            yield {name: array.reshape(shape)}
