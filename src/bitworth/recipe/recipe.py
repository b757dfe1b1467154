"""A recipe: which groups get which format, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bitworth.recipe.granularity import PER_CHANNEL, PER_TENSOR, Granularity, PerTensor

Sign = Literal["auto", "s8", "u8", "by_range"]
ZeroPoint = Literal["auto", "symmetric", "asymmetric"]
Placement = Literal["auto", "before_activation", "after_activation", "input_only"]
WeightRange = Literal["auto", "full", "reduced"]


@dataclass(frozen=True)
class Calibrator:
    """How a tensor's range is taken from its calibration statistics.

    Attributes:
        name: ``max`` takes the extremes seen; ``percentile`` cuts the tails.
        percentile: for ``percentile``, the share of values kept, in percent.
    """

    name: Literal["max", "percentile"] = "max"
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
        dequantize: base format that DequantizeLinear yields.
    """

    group: str
    format: str
    weights: Granularity = PER_CHANNEL
    activations: PerTensor = PER_TENSOR
    sign: Sign = "auto"
    zero_point: ZeroPoint = "auto"
    weight_range: WeightRange = "auto"
    calibrator: Calibrator = field(default_factory=Calibrator)
    placement: Placement = "auto"
    fused: tuple[str, ...] | None = None
    dequantize: Literal["fp32"] = "fp32"


@dataclass(frozen=True)
class Recipe:
    """A base precision, and the groups that leave it.

    Attributes:
        base: the precision of everything that no group quantizes.
        quantize: one entry a group; a site in several groups follows the last that names it.
    """

    base: str = "fp32"
    quantize: tuple[Quantize, ...] = ()
