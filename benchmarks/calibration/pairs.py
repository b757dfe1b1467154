"""The sixteen variants, and the call of quantize_static that each is compared with.

`equal`: the same sites, formats, granularity and kind of calibrator. `nearest`: a call that comes
close, and what differs. `none`: nothing comes close; a plain int8 call stands in, the cheapest that
there is, so that the sixteen are compared with sixteen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Calibrator, Granularity, Quantize, Recipe
from bitworth.recipe.granularity import PerBlock

Likeness = Literal["equal", "nearest", "none"]
CONV = ("Conv",)
MATMUL = ("MatMul", "Gemm")
#: Operators of each group of sites.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": (*CONV, *MATMUL),
    "conv": CONV,
    "matmul": MATMUL,
}
#: What quantize_static leaves out as well: products of two activations.
_SITES_ONLY = {"MatMulConstBOnly": True}
_SYMMETRIC = {**_SITES_ONLY, "ActivationSymmetric": True}


@dataclass(frozen=True)
class Call:
    """One call of quantize_static, in plain words: enumerations by name.

    Attributes:
        ops: operators to quantize.
        activation, weight: names of ``QuantType``.
        method: name of ``CalibrationMethod``.
        per_channel: as the argument.
        options: ``extra_options``.
        opset: of the model that it is given.
    """

    ops: tuple[str, ...] = GROUPS["all"]
    activation: str = "QUInt8"
    weight: str = "QInt8"
    method: str = "MinMax"
    per_channel: bool = True
    options: Mapping[str, Any] = field(default_factory=lambda: dict(_SITES_ONLY))
    opset: int = 17

    @property
    def ranges(self) -> str:
        """Calls with the same key can share one cache of ranges."""
        percentile = self.options.get("CalibPercentile", "")
        return f"{self.method.lower()}{percentile}-{self.opset}"


@dataclass(frozen=True)
class Pair:
    """A variant and its counterpart.

    Attributes:
        name: of the variant.
        entry: its recipe's only entry; its group is one of ``GROUPS``.
        call: of quantize_static.
        likeness: how near the call comes.
        differs: what differs, for a call that is not equal.
    """

    name: str
    entry: Quantize
    call: Call
    likeness: Likeness = "equal"
    differs: str = ""

    @property
    def recipe(self) -> Recipe:
        return Recipe(quantize=(self.entry,))


_MAX, _ENTROPY, _MSE = Calibrator("max"), Calibrator("entropy"), Calibrator("mse")


def _u8(group: str, calibrator: Calibrator = _MAX) -> Quantize:
    return Quantize(
        group, "int8", PER_CHANNEL, sign="u8", zero_point="asymmetric", weight_range="full",
        calibrator=calibrator,
    )  # fmt: skip


def _s8(calibrator: Calibrator = _MAX, weights: Granularity = PER_CHANNEL) -> Quantize:
    return Quantize(
        "all", "int8", weights, sign="s8", zero_point="symmetric", weight_range="full",
        calibrator=calibrator,
    )  # fmt: skip


def _percentile(kept: float) -> Pair:
    return Pair(
        f"int8 u8, all, percentile {kept:g}",
        _u8("all", Calibrator("percentile", kept)),
        Call(method="Percentile", options={**_SITES_ONLY, "CalibPercentile": kept}),
    )


_NO_MSE = "it has no mse calibrator"
_WEIGHT_ONLY = "it always quantizes activations too"
_FP8 = Call(
    activation="QFLOAT8E4M3FN", weight="QFLOAT8E4M3FN", method="Distribution", per_channel=False,
    opset=19,
)  # fmt: skip

PAIRS: tuple[Pair, ...] = (
    Pair("int8 u8, all, max", _u8("all"), Call()),
    Pair("int8 s8, all, max", _s8(), Call(activation="QInt8", options=_SYMMETRIC)),
    Pair(
        "int8 s8, all, max, per tensor",
        _s8(weights=PER_TENSOR),
        Call(activation="QInt8", per_channel=False, options=_SYMMETRIC),
    ),
    Pair("int8 u8, conv, max", _u8("conv"), Call(ops=CONV)),
    Pair("int8 u8, matmul, max", _u8("matmul"), Call(ops=MATMUL)),
    _percentile(99.99),
    _percentile(99.999),
    Pair(
        "int8 s8, all, entropy",
        _s8(_ENTROPY),
        Call(activation="QInt8", method="Entropy", options=_SYMMETRIC),
    ),
    Pair(
        "int8 u8, conv, entropy",
        _u8("conv", _ENTROPY),
        Call(ops=CONV, method="Entropy"),
    ),
    Pair("int8 u8, all, mse", _u8("all", _MSE), Call(), "none", _NO_MSE),
    Pair("int8 u8, matmul, mse", _u8("matmul", _MSE), Call(ops=MATMUL), "none", _NO_MSE),
    Pair(
        "fp8, all, max, per tensor",
        Quantize("all", "fp8_e4m3", PER_TENSOR),
        _FP8,
        "nearest",
        "its FP8 scales come from a standard deviation, never from the extremes",
    ),
    Pair(
        "fp8, conv, mse",
        Quantize("conv", "fp8_e4m3", PER_CHANNEL, calibrator=_MSE),
        Call(ops=CONV),
        "none",
        "its FP8 has one calibrator and no scales per channel",
    ),
    Pair(
        "int8 weights only, all",
        Quantize("all", "int8", PER_CHANNEL, scheme="weight_only", weight_range="full"),
        Call(),
        "none",
        _WEIGHT_ONLY,
    ),
    Pair(
        "int4 weights only, matmul, blocks of 24",
        # 120 channels are summed: no multiple of 32.
        Quantize("matmul", "int4", PerBlock(24), scheme="weight_only"),
        Call(ops=MATMUL),
        "none",
        _WEIGHT_ONLY,
    ),
    Pair(
        "int4 weights only, matmul, per channel",
        Quantize("matmul", "int4", PER_CHANNEL, scheme="weight_only"),
        Call(ops=MATMUL, weight="QInt4", opset=21),
        "nearest",
        _WEIGHT_ONLY,
    ),
)


def chosen(names: tuple[str, ...]) -> tuple[Pair, ...]:
    """The pairs of these names, in order; all for none.

    Raises:
        KeyError: there is no such pair.
    """
    known = {pair.name: pair for pair in PAIRS}
    return tuple(known[name] for name in names) if names else PAIRS
