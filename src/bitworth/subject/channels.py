"""Follows the channels of a value through operators that keep them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.subject.tensors import is_constant

# The channel of every element of a tensor, int64, in a shape that broadcasts to the tensor's as
# numpy does: (8, 1, 1) for 8 channels on axis 1 of (N, 8, H, W), (2, 1, 4) for 8 channels cut into
# 2 heads of 4 in (N, 2, S, 4). A dimension along which the channel stays the same is 1.
Channels = NDArray[np.int64]

# op(x / f) = op(x) / f for every f > 0, element by element.
_HOMOGENEOUS = ("Relu", "LeakyRelu", "PRelu", "Identity", "Abs", "Neg")
# The same over the axes behind the second.
_POOLS = (
    "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"
)  # fmt: skip
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# A larger table of channels is not made: no operation has as many input channels.
_LARGEST_TABLE = 1 << 24


def passed_on(node: ir.Node, index: int, channels: Channels) -> Channels | None:
    """Return the channels of the node's first output, or None where they do not come through.

    They do when dividing input ``index`` by one positive number a channel divides that output by
    the same numbers. Other inputs are taken as they are, and other outputs have to be unused.
    """
    source, op_type = node.inputs[index], node.op_type
    if node.domain or source is None or any(v.uses() for v in node.outputs[1:]):
        return None
    rank = None if source.shape is None else len(source.shape)
    if op_type == "Mul" or (op_type == "Div" and index == 0):
        return channels
    if op_type == "MatMul":
        other = node.inputs[1 - index]
        if rank is None or rank < 2 or other is None or other.shape is None or len(other.shape) < 2:
            return None
        # Summed is the last axis of the first input, the last but one of the second.
        return None if _varies(channels, -1 - index) else channels
    if index != 0:
        return None
    if op_type in _HOMOGENEOUS or (op_type == "Dropout" and not any(node.inputs[2:])):
        return channels
    if op_type in _POOLS:
        spatial = None if rank is None else range(2 - rank, 0)
        return None if spatial is None or any(_varies(channels, a) for a in spatial) else channels
    if op_type == "Transpose":
        order = node.attributes.get_ints("perm") or tuple(reversed(range(rank or 0)))
        return _plain(_padded(channels, len(order)).transpose(order)) if order else None
    if op_type in _REDUCTIONS:
        return _reduced(node, channels, rank)
    return _reshaped(channels, source, node.outputs[0]) if op_type in _RESHAPING else None


def channel_axis(channels: Channels) -> int | None:
    """The axis that holds all channels, counted from the end (-1 the last); None for several."""
    axes = [i - channels.ndim for i, size in enumerate(channels.shape) if size > 1]
    return axes[0] if len(axes) == 1 else None


def on_axis(channels: Channels, axis: int) -> Channels:
    """Channels of all elements, where ``channels``, shape (n,), are those along ``axis`` (< 0)."""
    return channels.reshape((-1, *[1] * (-axis - 1)))


def largest_by_channel(
    array: NDArray[np.generic], channels: Channels, count: int
) -> NDArray[np.float64]:
    """Return the largest magnitude in each channel of ``array``, shape (count,).

    Args:
        array: of any real number type.
        channels: of its elements.
        count: number of channels; one without elements has 0.
    """
    table = _padded(channels, array.ndim)
    axes = tuple(i for i, size in enumerate(table.shape) if size == 1)
    # Two reductions in the array's own type: exact, and no copy of a large weight.
    low = np.min(array, axis=axes, keepdims=True).astype(np.float64)
    high = np.max(array, axis=axes, keepdims=True).astype(np.float64)
    found = np.zeros(count, np.float64)
    np.maximum.at(found, table.reshape(-1), np.maximum(-low, high).reshape(-1))
    return found


def _varies(channels: Channels, axis: int) -> bool:
    return -axis <= channels.ndim and channels.shape[axis] > 1


def _padded(channels: Channels, rank: int) -> Channels:
    return channels.reshape((1,) * (rank - channels.ndim) + channels.shape)


def _plain(channels: Channels) -> Channels:
    """Make dimensions along which nothing changes 1, and leave out the leading ones."""
    for axis in range(channels.ndim):
        first = channels.take([0], axis)
        if (channels == first).all():
            channels = first
    kept = next((i for i, size in enumerate(channels.shape) if size > 1), channels.ndim)
    return channels.reshape(channels.shape[kept:])


def _reduced(node: ir.Node, channels: Channels, rank: int | None) -> Channels | None:
    axes: Sequence[int] | None = node.attributes.get_ints("axes")
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None:
        if not is_constant(given) or given.const_value is None:
            return None
        axes = [int(a) for a in given.const_value.numpy().reshape(-1)]
    if not axes or rank is None:  # no axes means all of them, or none at all
        return None
    gone = tuple(a % rank for a in axes)
    table = _padded(channels, rank)
    if any(table.shape[a] > 1 for a in gone):
        return None
    return _plain(table if node.attributes.get_int("keepdims", 1) else table.squeeze(gone))


def _reshaped(channels: Channels, source: ir.Value, target: ir.Value) -> Channels | None:
    """Channels behind a change of shape, which keeps the elements in their order.

    Looked for are the fewest last dimensions of both that hold the same elements, all of them
    channels' ones among them, and all known numbers. The dimensions before those do not matter.
    """
    if source.shape is None or target.shape is None or channels.ndim > len(source.shape):
        return None
    old, new = _Suffix(source.shape, channels.ndim), _Suffix(target.shape, 0)
    while old.size != new.size:
        shorter = old if 0 < old.size < new.size else new
        if shorter.size == 0 or shorter.length == len(shorter.shape):
            return None
        shorter.length += 1
    table = _padded(channels, old.length)
    fits = all(c in (1, d) for c, d in zip(table.shape, old.dimensions, strict=True))
    if not 0 < old.size <= _LARGEST_TABLE or not fits:
        return None
    return _plain(np.broadcast_to(table, old.dimensions).reshape(new.dimensions))


@dataclass
class _Suffix:
    """The last ``length`` dimensions of a shape."""

    shape: ir.Shape
    length: int

    @property
    def dimensions(self) -> tuple[int, ...]:
        """As numbers, 0 for one that is not known."""
        last = self.shape[len(self.shape) - self.length :]
        return tuple(d if isinstance(d, int) else 0 for d in last)

    @property
    def size(self) -> int:
        """Number of elements; 0 when it is not known."""
        return prod(self.dimensions)
