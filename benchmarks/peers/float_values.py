"""Reads every float value inside a model, one sample at a time, with plain onnxruntime.

Nothing of Bitworth is used here: what calibration observed is checked against it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]

#: Random directions on which a value is projected: two values with equal projections are one. Each
#: is one vector of this length, again and again: a prime, so that no axis of a tensor repeats it.
_DIRECTIONS = 4
_PERIOD = 65521
#: Relative distance below which two values count as the same: folding reorders sums.
SAME = 1e-3

Fingerprint = tuple[tuple[int, ...], NDArray[np.float64], float]


def session(model: Path | onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session on the CPU without optimizations: what the graph says is what is computed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def rows(arrays: Arrays) -> Iterator[dict[str, NDArray[np.generic]]]:
    """The samples of arrays that hold one a row."""
    for index in range(len(next(iter(arrays.values())))):
        yield {name: array[index : index + 1] for name, array in arrays.items()}


class Reader:
    """All float values of a model, or the named ones; its float inputs among them."""

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        model = onnx.load(path)
        inside = [o for node in model.graph.node for o in node.output if o]
        given = {value.name for value in model.graph.input}
        self._inputs = [n for n in given if names is None or n in names]
        wanted = [n for n in inside if names is None or n in names]
        present = {value.name for value in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in wanted if name not in present
        )
        self._session = session(model)
        self._names = [o.name for o in self._session.get_outputs() if o.name in set(wanted)]

    def read(self, sample: Arrays) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Each value with its name; of other types than float32, none."""
        for name in self._inputs:
            if sample[name].dtype == np.float32:
                yield name, np.asarray(sample[name], np.float32)
        # An empty list of names would stand for all outputs.
        found = self._session.run(self._names, dict(sample)) if self._names else []
        for name, array in zip(self._names, found, strict=True):
            if isinstance(array, np.ndarray) and array.dtype == np.float32:
                yield name, array


def fingerprints(path: Path, sample: Arrays) -> dict[str, Fingerprint]:
    """Shape, projections and length of every float value on one sample."""
    return {name: _fingerprint(array) for name, array in Reader(path).read(sample)}


def same_values(
    given: Mapping[str, Fingerprint], prepared: Mapping[str, Fingerprint]
) -> dict[str, str]:
    """For each value of one graph, the value of the other that holds the same numbers, if any.

    The one of the same name goes first; else the nearest of those that are close enough.
    """
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, (shape, _, _) in prepared.items():
        by_shape.setdefault(shape, []).append(name)
    found: dict[str, str] = {}
    for name, mine in given.items():
        if name in prepared and distance(mine, prepared[name]) < SAME:
            found[name] = name
            continue
        candidates = by_shape.get(mine[0], [])
        near = min(candidates, key=lambda n: distance(mine, prepared[n]), default=None)
        if near is not None and distance(mine, prepared[near]) < SAME:
            found[name] = near
    return found


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """Estimated relative distance of two values; infinite for two shapes."""
    if one[0] != other[0]:
        return float("inf")
    length = max(one[2], other[2])
    apart = float(np.linalg.norm(one[1] - other[1])) / _DIRECTIONS**0.5
    return apart / length if length > 0 else 0.0


def _fingerprint(array: NDArray[np.float32]) -> Fingerprint:
    flat = array.astype(np.float64).ravel()
    folded = np.zeros(_PERIOD)
    for start in range(0, flat.size, _PERIOD):
        part = flat[start : start + _PERIOD]
        # The sign of each period is its own, or equal parts would cancel.
        folded[: part.size] += part * (1 - 2 * (start // _PERIOD % 3 % 2))
    return array.shape, _directions() @ folded, float(np.linalg.norm(flat))


@cache
def _directions() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(_DIRECTIONS, _PERIOD))


def extremes(path: Path, samples: Arrays, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Smallest and largest of each named value over all samples."""
    reader = Reader(path, set(names))
    found: dict[str, tuple[float, float]] = {}
    for sample in rows(samples):
        for name, array in reader.read(sample):
            low, high = float(array.min()), float(array.max())
            before = found.get(name, (low, high))
            found[name] = min(low, before[0]), max(high, before[1])
    return found
