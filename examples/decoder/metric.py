"""Perplexity a byte, and whether the most likely byte is the right one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

METRICS = {
    "perplexity": {"kind": "perplexity", "better": "lower"},
    "next_byte": {"kind": "ratio", "better": "higher"},
}

Value = tuple[float, float]


def make_metric(metadata: Mapping[str, str]) -> Callable[..., Mapping[str, Value]]:
    """The metric; the model's metadata says nothing that it needs."""

    def score(outputs: Mapping[str, np.ndarray], target: list[int]) -> Mapping[str, Value]:
        logits = outputs["logits"][0].astype(np.float64)
        right = np.asarray(target)
        top = logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=-1)) + top[:, 0]
        nats = total - np.take_along_axis(logits, right[:, None], axis=-1)[:, 0]
        count = float(right.size)
        return {
            "perplexity": (float(nats.sum()), count),
            "next_byte": (float((logits.argmax(axis=-1) == right).sum()), count),
        }

    return score
