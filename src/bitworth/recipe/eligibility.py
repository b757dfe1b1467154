"""Which sites an engine can run natively in a format, and why not the others.

A rule about onnxruntime or OpenVINO is what the engine of the version that its reason names did
with a graph of one such operation: the operators of onnxruntime's optimized model, or the
primitives of OpenVINO's executed graph (x86, AVX2). Rules about TensorRT are from its documentation
and its issue tracker; the reason names the source.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bitworth.recipe.expressions import Expression, Kind, compile_expression
from bitworth.recipe.formats import FORMATS
from bitworth.recipe.granularity import PerBlock
from bitworth.recipe.predicates import SITE_NAMES, site_values
from bitworth.recipe.recipe import Quantize, Scheme
from bitworth.recipe.site import Site

_FP8 = ("fp8_e4m3", "fp8_e5m2")
_INT = ("int8", "int4")
_STATIC: tuple[Scheme, ...] = ("static",)
_ACTIVE: tuple[Scheme, ...] = ("static", "dynamic")
_WEIGHT_ONLY: tuple[Scheme, ...] = ("weight_only",)
_ALL: tuple[Scheme, ...] = ("static", "dynamic", "weight_only")

#: What a rule can ask beside the site's own names: the entry that would quantize it.
ENTRY_NAMES: dict[str, Kind] = {
    "weight_scales": "text",  # per_tensor, per_channel, block
    "activation_scales": "text",
    "block": "number",  # elements of the weight that share a scale; 0 without blocks
    "sign": "text",
    "zero_point": "text",
    "placement": "text",
}


@dataclass(frozen=True)
class EngineRule:
    """Sites that an engine does not run natively in a format.

    Attributes:
        id: its name, as records show it.
        engines: names of engines; ``*`` for every one.
        formats: names of formats.
        schemes: schemes of ``Quantize``; an int4 weight counts as ``weight_only``.
        where: what holds for such a site and its entry, in ``SITE_NAMES`` and ``ENTRY_NAMES``.
        reason: what the engine does instead, in which version, or who says so.
    """

    id: str
    engines: tuple[str, ...]
    formats: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    where: str
    reason: str


_ORT = ("onnxruntime",)
_OV = ("openvino",)
_TRT = ("tensorrt",)
_TORCH = ("torch",)
_ANY = ("*",)

#: The first that applies is the one that is told.
RULES: tuple[EngineRule, ...] = (
    EngineRule(
        "block-operators", _ANY, ("nvfp4", "mxfp8"), _ALL,
        "not has_weight or op_type not in ('MatMul', 'Gemm', 'Linear') and not pointwise",
        "blocks along the summed axis are for MatMul, Gemm and Linear with a weight",
    ),
    EngineRule(
        "whole-blocks", _ANY, tuple(FORMATS), _ALL,
        "block > 0 and has_weight and in_channels % block != 0",
        "the summed axis is no multiple of the block: OpenVINO 2026.4 refuses such a weight, and "
        "TensorRT's DynamicQuantize asks for a multiple",
    ),
    EngineRule(
        "channels-summed", _ANY, ("int8", *_FP8), _ALL,
        "activation_scales == 'per_channel' and not depthwise",
        "a scale per channel of the activation cannot be taken out of a sum over channels; only a "
        "depthwise Conv sums none",
    ),
    EngineRule(
        "dynamic-operators", _ANY, tuple(FORMATS), ("dynamic",),
        "op_type not in ('MatMul', 'Gemm', 'Linear') and not pointwise",
        "scales at run time are for MatMul, Gemm and Linear",
    ),
    EngineRule(
        "no-weight", _ANY, tuple(FORMATS), _WEIGHT_ONLY,
        "not has_weight",
        "a product of two activations has no weight to store",
    ),
    EngineRule(
        "torch-operators", ("torch", "torch-emulated"), tuple(FORMATS), _ALL,
        "op_type != 'Linear' and not pointwise",
        "lowered to a product of matrices are Linear and 1x1 convolutions of stride 1",
    ),
    EngineRule(
        "torch-fp8-multiples", _TORCH, _FP8, _ALL,
        "in_channels % 16 != 0 or out_channels % 16 != 0",
        "scaled_mm takes K and N in multiples of 16 (torch 2.11 and 2.14; cuBLASLt's rule)",
    ),
    EngineRule(
        "torch-int8-multiples", _TORCH, ("int8",), _ALL,
        "in_channels % 8 != 0 or out_channels % 8 != 0",
        "_int_mm takes K and N in multiples of 8 (torch 2.11 and 2.14)",
    ),
    EngineRule(
        "torch-block-weights", _TORCH, ("int8", *_FP8), _ALL,
        "weight_scales == 'block'",
        "neither _int_mm nor scaled_mm takes scales of blocks before NVIDIA's Blackwell",
    ),
    EngineRule(
        "onnxruntime-conv-transpose", _ORT, ("int8",), _STATIC,
        "op_type == 'ConvTranspose'",
        "onnxruntime 1.32 has no quantized ConvTranspose: it dequantizes and computes in float",
    ),
    EngineRule(
        "onnxruntime-conv-output", _ORT, ("int8",), _STATIC,
        "op_type == 'Conv' and placement == 'input_only'",
        "onnxruntime 1.32 makes a QLinearConv only of a Conv whose output is quantized too",
    ),
    EngineRule(
        "onnxruntime-gemm-output", _ORT, ("int8",), _STATIC,
        "(op_type == 'Gemm' and biased or becomes_gemm) and placement == 'input_only'",
        "onnxruntime 1.32 computes a Gemm with a bias in float where its output is not quantized",
    ),
    EngineRule(
        "onnxruntime-weight-on-left", _ORT, _INT, _ALL,
        "weight_on_left",
        "onnxruntime 1.32 dequantizes a weight on the left of a MatMul and computes in float",
    ),
    EngineRule(
        "onnxruntime-batched-weight", _ORT, ("int8",), _STATIC,
        "op_type == 'MatMul' and rank > 2 and weight_scales != 'per_tensor'",
        "onnxruntime 1.32 computes in float, or fails at the first run, where a weight of over two "
        "dimensions has a scale per channel; use weights = \"per_tensor\"",
    ),
    EngineRule(
        "onnxruntime-weight-only-operators", _ORT, _INT, _WEIGHT_ONLY,
        "op_type in ('Conv', 'ConvTranspose') or rank > 2",
        "onnxruntime 1.32 packs weights (MatMulNBits) of two-dimensional MatMul and Gemm only; "
        "others are dequantized at every run",
    ),
    EngineRule(
        "onnxruntime-weight-only-transposed", _ORT, _INT, _WEIGHT_ONLY,
        "weight_transposed",
        "onnxruntime 1.32 does not pack the weight of a Gemm with transB = 1; it is dequantized at "
        "every run",
    ),
    EngineRule(
        "onnxruntime-block-weights", _ORT, ("int8",), _ACTIVE,
        "weight_scales == 'block'",
        "onnxruntime 1.32 computes in float, or fails at the first run, where int8 weights in "
        "blocks meet quantized activations",
    ),
    EngineRule(
        "onnxruntime-channel-activations", _ORT, ("int8",), _STATIC,
        "activation_scales == 'per_channel'",
        "onnxruntime 1.32 computes in float, or fails at the first run, where an activation has a "
        "scale per channel",
    ),
    EngineRule(
        "openvino-dynamic", _OV, ("int8",), ("dynamic",),
        "True",
        "OpenVINO 2026.4 computes in f32 behind DynamicQuantizeLinear",
    ),
    EngineRule(
        "openvino-grouped-conv-transpose", _OV, ("int8",), _STATIC,
        "op_type == 'ConvTranspose' and groups > 1",
        "OpenVINO 2026.4 computes a grouped ConvTranspose in f32",
    ),
    EngineRule(
        "openvino-zero-point", _OV, ("int8",), _STATIC,
        "activation_scales == 'per_tensor' and ("
        "  (not has_weight or op_type == 'ConvTranspose' or depthwise and rank == 5)"
        "  and not (sign in ('s8', 'by_range') and zero_point == 'symmetric')"
        " or weight_on_left and (zero_point == 'asymmetric'"
        "  or sign == 'u8' and rank == 2 and weight_scales == 'per_channel')"
        " or groups > 1 and rank == 5 and sign == 's8' and zero_point == 'asymmetric')",
        "OpenVINO 2026.4 computes it in f32 where activations have a zero point; use sign = \"s8\"",
    ),
    EngineRule(
        "openvino-block-weights", _OV, ("int8",), _STATIC,
        "weight_scales == 'block'",
        "OpenVINO 2026.4 computes in f32 where int8 weights in blocks meet quantized activations",
    ),
    EngineRule(
        "openvino-weight-only-operators", _OV, _INT, _WEIGHT_ONLY,
        "op_type in ('Conv', 'ConvTranspose') or weight_on_left or rank > 2",
        "OpenVINO 2026.4 keeps weights compressed for two-dimensional MatMul and Gemm only; others "
        "are f32 before the product",
    ),
    EngineRule(
        "tensorrt-zero-point", _TRT, ("int8",), _STATIC,
        "sign == 'u8' or zero_point == 'asymmetric'",
        "TensorRT's quantization is symmetric with signed values (TensorRT 11 documentation, "
        "Working with Quantized Types)",
    ),
    EngineRule(
        "tensorrt-fp8-grouped", _TRT, _FP8, _ALL,
        "op_type in ('Conv', 'ConvTranspose') and groups > 1",
        "no optimized FP8 kernels for grouped and depthwise convolutions (TensorRT 10.13 release "
        "notes, limitations; NVIDIA/TensorRT#4524)",
    ),
    EngineRule(
        "tensorrt-fp8-stem", _TRT, _FP8, _ALL,
        "op_type == 'Conv' and in_channels <= 4",
        "no FP8 implementation for a first convolution of 3 channels (NVIDIA/TensorRT#3987)",
    ),
    EngineRule(
        "tensorrt-fp8-channels", _TRT, _FP8, _ALL,
        "op_type == 'Conv' and (in_channels % 16 != 0 or out_channels % 16 != 0)",
        "FP8 convolutions take channels in multiples of 16; Model Optimizer 0.47 leaves out those "
        "with fewer than 16 (NVIDIA/TensorRT#3987)",
    ),
    EngineRule(
        "tensorrt-fp8-kernel", _TRT, _FP8, _ALL,
        "op_type == 'Conv' and kernel_area > 32",
        "FP8 convolutions have no kernels of over 32 positions, such as 7x7 (TensorRT 10.13 "
        "release notes, limitations)",
    ),
)  # fmt: skip


def rule_against(
    engine: str, site: Site, quantize: Quantize, ignore: Collection[str] = ()
) -> EngineRule | None:
    """The first rule that says that ``engine`` does not run ``site`` natively, or None.

    Args:
        engine: its name; one without rules of its own has those of every engine.
        site: the site.
        quantize: how it would be quantized, resolved: with no ``auto`` left.
        ignore: ids of rules that do not count.
    """
    scheme = "weight_only" if FORMATS[quantize.format].weights_only else quantize.scheme
    values = site_values(site) | _entry_values(quantize)
    for rule in RULES:
        applies = (
            rule.id not in ignore
            and ("*" in rule.engines or engine in rule.engines)
            and quantize.format in rule.formats
            and scheme in rule.schemes
        )
        if applies and _condition(rule.where).holds(values):
            return rule
    return None


def excluded(
    engine: str, pairs: Sequence[tuple[Site, Quantize]], ignore: Collection[str] = ()
) -> dict[str, str]:
    """The sites that a rule leaves out, by id, each with ``rule <id>: <reason>``.

    Rules whose ids are in ``ignore`` leave none out.

    Of an attention all products are left out where one is: an attention of which a part is
    quantized loses its fused kernel and gains the conversions.
    """
    found = {site.id: rule_against(engine, site, entry, ignore) for site, entry in pairs}
    scopes = {site.scope: found[site.id] for site, _ in reversed(pairs) if found[site.id]}
    left_out = {}
    for site, _ in pairs:
        rule = found[site.id] or (scopes.get(site.scope) if site.scope else None)
        if rule is not None:
            left_out[site.id] = f"rule {rule.id}: {rule.reason}"
    return left_out


def _entry_values(quantize: Quantize) -> dict[str, Any]:
    weights, fixed = quantize.weights, FORMATS[quantize.format].block
    return {
        "weight_scales": weights.kind,
        "activation_scales": quantize.activations.kind,
        "block": weights.size if isinstance(weights, PerBlock) else fixed or 0,
        "sign": quantize.sign,
        "zero_point": quantize.zero_point,
        "placement": quantize.placement,
    }


@cache
def _condition(where: str) -> Expression:
    return compile_expression(where, {**SITE_NAMES, **ENTRY_NAMES})
