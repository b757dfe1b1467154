"""Line accuracy and character error rate of a CTC text recogniser.

The characters come from the model's own metadata, so that a model with another alphabet, or a
file exported anew, is judged by the same lines of code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Score = dict[str, float | tuple[float, float]]

METRICS = {
    "line_accuracy": {"kind": "binary", "better": "higher"},
    "line_accuracy_degraded": {"kind": "binary", "better": "higher"},
    "cer": {"kind": "ratio", "better": "lower"},
}

BLANK = 0


def make_metric(
    metadata: Mapping[str, str],
) -> Callable[[Mapping[str, NDArray[Any]], Mapping[str, str]], Score]:
    """The function that scores one line.

    `metadata` are the ONNX file's metadata properties; `character` holds one character a line.
    The function takes the model's outputs by name, one array [1, T, classes] of probabilities, and
    the target with `text` and `subset`. It returns `line_accuracy` (1.0 when the whole line is
    right), the same as `line_accuracy_degraded` for a degraded line alone, and `cer` as (edit
    distance, characters of the truth). Raises ValueError without the key `character`; the function
    raises it when the outputs are not as above or their classes do not match the characters.
    """
    if "character" not in metadata:
        known = ", ".join(sorted(metadata)) or "none"
        raise ValueError(f"the model's metadata has no key 'character' (keys found: {known})")
    listed = metadata["character"].removesuffix("\n").split("\n")
    alphabet = ["", *listed, " "]

    def score(outputs: Mapping[str, NDArray[Any]], target: Mapping[str, str]) -> Score:
        probabilities = _only_line(outputs)
        _check_classes(probabilities.shape[-1], len(listed))
        text = decode(probabilities, alphabet)
        truth = target["text"]
        right = float(text == truth)
        result: Score = {
            "line_accuracy": right,
            "cer": (float(edit_distance(text, truth)), float(len(truth))),
        }
        if target["subset"] == "degraded":
            result["line_accuracy_degraded"] = right
        return result

    return score


def decode(probabilities: NDArray[Any], alphabet: Sequence[str]) -> str:
    """The text of the most probable class at each step, repeats merged, then blanks dropped.

    `probabilities` [T, classes]; `alphabet` has one entry a class, the blank first.
    """
    best = probabilities.argmax(axis=-1)
    starts = np.ones(best.shape, dtype=bool)
    starts[1:] = best[1:] != best[:-1]
    return "".join(alphabet[index] for index in best[starts & (best != BLANK)])


def edit_distance(a: str, b: str) -> int:
    """The fewest characters to insert, delete or replace that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, from_a in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, from_b in enumerate(b, start=1):
            replaced = diagonal + (from_a != from_b)
            diagonal, row[j] = row[j], min(replaced, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _only_line(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if [(len(shape), shape[:1]) for shape in shapes.values()] != [(3, [1])]:
        raise ValueError(f"expected one output of shape [1, steps, classes], got {shapes}")
    (batch,) = outputs.values()
    line: NDArray[Any] = batch[0]
    return line


def _check_classes(classes: int, listed: int) -> None:
    # A CTC head has one class for the blank and, where it reads spaces, a last one for the space,
    # which the list leaves out. Without that class the alphabet's last entry is never reached.
    if classes not in (listed + 1, listed + 2):
        raise ValueError(
            f"the model has {classes} classes, but its metadata lists {listed} characters; "
            f"expected {listed + 1} classes (blank first) or {listed + 2} (and a space)"
        )
