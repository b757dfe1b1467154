"""What each engine prefers where a recipe says ``auto``, with the reason for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bitworth.recipe.recipe import Placement, Quantize, Sign, WeightRange, ZeroPoint

#: CPU flags that multiply 8-bit values and sum them in 32 bits.
_DOT_PRODUCT = ("avx_vnni", "avx512_vnni", "amx_int8")


@dataclass(frozen=True)
class Preference:
    """What ``auto`` resolves to on one engine and CPU.

    Attributes:
        sign, zero_point, weight_range, placement: see ``Quantize``.
        reason: why, in one sentence.
    """

    sign: Sign
    zero_point: ZeroPoint
    weight_range: WeightRange
    placement: Placement
    reason: str


def preference(engine: str, isa: Collection[str]) -> Preference:
    """The preference of ``engine`` on a CPU with the instruction sets ``isa``."""
    dot = any(flag in isa for flag in _DOT_PRODUCT)
    if engine == "onnxruntime":
        return Preference(
            sign="u8",
            zero_point="asymmetric",
            weight_range="full" if dot else "reduced",
            placement="after_activation",
            reason="its x86 kernels multiply u8 by s8"
            + ("" if dot else " in saturating 16-bit sums on this CPU, so weights keep 7 bits"),
        )
    return Preference(
        sign="by_range",
        zero_point="symmetric",
        weight_range="full",
        placement="after_activation",
        reason="its quantized kernels take symmetric activations of either sign",
    )


def resolve(quantize: Quantize, preferred: Preference) -> Quantize:
    """``quantize`` with every ``auto`` replaced by the engine's preference."""
    return replace(
        quantize,
        sign=preferred.sign if quantize.sign == "auto" else quantize.sign,
        zero_point=(preferred.zero_point if quantize.zero_point == "auto" else quantize.zero_point),
        weight_range=(
            preferred.weight_range if quantize.weight_range == "auto" else quantize.weight_range
        ),
        placement=preferred.placement if quantize.placement == "auto" else quantize.placement,
    )
