"""Smooth random images: the weights are random too, so the error is all that can be judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Sample = tuple[dict[str, NDArray[np.generic]], None]


def _images(count: int, seed: int, split: int) -> Iterator[Sample]:
    for index in range(count):
        rng = np.random.default_rng((seed, split, index))
        coarse = rng.standard_normal((1, 3, 8, 8))
        image = np.kron(coarse, np.ones((1, 1, 8, 8))) + 0.1 * rng.standard_normal((1, 3, 64, 64))
        yield {"image": image.astype(np.float32)}, None


def calibration(count: int, seed: int) -> Iterator[Sample]:
    """What the scales are taken from."""
    return _images(count, seed, 0)


def holdout(count: int, seed: int) -> Iterator[Sample]:
    """What is judged on."""
    return _images(count, seed, 1)
