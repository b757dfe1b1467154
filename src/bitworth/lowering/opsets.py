"""The lowest operator set version that can express a format's Q/DQ nodes."""

from __future__ import annotations

from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.recipe.formats import format_named

_FORMAT_OF = {
    "int8": "int8",
    "uint8": "int8",
    "int4": "int4",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "fp4_e2m1": "nvfp4",
}
# QuantizeLinear takes 16-bit floats from here on, and DequantizeLinear yields them.
_HALF_OPSET = 19
# DequantizeLinear has block_size from here on.
_BLOCK_OPSET = 21


def required_opset(format: str, block: bool, dtype: str) -> int:  # noqa: A002
    """Return the lowest default-domain opset for ``format`` in a graph of type ``dtype``.

    Args:
        format: name of a quantized format.
        block: whether scales are per block; what a format itself fixes is known.
        dtype: the float type that is quantized, numpy's name.

    Raises:
        KeyError: an unknown format.
    """
    needed = format_named(format).onnx_opset
    if block:
        needed = max(needed, _BLOCK_OPSET)
    return needed if dtype == "float32" else max(needed, _HALF_OPSET)


def needed_opset(entry: QuantizedSite) -> int:
    """Return the lowest default-domain opset in which ``lower`` can write this site.

    DynamicQuantizeLinear needs less than int8's Q/DQ does, so a dynamic activation asks for that
    of its weight. One with blocks has no form in ONNX at any opset: 0 is what it asks for here.
    """
    scales = [entry.weight, entry.activation, entry.output, entry.second]
    dtypes = (entry.site.dtype, entry.compute or entry.site.dtype)
    return max(
        (
            required_opset(_format(scale), _blocks(scale), dtype)
            for scale in scales
            if scale is not None and not _has_no_form(scale)
            for dtype in dtypes
        ),
        default=0,
    )


def _format(scale: TensorScale | DynamicScale) -> str:
    return "mxfp8" if scale.scale_storage == "e8m0" else _FORMAT_OF[scale.storage]


def _blocks(scale: TensorScale | DynamicScale) -> bool:
    return scale.block is not None


def _has_no_form(scale: TensorScale | DynamicScale) -> bool:
    return isinstance(scale, DynamicScale) and scale.block is not None
