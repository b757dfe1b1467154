"""Number formats a recipe can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Format:
    """A number format: its width, its largest finite value and what ONNX needs to express it.

    Attributes:
        name: the field's usual name, as used in study files and records.
        bits: bits of one element.
        role: ``base`` is a precision that a whole graph computes in; ``quantized`` is stored
            through Quantize/DequantizeLinear with scales.
        largest: the largest finite magnitude.
        onnx_opset: the lowest default-domain opset whose Q/DQ nodes (with a scale per output
            channel) or Cast can express it.
    """

    name: str
    bits: int
    role: Literal["base", "quantized"]
    largest: float
    onnx_opset: int


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        f.name: f
        for f in (
            Format("fp32", 32, "base", 3.4028234663852886e38, 7),
            Format("bf16", 16, "base", 3.3895313892515355e38, 13),
            Format("int8", 8, "quantized", 127.0, 13),
            # OCP 8-bit floating point specification (OFP8) revision 1.0: E4M3 has no infinity and
            # its largest finite value is S.1111.110 = 448.
            Format("fp8_e4m3", 8, "quantized", 448.0, 19),
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
