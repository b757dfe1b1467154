"""Samples at 512 x 512, batch 1."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Samples = Iterator[tuple[dict[str, Any], None]]
samples: Callable[..., Samples] = runpy.run_path(str(Path(__file__).with_name("samples.py")))[
    "samples"
]


def calibration(count: int, seed: int) -> Samples:
    """What the scales are taken from."""
    return samples(count, seed, split=0, latent=64, batch=1)


def holdout(count: int, seed: int) -> Samples:
    """What is judged on."""
    return samples(count, seed, split=1, latent=64, batch=1)
