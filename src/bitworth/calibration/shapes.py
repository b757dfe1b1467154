"""Shapes of values inside a model, on one input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bitworth.calibration.taps import Feed, measured_shapes


def value_shapes(
    model: ir.Model, values: Sequence[str], feed: Feed, *, threads: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of ``values`` and of the inputs, from a run in which nothing but shapes is kept.

    Args:
        model: the prepared graph.
        values: names of inputs or of what the main graph's nodes write; others are left out.
        feed: one input, by name.
        threads: for the run.

    Raises:
        RunError: onnxruntime cannot run the model on this input.
    """
    written = {v.name for node in model.graph for v in node.outputs}
    inside = [name for name in dict.fromkeys(values) if name in written]
    found = {name: tuple(np.shape(array)) for name, array in feed.items()}
    return found | measured_shapes(model, inside, feed, threads=threads)
