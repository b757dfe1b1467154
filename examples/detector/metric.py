"""How much of the drawn text a detector finds: lines missed, boxes without a line.

Boxes are read from the network's map as PP-OCR does it, but upright: as the pages' lines are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

METRICS = {
    "missed_lines": {"kind": "ratio", "better": "lower"},
    "missed_lines_degraded": {"kind": "ratio", "better": "lower"},
    "false_boxes": {"kind": "ratio", "better": "lower"},
    "line_iou": {"kind": "ratio", "better": "higher"},
}

#: A pixel is text above this, and a box counts where its pixels' mean is above the second.
PIXEL, BOX = 0.3, 0.5
#: The network learns shrunk boxes; what it finds is grown by area GROW / perimeter on each side
#: (Liao et al. 2020, arxiv.org/abs/1911.08947; the number is PP-OCR's).
GROW = 1.6
#: A line is found where a box and its own have at least this intersection over union.
MATCH = 0.5
#: Boxes narrower than this, in pixels, are dropped.
LEAST = 3

Score = dict[str, float | tuple[float, float]]
Box = tuple[float, float, float, float]


def make_metric(
    metadata: Mapping[str, str],
) -> Callable[[Mapping[str, NDArray[Any]], Mapping[str, Any]], Score]:
    """The function that scores one page; the model's metadata says nothing that it needs.

    The function takes the model's outputs by name, one array [1, 1, H, W] of probabilities, and
    the target with `boxes`, (top, left, bottom, right) of each line in pixels, and `subset`. It
    returns `missed_lines` as (lines without a box, lines), the same as `missed_lines_degraded` for
    a degraded page alone, `false_boxes` as (boxes without a line, lines), and `line_iou` as (the
    sum over lines of the best intersection over union that a box has with it, lines). Raises
    ValueError when the outputs are not as above.
    """

    def score(outputs: Mapping[str, NDArray[Any]], target: Mapping[str, Any]) -> Score:
        found = _only_map(outputs)
        lines = [(float(a), float(b), float(c), float(d)) for a, b, c, d in target["boxes"]]
        shares = intersection_over_union(boxes(found), lines)
        best = shares.max(axis=0, initial=0.0)
        missed, count = float(np.count_nonzero(best < MATCH)), float(len(lines))
        astray = float(np.count_nonzero(shares.max(axis=1, initial=0.0) < MATCH))
        result: Score = {
            "missed_lines": (missed, count),
            "false_boxes": (astray, count),
            "line_iou": (float(best.sum()), count),
        }
        if target["subset"] == "degraded":
            result["missed_lines_degraded"] = (missed, count)
        return result

    return score


def boxes(found: NDArray[Any]) -> list[Box]:
    """The boxes in a map [H, W] of probabilities, grown to the size of the text."""
    labels, _ = ndimage.label(found > PIXEL, np.ones((3, 3)))
    kept = []
    for index, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        box = (rows.start, columns.start, rows.stop, columns.stop)
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        inside = labels[rows, columns] == index
        if min(high, wide) >= LEAST and found[rows, columns][inside].mean() >= BOX:
            kept.append(grown(box, GROW * high * wide / (2 * (high + wide))))
    return kept


def grown(box: Sequence[float], distance: float) -> Box:
    """The box with every side moved out by `distance` pixels, or in where it is negative."""
    top, left, bottom, right = box
    return top - distance, left - distance, bottom + distance, right + distance


def intersection_over_union(ours: Sequence[Box], theirs: Sequence[Box]) -> NDArray[np.float64]:
    """[len(ours), len(theirs)], 0 to 1."""
    a = np.reshape(np.array(ours, np.float64), (-1, 1, 4))
    b = np.reshape(np.array(theirs, np.float64), (1, -1, 4))
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = sides.clip(0).prod(axis=-1)
    areas = (a[..., 2:] - a[..., :2]).prod(axis=-1) + (b[..., 2:] - b[..., :2]).prod(axis=-1)
    shares: NDArray[np.float64] = common / (areas - common)
    return shares


def _only_map(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if [(len(shape), shape[:2]) for shape in shapes.values()] != [(4, [1, 1])]:
        raise ValueError(f"expected one output of shape [1, 1, height, width], got {shapes}")
    (batch,) = outputs.values()
    found: NDArray[Any] = batch[0, 0]
    return found
