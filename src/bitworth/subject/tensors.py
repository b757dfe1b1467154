"""Small questions about tensors that may lie on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress

import onnx_ir as ir


def static_shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the shape of a stored tensor; all its dimensions are numbers."""
    return tuple(d for d in tensor.shape if isinstance(d, int))


def tensor_sha256(tensor: ir.TensorProtocol) -> str:
    """Return a hash of type, shape and bytes of one tensor."""
    digest = hashlib.sha256(f"{tensor.dtype.name}{static_shape(tensor)}".encode())
    digest.update(tensor.tobytes())
    unmap([tensor])
    return digest.hexdigest()


def unmap(tensors: Iterable[ir.TensorProtocol | None]) -> None:
    """Let go of the pages of weights that lie on disk; who reads one again maps it again.

    Mapped pages count as the process's memory for as long as the mapping stands. A mapping that an
    array still views is left to it.
    """
    for tensor in tensors:
        if isinstance(tensor, ir.ExternalTensor):
            with suppress(BufferError):
                tensor.release()


def is_constant(value: ir.Value | None) -> bool:
    """Whether ``value`` is an initializer that no caller can replace."""
    return (
        value is not None
        and value.is_initializer()
        and value.const_value is not None
        and not value.is_graph_input()
    )


def unused_name(wanted: str, graph: ir.Graph) -> str:
    """Return ``wanted``, or it with a number behind it where an initializer has that name."""
    name, number = wanted, 2
    while name in graph.initializers:
        name, number = f"{wanted}_{number}", number + 1
    return name
