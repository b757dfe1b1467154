"""How often the nearest neighbour of a sentence is still the one that the fp32 model finds.

There are no labels: these are agreements with the fp32 model, right or wrong, and their names say
so. The mean cosine between embeddings would hide what they show: it stays above 0.99 while one
neighbour in ten changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRICS = {
    "nearest_as_fp32": {"kind": "ratio", "better": "higher"},
    "nearest_as_fp32_degraded": {"kind": "ratio", "better": "higher"},
}

Score = dict[str, tuple[float, float]]


def make_metric(
    metadata: Mapping[str, str],
) -> Callable[[Mapping[str, NDArray[Any]], Mapping[str, Any]], Score]:
    """The function that scores one group; the model's metadata says nothing that it needs.

    The function takes the model's outputs by name, one array [sentences, size] of embeddings of
    length one, and the target with `fp32_nearest`, for each sentence the place in the group of its
    nearest neighbour, and `subset`. It returns `nearest_as_fp32` as (sentences whose nearest
    neighbour is the same, sentences), and the same as `nearest_as_fp32_degraded` for a degraded
    group alone. Raises ValueError when the outputs are not as above.
    """

    def score(outputs: Mapping[str, NDArray[Any]], target: Mapping[str, Any]) -> Score:
        expected = np.asarray(target["fp32_nearest"])
        found = nearest(_only_group(outputs, len(expected)))
        same = (float(np.count_nonzero(found == expected)), float(len(expected)))
        result: Score = {"nearest_as_fp32": same}
        if target["subset"] == "degraded":
            result["nearest_as_fp32_degraded"] = same
        return result

    return score


def nearest(embeddings: NDArray[Any]) -> NDArray[np.intp]:
    """For each of the embeddings [n, size], of length one, the place of the nearest other."""
    exact = embeddings.astype(np.float64)
    alike = exact @ exact.T
    np.fill_diagonal(alike, -np.inf)
    places: NDArray[np.intp] = alike.argmax(axis=1)
    return places


def _only_group(outputs: Mapping[str, NDArray[Any]], sentences: int) -> NDArray[Any]:
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if [(len(shape), shape[:1]) for shape in shapes.values()] != [(2, [sentences])]:
        raise ValueError(f"expected one output of shape [{sentences}, size], got {shapes}")
    (group,) = outputs.values()
    return group
