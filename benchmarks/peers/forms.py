"""The runs that are compared: which peer, which method, and Bitworth's recipe of the same form."""

from __future__ import annotations

from dataclasses import dataclass

from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Calibrator, Quantize

MODELS = ("detector", "recogniser", "efficientnet", "minilm")


@dataclass(frozen=True)
class Form:
    """One way to quantize, and what each side makes of it.

    Attributes:
        peer: modelopt or onnxruntime.
        method: what the peer's script is told.
        recipe: Bitworth's entry of the same form: sign, zero point, granularity and calibrator
            are the peer's; where a site's output is quantized is Bitworth's own choice.
        their_rule, our_rule: names of rules in causes.RULES: how each side makes a scale.
    """

    peer: str
    method: str
    recipe: Quantize
    their_rule: str
    our_rule: str

    @property
    def name(self) -> str:
        """Short and unique: part of file names."""
        return f"{self.peer}.{self.method}"


MAX = Calibrator("max")
_ENTROPY = Calibrator("entropy")


def _recipe(
    format: str = "int8",  # noqa: A002
    *,
    calibrator: Calibrator = MAX,
    symmetric: bool = True,
    per_channel: bool = True,
    fused: tuple[str, ...] | None = None,
) -> Quantize:
    return Quantize(
        group="all",
        format=format,
        weights=PER_CHANNEL if per_channel else PER_TENSOR,
        sign="s8",
        zero_point="symmetric" if symmetric else "asymmetric",
        weight_range="full",
        calibrator=calibrator,
        placement="after_activation",
        fused=fused,
        shared=(),
    )


#: What onnxruntime fuses behind a Conv in 8 bits.
_ORT = ("Relu", "Clip")

FORMS = (
    Form("modelopt", "int8_max", _recipe(), "symmetric", "symmetric"),
    Form(
        "modelopt",
        "int8_entropy",
        _recipe(calibrator=_ENTROPY),
        "symmetric entropy, 128 bins by sample",
        "symmetric entropy",
    ),
    Form("modelopt", "fp8_max", _recipe("fp8_e4m3"), "fp8 inverted", "fp8"),
    Form(
        "onnxruntime",
        "int8_max",
        _recipe(symmetric=False, per_channel=False, fused=_ORT),
        "asymmetric",
        "asymmetric",
    ),
    Form(
        "onnxruntime",
        "int8_max_per_channel",
        _recipe(symmetric=False, fused=_ORT),
        "asymmetric",
        "asymmetric",
    ),
    Form("onnxruntime", "int8_max_symmetric", _recipe(fused=_ORT), "symmetric", "symmetric"),
    Form(
        "onnxruntime",
        "int8_entropy",
        _recipe(symmetric=False, calibrator=_ENTROPY, fused=_ORT),
        "asymmetric entropy, 128 bins",
        "asymmetric entropy",
    ),
    Form("onnxruntime", "fp8", _recipe("fp8_e4m3", per_channel=False), "fp8 deviation", "fp8"),
)
