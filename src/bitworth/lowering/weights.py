"""Quantizes weights in numpy: the one definition that lowering and emulation share."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.lowering.scaling import TensorScale

Array = NDArray[np.generic]
Floats = NDArray[np.float32]

_LARGEST_E4M3 = np.float32(448.0)
STORAGE = {
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "fp8_e4m3": ir.DataType.FLOAT8E4M3FN,
}
_INTEGER_RANGE = {"int8": (-128, 127), "uint8": (0, 255)}


def quantize(array: Array, scale: TensorScale) -> Array:
    """Return ``array`` in its storage type: int8, uint8 or float8_e4m3fn, same shape.

    Division in fp32, rounding half to even, saturating at the type's range or ``scale.limit``.
    """
    x = np.asarray(array, dtype=np.float32) / _along_axis(scale, array.ndim)
    if scale.storage == "fp8_e4m3":
        fp8: Array = np.clip(x, -_LARGEST_E4M3, _LARGEST_E4M3).astype(ml_dtypes.float8_e4m3fn)
        return fp8
    low, high = _INTEGER_RANGE[scale.storage]
    if scale.limit is not None:
        low = max(low, scale.zero_point - scale.limit)
        high = min(high, scale.zero_point + scale.limit)
    # Clipped before the cast: a float beyond the integer type's range has no defined cast.
    whole = np.clip(np.rint(x) + np.float32(scale.zero_point), low, high)
    stored: Array = whole.astype(STORAGE[scale.storage].numpy())
    return stored


def dequantize(array: Array, scale: TensorScale) -> Floats:
    """Return what DequantizeLinear yields for ``array``: fp32, same shape."""
    floats = np.asarray(array, dtype=np.float32) - np.float32(scale.zero_point)
    product: Floats = floats * _along_axis(scale, array.ndim)
    return product


def quantized_tensor(source: ir.TensorProtocol, scale: TensorScale, name: str) -> ir.LazyTensor:
    """Return the quantized weight, computed each time it is read: a large one never stays."""
    return _lazy(source, STORAGE[scale.storage], name, lambda a: quantize(a, scale))


def emulated_tensor(source: ir.TensorProtocol, scale: TensorScale, name: str) -> ir.LazyTensor:
    """Return the weight quantized and dequantized, in its own type."""

    def act(array: Array) -> Array:
        return dequantize(quantize(array, scale), scale).astype(array.dtype)

    return _lazy(source, source.dtype, name, act)


def _lazy(
    source: ir.TensorProtocol, dtype: ir.DataType, name: str, act: Callable[[Array], Array]
) -> ir.LazyTensor:
    shape = ir.Shape([d for d in source.shape if isinstance(d, int)])

    def compute() -> ir.TensorProtocol:
        return ir.Tensor(act(source.numpy()), dtype=dtype)

    return ir.LazyTensor(compute, dtype=dtype, shape=shape, name=name)


def _along_axis(scale: TensorScale, rank: int) -> Floats:
    if scale.axis is None:
        return np.asarray(scale.scale, dtype=np.float32).reshape(())
    shape = [1] * rank
    shape[scale.axis] = -1
    return np.asarray(scale.scale, dtype=np.float32).reshape(shape)
