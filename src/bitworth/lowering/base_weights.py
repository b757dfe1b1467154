"""Constants in a 16-bit float: converted when they are read, with what leaves the type's range."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.lowering.float_types import TYPES, Base
from bitworth.recipe.formats import FORMATS
from bitworth.subject.tensors import static_shape

Array = NDArray[np.generic]

# Elements converted at a time: a large weight is in memory once, in its 16-bit form.
_CHUNK = 1 << 20


def largest(base: Base) -> float:
    """Return the largest finite number of ``base``."""
    return FORMATS[base].largest


def to_16_bits(array: Array, base: Base) -> Array:
    """Return an fp32 array in ``base``, same shape, rounded to nearest, ties to even.

    A finite number beyond the type's range becomes the largest finite one of its sign: -3.4e38 in
    an attention mask stays finite, and a row of nothing but masked places has a Softmax. An
    infinity stays one.
    """
    # TYPES' own numpy type; numpy gives no generic way to say it.
    dtype = np.float16 if base == "fp16" else ml_dtypes.bfloat16
    result: Array = np.empty(array.shape, dtype)
    flat = result.reshape(-1)
    limit = np.float32(largest(base))
    for start, part in _chunks(array):
        held = np.where(np.isfinite(part), np.clip(part, -limit, limit), part)
        with np.errstate(under="ignore"):
            flat[start : start + part.size] = held.astype(dtype)
    return result


def converted_tensor(source: ir.TensorProtocol, base: Base, name: str | None) -> ir.LazyTensor:
    """Return an fp32 tensor in ``base``, computed each time it is read."""

    def compute() -> ir.TensorProtocol:
        return ir.Tensor(to_16_bits(_read(source), base), dtype=TYPES[base])

    shape = ir.Shape(static_shape(source))
    return ir.LazyTensor(compute, dtype=TYPES[base], shape=shape, name=name)


def range_losses(source: ir.TensorProtocol, base: Base) -> tuple[str, ...]:
    """Say what of an fp32 tensor leaves the range of ``base``, with number and place.

    Finite elements beyond its largest number, and nonzero ones that become 0.
    """
    array = _read(source)
    limit = np.float32(largest(base))
    half_smallest = np.float32(_half_smallest(base))
    beyond = _Found()
    vanishing = _Found()
    for start, part in _chunks(array):
        magnitude = np.abs(part)
        beyond.add(start, part, (magnitude > limit) & np.isfinite(part))
        # Half the smallest number is a tie, which goes to the even 0.
        vanishing.add(start, part, (magnitude > 0) & (magnitude <= half_smallest))
    said = (
        beyond.say(array.shape, f"beyond {largest(base):g}, held at it"),
        vanishing.say(array.shape, f"too small for {base}, 0 in it"),
    )
    return tuple(text for text in said if text)


def _read(source: ir.TensorProtocol) -> Array:
    """The numbers of a tensor; a file is mapped for the caller alone, as long as it needs them."""
    if isinstance(source, ir.ExternalTensor):
        source = ir.ExternalTensor(
            source.location,
            source.offset,
            source.length,
            source.dtype,
            shape=source.shape,
            name=str(source.name),
            base_dir=source.base_dir,
        )
    array: Array = source.numpy()
    return array


class _Found:
    """Elements that meet a condition: how many, and the one of largest magnitude."""

    def __init__(self) -> None:
        self.count, self.at, self.value = 0, 0, np.float32(0)

    def add(self, start: int, part: NDArray[np.float32], where: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(where))
        if not count:
            return
        self.count += count
        at = int(np.argmax(np.where(where, np.abs(part), 0)))
        if abs(part[at]) > abs(self.value):
            self.at, self.value = start + at, part[at]

    def say(self, shape: tuple[int, ...], what: str) -> str:
        if not self.count:
            return ""
        size = int(np.prod(shape, dtype=np.int64))
        place = ", ".join(str(i) for i in np.unravel_index(self.at, shape)) if shape else ""
        where = f" at ({place})" if shape else ""
        return f"{self.count} of {size} elements {what}; the largest is {self.value:.6g}{where}"


def _half_smallest(base: Base) -> float:
    """Half of the smallest subnormal number: 2**-25 for fp16, 2**-134 for bf16."""
    return 2.0**-25 if base == "fp16" else 2.0**-134


def _chunks(array: Array) -> Iterator[tuple[int, NDArray[np.float32]]]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield start, np.asarray(flat[start : start + _CHUNK], dtype=np.float32)
