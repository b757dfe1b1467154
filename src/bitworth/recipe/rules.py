"""What each engine prefers where a recipe says ``auto``, with the reason for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bitworth.recipe.formats import FORMATS
from bitworth.recipe.predicates import compile_predicate
from bitworth.recipe.recipe import Placement, Quantize, Sign, WeightRange, ZeroPoint
from bitworth.recipe.site import Site

#: CPU flags that multiply 8-bit values and sum them in 32 bits.
_DOT_PRODUCT = ("avx_vnni", "avx512_vnni", "amx_int8")


@dataclass(frozen=True)
class SitePreference:
    """What an engine prefers for some sites only.

    Attributes:
        where: which (see ``predicates``).
        sign, zero_point, placement: see ``Quantize``; None: as for the other sites.
        reason: why, in one sentence.
    """

    where: str
    reason: str
    sign: Sign | None = None
    zero_point: ZeroPoint | None = None
    placement: Placement | None = None


@dataclass(frozen=True)
class Preference:
    """What ``auto`` resolves to on one engine and CPU.

    Attributes:
        sign, zero_point, weight_range, placement, fused, shared, residual: see ``Quantize``.
        fused_signed: as ``fused``, where activations are s8 with zero point 0.
        reason: why, in one sentence.
        sites: what differs for some sites; the first that applies counts.
    """

    sign: Sign
    zero_point: ZeroPoint
    weight_range: WeightRange
    placement: Placement
    fused: tuple[str, ...] | None
    reason: str
    fused_signed: tuple[str, ...] | None = None
    shared: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()
    sites: tuple[SitePreference, ...] = ()


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

_PRODUCT = SitePreference(
    where="not has_weight",
    placement="input_only",
    reason="a scale, a mask and a Softmax follow in float: rounding before them saves nothing",
)
#: Where another site reads what it gives, that is quantized as the other's input all the same.
_MATRIX = SitePreference(
    where="op_type in ('MatMul', 'Gemm')",
    placement="input_only",
    reason="its 8-bit kernel gives floats as well: rounding a sum that goes on in float (to a "
    "shortcut, a normalization) costs accuracy and saves nothing",
)
#: onnxruntime 1.32, measured on graphs of one operator and what follows it.
_ORT_SITES = (
    _PRODUCT,
    SitePreference(
        where="becomes_gemm",
        placement="before_activation",
        reason="a MatMul and the addition behind it become a Gemm before Q/DQ are looked at; "
        "without Q/DQ between them it computes in float",
    ),
    replace(_MATRIX, where="op_type == 'MatMul' or op_type == 'Gemm' and not biased"),
)
#: OpenVINO 2026.4, measured likewise.
_OV_SITES = (
    replace(
        _PRODUCT,
        sign="s8",
        zero_point="symmetric",
        reason=f"{_PRODUCT.reason}; with a zero point the product itself computes in f32",
    ),
    SitePreference(
        where="op_type == 'ConvTranspose' or weight_on_left or depthwise and rank == 5",
        sign="s8",
        zero_point="symmetric",
        reason="with a zero point it computes in f32",
    ),
    _MATRIX,
)


def preference(engine: str, isa: Collection[str]) -> Preference:
    """The preference of ``engine`` on a CPU with the instruction sets ``isa``.

    Measured on PP-OCRv6's recogniser on a CPU without an 8-bit dot product: seven-bit weights halve
    the error of both engines there, and s8 activations are slower in one and wrong in the other.
    """
    if engine == "tensorrt":
        return Preference(
            sign="s8",
            zero_point="symmetric",
            weight_range="full",
            placement="after_activation",
            fused=None,
            reason="its quantization is symmetric with signed values",
        )
    if engine == "torch":
        return replace(
            EMULATED,
            placement="input_only",
            reason="its products are symmetric with signed values, and give 16 or 32 bits",
        )
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
            # A Relu is dropped where the lowest quantized value stands for 0: never in s8 around 0.
            fused_signed=(),
            # Without it each addition of a shortcut stays in float, between two conversions.
            residual=("Add",),
            reason=f"x86 kernels multiply u8 by s8, with Relu and Clip fused{saturates}",
            sites=_ORT_SITES,
        )
    return Preference(
        sign="u8",
        zero_point="asymmetric",
        weight_range=weight_range,
        placement="after_activation",
        fused=None,
        # Under one scale a Concat moves bytes; with its own each input is quantized again.
        shared=("Concat",) if engine == "openvino" else (),
        residual=("Add",) if engine == "openvino" else (),
        reason=f"x86 kernels multiply u8 by s8, with every activation function fused{saturates}",
        sites=_OV_SITES if engine == "openvino" else (),
    )


def resolve(quantize: Quantize, preferred: Preference, site: Site | None = None) -> Quantize:
    """``quantize`` with every ``auto`` replaced by the engine's preference.

    Outputs are quantized with static scales only: with any other scheme the placement is
    ``input_only``.

    Args:
        quantize: as the recipe says it, not yet resolved.
        preferred: the engine's preference.
        site: the site that it is for; None: what holds for the group.
    """
    own = next(
        (p for p in preferred.sites if site is not None and compile_predicate(p.where)(site)), None
    )
    own = own or SitePreference("", "")
    sign = quantize.sign if quantize.sign != "auto" else own.sign or preferred.sign
    zero_point = quantize.zero_point
    if zero_point == "auto":
        zero_point = own.zero_point or preferred.zero_point
    placement = quantize.placement
    if quantize.scheme != "static" or FORMATS[quantize.format].weights_only:
        placement = "input_only"
    elif placement == "auto":
        placement = own.placement or preferred.placement
    signed = (quantize.format, sign, zero_point) == ("int8", "s8", "symmetric")
    fused = preferred.fused_signed if signed else preferred.fused
    return replace(
        quantize,
        sign=sign,
        zero_point=zero_point,
        weight_range=_weight_range(quantize, preferred),
        placement=placement,
        fused=fused if quantize.fused is None else quantize.fused,
        shared=preferred.shared if quantize.shared is None else quantize.shared,
        residual=preferred.residual if quantize.residual is None else quantize.residual,
    )


def _weight_range(quantize: Quantize, preferred: Preference) -> WeightRange:
    if quantize.weight_range != "auto":
        return quantize.weight_range
    # Where activations stay in float no 8-bit products are summed, and nothing saturates.
    return "full" if quantize.scheme == "weight_only" else preferred.weight_range
