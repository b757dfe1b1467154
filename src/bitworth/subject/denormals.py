"""Weights so small that a CPU multiplies them many times slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.subject.prepare import PreparedModel
from bitworth.subject.tensors import static_shape

_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
# fp16 is computed in fp32 on a CPU, where none of its values is denormal; and its own denormals
# reach 6e-5, which is far from nothing.
_TYPES = (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def count_denormals(model: ir.Model) -> dict[str, int]:
    """Return, by initializer, how many of its elements are denormal in fp32; zero counts left out.

    Counted are nonzero magnitudes under 2**-126 in fp32, bf16 and fp64 weights. The weights are
    read one at a time.
    """
    return {
        str(value.name): count
        for value, tensor in _weights(model)
        if (count := int(np.count_nonzero(_denormal(tensor.numpy()))))
    }


def flush_denormals(prepared: PreparedModel) -> PreparedModel:
    """Return ``prepared`` with denormal weights set to zero of the same sign."""
    model = prepared.model.clone()
    names = count_denormals(model)
    for value, tensor in list(_weights(model)):
        if value.name in names:
            value.const_value = _flushed(tensor)
    return replace(prepared, model=model)


def _weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in _TYPES:
                yield value, value.const_value


def _denormal(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    magnitude = np.abs(array)
    mask: NDArray[np.bool_] = (magnitude > 0) & (magnitude < _SMALLEST_NORMAL)
    return mask


def _flushed(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    def compute() -> ir.TensorProtocol:
        array = tensor.numpy()
        zero = np.copysign(np.zeros_like(array), array)
        flushed = np.where(_denormal(array), zero, array)
        return ir.Tensor(flushed.astype(array.dtype), dtype=tensor.dtype)

    shape = ir.Shape(static_shape(tensor))
    return ir.LazyTensor(compute, dtype=tensor.dtype, shape=shape, name=tensor.name)
