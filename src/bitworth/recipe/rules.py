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
        sign, zero_point, weight_range, placement, fused: see ``Quantize``.
        reason: why, in one sentence.
    """

    sign: Sign
    zero_point: ZeroPoint
    weight_range: WeightRange
    placement: Placement
    fused: tuple[str, ...] | None
    reason: str


#: What ``auto`` means where no engine computes in the format, so that none can prefer anything:
#: the emulated quality of a recipe is the same whatever engine lacks it.
EMULATED = Preference(
    sign="s8",
    zero_point="symmetric",
    weight_range="full",
    placement="after_activation",
    fused=None,
    reason="emulated: no engine's kernels are involved",
)


def preference(engine: str, isa: Collection[str]) -> Preference:
    """The preference of ``engine`` on a CPU with the instruction sets ``isa``.

    Measured on PP-OCRv6's recogniser on a CPU without an 8-bit dot product: seven-bit weights halve
    the error of both engines there, and s8 activations are slower in one and wrong in the other.
    """
    dot = any(flag in isa for flag in _DOT_PRODUCT)
    weight_range: WeightRange = "full" if dot else "reduced"
    saturates = (
        ""
        if dot
        else "; without an 8-bit dot product their 16-bit sums saturate, so weights keep 7 bits"
    )
    if engine == "onnxruntime":
        return Preference(
            sign="u8",
            zero_point="asymmetric",
            weight_range=weight_range,
            placement="after_activation",
            fused=("Relu", "Clip"),
            reason=f"x86 kernels multiply u8 by s8, with Relu and Clip fused{saturates}",
        )
    return Preference(
        sign="u8",
        zero_point="asymmetric",
        weight_range=weight_range,
        placement="after_activation",
        fused=None,
        reason=f"x86 kernels multiply u8 by s8, with every activation function fused{saturates}",
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
        fused=preferred.fused if quantize.fused is None else quantize.fused,
    )
