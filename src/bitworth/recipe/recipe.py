"""A recipe: which groups get which format, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bitworth.recipe.granularity import PER_CHANNEL, PER_TENSOR, Granularity

Sign = Literal["auto", "s8", "u8", "by_range"]
ZeroPoint = Literal["auto", "symmetric", "asymmetric"]
Placement = Literal["auto", "before_activation", "after_activation", "input_only"]
WeightRange = Literal["auto", "full", "reduced"]
Scheme = Literal["static", "dynamic", "weight_only"]
CalibratorName = Literal["max", "percentile", "entropy", "mse"]
BasePrecision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Calibrator:
    """How a tensor's range is taken from its calibration statistics.

    Attributes:
        name: ``max`` takes the extremes seen; ``percentile`` cuts the tails; ``entropy`` the range
            whose quantized distribution is closest to the tensor's (Kullback-Leibler); ``mse`` the
            range with the smallest mean squared error.
        percentile: for ``percentile``, the share of values kept, in percent.
    """

    name: CalibratorName = "max"
    percentile: float = 99.99


@dataclass(frozen=True)
class Quantize:
    """How the sites of one group are quantized.

    ``auto`` leaves a choice to the engine's stated preference (``recipe.rules``); a resolved recipe
    has no ``auto`` left.

    Attributes:
        group: name of the group.
        format: a quantized format's name.
        weights: granularity of the weight scales.
        activations: granularity of the activation scales.
        scheme: where the activations' scales come from: ``static`` from calibration, ``dynamic``
            from the values at run time, ``weight_only``: activations are not quantized.
        sign: int8 activations: ``s8``, ``u8``, or ``by_range`` (u8 where a tensor is never
            negative, else s8).
        zero_point: int8 activations: ``symmetric`` (s8: zero point 0; u8: 0 for a tensor that is
            never negative, else 128) or ``asymmetric`` (from minimum and maximum).
        weight_range: int8 weights: ``full`` (-127..127) or ``reduced`` (-63..63, for CPUs whose
            8-bit dot product saturates its 16-bit sums).
        calibrator: how ranges are taken from the statistics.
        placement: where a site's output is quantized: right behind it (``before_activation``),
            behind the activation function that the engine fuses (``after_activation``), or not at
            all (``input_only``).
        fused: for ``after_activation``, the activation functions that the engine fuses; in front
            of any other the output is quantized; None: it fuses all. Part of the preference.
        shared: operators that want all their quantized inputs under one scale (Add, Concat); None
            leaves it to the preference.
        residual: operators that add in the format (Add): of a shortcut around quantized sites the
            engine gets the quantized value too; None leaves it to the preference.
        smooth: SmoothQuant's alpha, 0..1: how much of the activations' outlier channels moves into
            the weights; None: nothing is moved.
        smooth_insert: whether a multiplication is put in front of sites where no operation before
            them can take SmoothQuant's factors for free.
        equalize: whether weight ranges are equalized across a Conv/Conv or Norm/Linear pair.
        dequantize: float type that DequantizeLinear yields and that a site therefore computes in;
            ``base`` is the recipe's base precision.
    """

    group: str
    format: str
    weights: Granularity = PER_CHANNEL
    activations: Granularity = PER_TENSOR
    scheme: Scheme = "static"
    sign: Sign = "auto"
    zero_point: ZeroPoint = "auto"
    weight_range: WeightRange = "auto"
    calibrator: Calibrator = field(default_factory=Calibrator)
    placement: Placement = "auto"
    fused: tuple[str, ...] | None = None
    shared: tuple[str, ...] | None = None
    residual: tuple[str, ...] | None = None
    smooth: float | None = None
    smooth_insert: bool = False
    equalize: bool = False
    dequantize: Literal["base"] | BasePrecision = "base"


@dataclass(frozen=True)
class Recipe:
    """A base precision, and the groups that leave it.

    Attributes:
        base: the precision of everything that no group quantizes.
        quantize: one entry a group; a site in several groups follows the last that names it.
        keep_fp32: under a 16-bit base, operators and node name patterns that stay in fp32.
    """

    base: str = "fp32"
    quantize: tuple[Quantize, ...] = ()
    keep_fp32: tuple[str, ...] = ()
