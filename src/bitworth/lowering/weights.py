"""Quantizes weights in numpy: the one definition that lowering and emulation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.lowering.scaling import StorageType, TensorScale
from bitworth.subject.tensors import unmap

Array = NDArray[np.generic]
Floats = NDArray[np.float32]

STORAGE: Mapping[StorageType, ir.DataType] = MappingProxyType(
    {
        "int8": ir.DataType.INT8,
        "uint8": ir.DataType.UINT8,
        "int4": ir.DataType.INT4,
        "fp8_e4m3": ir.DataType.FLOAT8E4M3FN,
        "fp8_e5m2": ir.DataType.FLOAT8E5M2,
        "fp4_e2m1": ir.DataType.FLOAT4E2M1,
    }
)
_INTEGER_RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}
_LARGEST_FLOAT = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "fp4_e2m1": 6.0}


def quantize(array: Array, scale: TensorScale) -> Array:
    """Return ``array`` in its storage type, same shape.

    Division in fp32, rounding half to even, saturating: at the range of the integer type or
    ``scale.limit``, at the largest finite value of the float types, infinities too. Where a scale
    under a tensor's scale is zero, or their product underflows, the result is zero. Memory: one
    fp32 copy of the array beside the result.

    Raises:
        ValueError: a NaN, for a type that has none (the integers and fp4_e2m1).
    """
    x = np.array(array, dtype=np.float32, order="C")
    if scale.storage not in ("fp8_e4m3", "fp8_e5m2") and np.isnan(np.min(x, initial=0.0)):
        raise ValueError(f"a NaN has no {scale.storage}")
    step = effective_scale(scale)
    with np.errstate(over="ignore"):
        # x / inf is 0: a safe divisor that needs no second pass.
        _each(np.divide, x, np.where(step > 0.0, step, np.float32(np.inf)), scale)
    if scale.storage in _INTEGER_RANGE:
        np.rint(x, out=x)
        x += np.float32(scale.zero_point)
    low, high = _range(scale)
    # Clipped before the cast: a float beyond the range has no defined cast to an integer, and
    # becomes NaN or infinite as fp8.
    np.clip(x, np.float32(low), np.float32(high), out=x)
    stored: Array = x.astype(STORAGE[scale.storage].numpy())
    return stored


def dequantize(array: Array, scale: TensorScale) -> Floats:
    """Return what DequantizeLinear yields for ``array``: fp32, same shape."""
    x = np.array(array, dtype=np.float32, order="C")
    if scale.zero_point:
        x -= np.float32(scale.zero_point)
    _each(np.multiply, x, effective_scale(scale), scale)
    return x


def effective_scale(scale: TensorScale) -> Floats:
    """Return what divides, in fp32: the scales, under the tensor's scale where there is one."""
    step = np.asarray(scale.scale, dtype=np.float32)
    if scale.tensor_scale is None:
        return step
    return np.asarray(step * np.float32(scale.tensor_scale))


def quantized_tensor(source: ir.TensorProtocol, scale: TensorScale, name: str) -> ir.LazyTensor:
    """Return the quantized weight, computed each time it is read: a large one never stays."""
    return _lazy(source, STORAGE[scale.storage], name, lambda a: quantize(a, scale))


def emulated_tensor(source: ir.TensorProtocol, scale: TensorScale, name: str) -> ir.LazyTensor:
    """Return the weight quantized and dequantized, in its own type."""

    def act(array: Array) -> Array:
        floats: Array = dequantize(quantize(array, scale), scale)
        return floats.astype(array.dtype, copy=False)

    return _lazy(source, source.dtype, name, act)


def _lazy(
    source: ir.TensorProtocol, dtype: ir.DataType, name: str, act: Callable[[Array], Array]
) -> ir.LazyTensor:
    shape = ir.Shape([d for d in source.shape if isinstance(d, int)])

    def compute() -> ir.TensorProtocol:
        array = act(source.numpy())
        unmap([source])
        return ir.Tensor(array, dtype=dtype)

    return ir.LazyTensor(compute, dtype=dtype, shape=shape, name=name)


def _range(scale: TensorScale) -> tuple[float, float]:
    if scale.storage not in _INTEGER_RANGE:
        largest = _LARGEST_FLOAT[scale.storage]
        return -largest, largest
    low, high = _INTEGER_RANGE[scale.storage]
    if scale.limit is not None:
        low = max(low, scale.zero_point - scale.limit)
        high = min(high, scale.zero_point + scale.limit)
    return low, high


def _each(operation: np.ufunc, x: Floats, factor: Floats, scale: TensorScale) -> None:
    """Apply ``operation`` to ``x`` in place, with each factor over its channel or its block."""
    if scale.axis is None:
        operation(x, factor.reshape(()), out=x)
        return
    axis = scale.axis % x.ndim
    if scale.block is None:
        operation(x, factor.reshape([-1 if i == axis else 1 for i in range(x.ndim)]), out=x)
        return
    # The whole blocks, then the short one. Splitting an axis gives a view, so nothing is copied.
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    blocks, rest = divmod(x.shape[axis], scale.block)
    along = (slice(None),) * axis
    whole = x[(*along, slice(0, blocks * scale.block))]
    whole = whole.reshape(*before, blocks, scale.block, *after)
    operation(whole, np.expand_dims(factor[(*along, slice(0, blocks))], axis + 1), out=whole)
    if rest:
        short = x[(*along, slice(blocks * scale.block, None))]
        operation(short, factor[(*along, slice(blocks, None))], out=short)
