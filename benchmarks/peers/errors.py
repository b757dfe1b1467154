"""How far a quantized model's outputs are from the float model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.peers.float_values import Arrays, rows, session
from benchmarks.peers.results import Error
from bitworth.lowering.scaling import TensorScale

Outputs = NDArray[np.float32]

#: What ``Error.agreement`` counts, by model.
DECISIONS = {
    "detector": "text pixels (probability over 0.3): intersection over union",
    "recogniser": "lines whose greedy reading is the same",
    "efficientnet": "photographs with the same top-1 class",
    "minilm": "sentences with the same nearest neighbour among the held-out ones",
}


def outputs(model: Path | onnx.ModelProto, samples: Arrays) -> Outputs:
    """The first output for every sample, on the CPU without optimizations, samples first."""
    running = session(model)
    return np.concatenate([running.run(None, sample)[0] for sample in rows(samples)])


def error(name: str, found: Outputs, reference: Outputs) -> Error:
    """The error of one model's outputs against the float model's."""
    difference = found.astype(np.float64) - reference.astype(np.float64)
    length = float(np.linalg.norm(reference.astype(np.float64)))
    return Error(
        relative_l2=float(np.linalg.norm(difference)) / length,
        agreement=_AGREEMENTS[name](found, reference),
    )


def exchanged(model: onnx.ModelProto, scales: Mapping[str, TensorScale]) -> onnx.ModelProto:
    """A copy of a peer's model in which the named activations have the given scales.

    Args:
        model: with QuantizeLinear and DequantizeLinear nodes.
        scales: by name of the value that is quantized.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in copy.graph.node:
        readers.setdefault(node.input[0] if node.input else "", []).append(node)
    for name, scale in scales.items():
        for node in readers.get(name, []):
            if node.op_type != "QuantizeLinear":
                continue
            # Named after the node: one value may be quantized by several.
            step = numpy_helper.from_array(np.asarray(scale.scale, np.float32), f"{node.name}/step")
            zero = onnx.TensorProto()
            zero.CopyFrom(constants[node.input[2]])
            zero.name = f"{node.name}/zero"
            if zero.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8):
                kind = numpy_helper.to_array(zero).dtype
                zero = numpy_helper.from_array(np.array(scale.zero_point, kind), zero.name)
            copy.graph.initializer.extend([step, zero])
            after = [n for n in readers.get(node.output[0], []) if n.op_type == "DequantizeLinear"]
            for changed in (node, *after):
                changed.input[1], changed.input[2] = step.name, zero.name
    return copy


def _same_text(found: Outputs, reference: Outputs) -> float:
    return float(np.mean([_read(a) == _read(b) for a, b in zip(found, reference, strict=True)]))


def _read(steps: Outputs) -> list[int]:
    best = steps.argmax(axis=-1)
    kept = np.concatenate([[True], best[1:] != best[:-1]]) & (best != 0)
    return [int(b) for b in best[kept]]


def _same_class(found: Outputs, reference: Outputs) -> float:
    return float(np.mean(found.argmax(axis=1) == reference.argmax(axis=1)))


def _same_neighbour(found: Outputs, reference: Outputs) -> float:
    return float(np.mean(_neighbours(found) == _neighbours(reference)))


def _neighbours(sentences: Outputs) -> NDArray[np.intp]:
    long = sentences / np.linalg.norm(sentences, axis=1, keepdims=True)
    cosines = long @ long.T
    np.fill_diagonal(cosines, -2.0)
    return np.asarray(cosines.argmax(axis=1))


def _same_pixels(found: Outputs, reference: Outputs) -> float:
    one, other = found > 0.3, reference > 0.3
    either = int(np.count_nonzero(one | other))
    return int(np.count_nonzero(one & other)) / either if either else 1.0


_AGREEMENTS: Mapping[str, Callable[[Outputs, Outputs], float]] = {
    "detector": _same_pixels,
    "recogniser": _same_text,
    "efficientnet": _same_class,
    "minilm": _same_neighbour,
}
