"""What one call of a cell is timed on: a held-out sample, or a batch of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore
from bitworth.measurement.batch import batched
from bitworth.study.sections import CellConfig
from bitworth.subject.onnx_model import InputSpec


def batch_samples(inputs: ArrayStore, batch: int | None) -> tuple[int, ...]:
    """Indices of the first ``batch`` held-out samples that have the first one's shapes.

    Fewer when there are not so many; the first sample alone without a batch.
    """
    if batch is None:
        return (0,)
    found: list[int] = []
    shapes = _shapes(inputs[0])
    for index in range(len(inputs)):
        if len(found) < batch and _shapes(inputs[index]) == shapes:
            found.append(index)
    return tuple(found)


def timed_input(inputs: ArrayStore, batch: int | None) -> dict[str, NDArray[np.generic]]:
    """What every timed call runs on: real samples, joined along axis 0 where there is a batch."""
    return (
        inputs[0] if batch is None else batched([inputs[i] for i in batch_samples(inputs, batch)])
    )


def check_batches(
    cells: Sequence[CellConfig], inputs: ArrayStore, specs: Sequence[InputSpec]
) -> None:
    """Check that every cell's batch can be made of the data, and that the model takes it.

    Raises:
        UserError: too few samples of one shape, an input without an axis, or a model whose first
            axis is fixed.
    """
    for number, cell in enumerate(cells, start=1):
        if cell.batch is not None and cell.batch > 1:
            where = f"cell {number} ({cell.engine}): batch = {cell.batch}"
            check_batch_size(where, cell.batch, inputs, specs)


def check_batch_size(
    where: str, batch: int, inputs: ArrayStore, specs: Sequence[InputSpec]
) -> None:
    """Check that a batch of this size can be made of the data, and that the model takes it.

    Raises:
        UserError: as ``check_batches``; it begins with ``where``.
    """
    found = len(batch_samples(inputs, batch))
    first = inputs[0]
    if found < batch:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in first.items())
        raise UserError(
            f"{where}: only {found} of {len(inputs)} held-out samples have the first one's shape "
            f"({shapes}), and a batch holds samples of one shape; give more of them or ask for a "
            "smaller batch"
        )
    for spec in specs:
        shape = first[spec.name].shape
        if not shape:
            raise UserError(
                f"{where}: input '{spec.name}' is a scalar, which a batch cannot hold twice; leave "
                "batch out"
            )
        size = batch * shape[0]
        fixed = spec.shape[0] if spec.shape else None
        if isinstance(fixed, int) and fixed != size:
            raise UserError(
                f"{where}: the model's input '{spec.name}' has a fixed first axis of {fixed}, not "
                f"{size}; export it with a free first axis or leave batch out"
            )


def _shapes(sample: dict[str, NDArray[np.generic]]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in sample.items()}
