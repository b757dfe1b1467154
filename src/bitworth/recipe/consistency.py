"""What a recipe may combine: formats, schemes, granularities and calibrators that make sense."""

from __future__ import annotations

from bitworth.recipe.formats import FORMATS, format_named
from bitworth.recipe.granularity import PER_CHANNEL, PER_ROW, PER_TENSOR, Granularity, PerBlock
from bitworth.recipe.recipe import Quantize, Scheme

#: Elements that share a scale where a recipe asks for blocks of int4 and gives no size.
INT4_BLOCK = 32


def natural_scheme(format_name: str) -> Scheme:
    """Where the activations' scales of a format come from unless a recipe says otherwise."""
    known = format_named(format_name)
    if known.weights_only:
        return "weight_only"
    return "static" if known.block is None else "dynamic"


def support_key(format_name: str, scheme: Scheme) -> str:
    """Under which name an engine states its support: ``int8``, ``int8 dynamic``, ``int4``, ..."""
    return format_name if scheme == natural_scheme(format_name) else f"{format_name} {scheme}"


def natural_weights(format_name: str) -> Granularity:
    """The granularity of weight scales unless a recipe says otherwise."""
    known = format_named(format_name)
    if known.block is not None:
        return PerBlock(known.block)
    return PerBlock(INT4_BLOCK) if format_name == "int4" else PER_CHANNEL


def natural_activations(format_name: str) -> Granularity:
    """The granularity of activation scales unless a recipe says otherwise."""
    block = format_named(format_name).block
    return PER_TENSOR if block is None else PerBlock(block)


def engine_hint(base: str) -> str:
    """The precision that an engine is told for a base: fp16 is in the graph's own types."""
    return "bf16" if base == "bf16" else "fp32"


def needs_ranges(quantize: Quantize) -> bool:
    """Whether scales follow from ranges that calibration has to observe."""
    if quantize.scheme == "static" or quantize.smooth is not None:
        return True
    # The one number above the scales of nvfp4's activation blocks is static.
    return quantize.scheme == "dynamic" and quantize.format == "nvfp4"


def fault(quantize: Quantize) -> str | None:
    """What in an entry contradicts itself, and what to do; None when nothing does."""
    entry, name = quantize, quantize.format
    if name not in FORMATS or FORMATS[name].role != "quantized":
        return f"format '{name}' does not quantize; use one that does"
    known = FORMATS[name]
    if known.weights_only and entry.scheme != "weight_only":
        return f'{name} is for weights alone; set activations = "none" or leave it out'
    if known.block is not None:
        if entry.weights != PerBlock(known.block):
            return f"{name} has blocks of {known.block}; leave weights and block out"
        if entry.scheme == "static":
            return (
                f"{name} takes the scales of activation blocks at run time; set activations = "
                '"dynamic" or "none"'
            )
    if entry.scheme == "dynamic" and name == "int8" and isinstance(entry.weights, PerBlock):
        return "int8 activations at run time need weights with one scale or one a channel"
    if entry.activations == PER_ROW and entry.scheme != "dynamic":
        return 'a scale for each row is taken at run time; set activations = "dynamic_per_row"'
    if entry.activations == PER_ROW and known.block is not None:
        return f"{name} has blocks of {known.block} of its own; leave activations out"
    return _calibration_fault(entry) or _int8_fault(entry)


def onnx_fault(entry: Quantize) -> str | None:
    """What in an entry no ONNX operator expresses; None when all of it has one."""
    if entry.activations == PER_ROW:
        return "a scale for each row at run time has no operator in ONNX; torch computes it"
    if entry.scheme == "dynamic" and entry.format in ("fp8_e4m3", "fp8_e5m2"):
        return "FP8 scales at run time have no operator in ONNX; torch computes them"
    return None


def _calibration_fault(entry: Quantize) -> str | None:
    if entry.calibrator.name != "max" and entry.scheme != "static":
        return f"calibrator {entry.calibrator.name} has no static scale to choose; leave it out"
    if entry.calibrator.name == "entropy" and entry.format != "int8":
        return f"entropy compares histograms of equal steps, which {entry.format} has not; use mse"
    moved = "smooth_quant" if entry.smooth is not None else "equalize" if entry.equalize else ""
    if moved and entry.scheme == "weight_only":
        return (
            f"{moved} makes activations easier to quantize, and they are left alone; leave it out"
        )
    if moved and entry.calibrator.name != "max":
        return (
            f"{moved} changes the channels of a tensor, of which only the extremes are known; use "
            'calibrator = "max"'
        )
    if entry.smooth_insert and entry.smooth is None:
        return "smooth_insert is for SmoothQuant; add smooth_quant = 0.5"
    if entry.smooth is not None and entry.equalize:
        return "smooth_quant and equalize move the same ranges; choose one"
    if entry.activations == PER_CHANNEL and entry.scheme != "static":
        return 'activations = "per_channel" needs static scales'
    return None


def _int8_fault(entry: Quantize) -> str | None:
    if entry.format != "int8":
        for key, value in (("sign", entry.sign), ("zero_point", entry.zero_point)):
            if value != "auto":
                return f"{key} is for int8 activations; leave it out"
        if entry.weight_range != "auto":
            return "weight_range is for int8 weights; leave it out"
    elif entry.scheme != "static":
        for key, value in (("sign", entry.sign), ("zero_point", entry.zero_point)):
            if value != "auto":
                return f"{key} is for static scales; leave it out"
    if entry.scheme != "static" and entry.placement not in ("auto", "input_only"):
        return "placement is for static scales, which outputs have; leave it out"
    return None
