"""Passages of Python's help topics, as bytes; the decoder was trained on train.txt alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

TEXT = Path(__file__).parent / "text"
LENGTH = 256

Sample = tuple[dict[str, np.ndarray], list[int]]


def calibration(count: int, seed: int) -> Iterator[Sample]:
    """Passages at random places of the training text."""
    text = np.frombuffer((TEXT / "train.txt").read_bytes(), np.uint8)
    for start in np.random.default_rng(seed).integers(0, text.size - LENGTH - 1, count):
        yield _sample(text[start : start + LENGTH + 1])


def holdout(count: int, seed: int) -> Iterator[Sample]:
    """Passages of the held-out text, one behind the other without overlap."""
    text = np.frombuffer((TEXT / "heldout.txt").read_bytes(), np.uint8)
    passages = (text.size - 1) // LENGTH
    if count > passages:
        raise ValueError(f"the held-out text has {passages} passages; ask for no more")
    for i in range(count):
        yield _sample(text[i * LENGTH : (i + 1) * LENGTH + 1])


def _sample(text: np.ndarray) -> Sample:
    """All but the last byte as input, all but the first as target."""
    return {"ids": text[:-1].astype(np.int64)[None]}, text[1:].tolist()
