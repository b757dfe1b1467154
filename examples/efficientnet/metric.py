"""How often a classifier still says what the fp32 model says.

There are no labels: these are agreements with the fp32 model, right or wrong, and their names say
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRICS = {
    "top1_as_fp32": {"kind": "binary", "better": "higher"},
    "top1_as_fp32_degraded": {"kind": "binary", "better": "higher"},
    "top5_as_fp32": {"kind": "mean", "better": "higher"},
}

Score = dict[str, float]


def make_metric(
    metadata: Mapping[str, str],
) -> Callable[[Mapping[str, NDArray[Any]], Mapping[str, Any]], Score]:
    """The function that scores one image; the model's metadata says nothing that it needs.

    The function takes the model's outputs by name, one array [1, classes], and the target with
    `fp32_top5`, the fp32 model's five best classes, and `subset`. It returns `top1_as_fp32` (1.0
    when the best class is fp32's), the same as `top1_as_fp32_degraded` for a degraded image alone,
    and `top5_as_fp32`, the share of fp32's five that are among the five best. Raises ValueError
    when the outputs are not as above.
    """

    def score(outputs: Mapping[str, NDArray[Any]], target: Mapping[str, Any]) -> Score:
        best = np.argsort(-_only_image(outputs), kind="stable")[:5].tolist()
        theirs = target["fp32_top5"]
        same = float(best[0] == theirs[0])
        result = {
            "top1_as_fp32": same,
            "top5_as_fp32": len(set(best) & set(theirs)) / len(theirs),
        }
        if target["subset"] == "degraded":
            result["top1_as_fp32_degraded"] = same
        return result

    return score


def _only_image(outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if [(len(shape), shape[:1]) for shape in shapes.values()] != [(2, [1])]:
        raise ValueError(f"expected one output of shape [1, classes], got {shapes}")
    (batch,) = outputs.values()
    image: NDArray[np.float64] = batch[0].astype(np.float64)
    return image
