"""Random latents, captions and time steps: weights are random too, so only times mean something."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Sample = tuple[dict[str, NDArray[np.generic]], None]
#: Tokens of a caption, and how many of them are its words.
TOKENS, WORDS = 300, 120


def samples(count: int, seed: int, split: int, latent: int, batch: int) -> Iterator[Sample]:
    """``count`` samples of one split, for latents of this size."""
    for index in range(count):
        rng = np.random.default_rng((seed, split, index))
        mask = np.zeros((batch, TOKENS), np.float32)
        mask[:, :WORDS] = 1
        yield (
            {
                "hidden_states": _normal(rng, (batch, 4, latent, latent)),
                "encoder_hidden_states": _normal(rng, (batch, TOKENS, 4096)),
                "timestep": np.full(batch, int(rng.integers(1, 1000)), np.int64),
                "encoder_attention_mask": mask,
            },
            None,
        )


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.generic]:
    return rng.standard_normal(shape).astype(np.float32)
