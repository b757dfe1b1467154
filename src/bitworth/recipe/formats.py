"""Number formats a recipe can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Element = Literal["float", "int8", "int4", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"]


@dataclass(frozen=True)
class Format:
    """A number format: its width, its largest finite value and what ONNX needs to express it.

    Attributes:
        name: the field's usual name, as used in study files and records.
        bits: bits of one element.
        role: ``base`` is a precision that a whole graph computes in; ``quantized`` is stored
            through Quantize/DequantizeLinear with scales.
        largest: the largest finite magnitude of an element.
        onnx_opset: the lowest default-domain opset whose Q/DQ nodes (with a scale per output
            channel; for block formats with their own scales) or Cast can express it.
        element: how one element is stored.
        block: elements along the summed axis that share a scale, where the format fixes it.
        scale: how that scale is stored: in the graph's own float type, as E4M3 beside one fp32
            number for the tensor, or as a power of two (E8M0).
        weights_only: no engine multiplies activations in it: they are left alone.
    """

    name: str
    bits: int
    role: Literal["base", "quantized"]
    largest: float
    onnx_opset: int
    element: Element = "float"
    block: int | None = None
    scale: Literal["float", "fp8_e4m3", "e8m0"] = "float"
    weights_only: bool = False


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            Format("fp32", 32, "base", 3.4028234663852886e38, 7),
            Format("fp16", 16, "base", 65504.0, 7),
            Format("bf16", 16, "base", 3.3895313892515355e38, 13),
            Format("int8", 8, "quantized", 127.0, 13, "int8"),
            Format("int4", 4, "quantized", 7.0, 21, "int4", weights_only=True),
            # OCP 8-bit floating point specification (OFP8) revision 1.0: E4M3 has no infinity and
            # its largest finite value is S.1111.110 = 448; E5M2's is S.11110.11 = 57344.
            Format("fp8_e4m3", 8, "quantized", 448.0, 19, "fp8_e4m3"),
            Format("fp8_e5m2", 8, "quantized", 57344.0, 19, "fp8_e5m2"),
            # OCP Microscaling formats (MX) specification 1.0: 32 elements under a power of two.
            Format("mxfp8", 8, "quantized", 448.0, 24, "fp8_e4m3", block=32, scale="e8m0"),
            # Two levels: 16 elements under an E4M3 number, all of them under one fp32 number.
            Format("nvfp4", 4, "quantized", 6.0, 23, "fp4_e2m1", block=16, scale="fp8_e4m3"),
        )
    }
)


def format_named(name: str) -> Format:
    """Return the format called ``name``.

    Raises:
        KeyError: the name is not a known format; the message lists the known ones.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise KeyError(f"unknown format '{name}'; known: {', '.join(FORMATS)}") from None
