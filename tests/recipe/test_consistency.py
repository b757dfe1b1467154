"""What a recipe may combine, and what follows from a format alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitworth.recipe import (
    FORMATS,
    PER_CHANNEL,
    PER_ROW,
    PER_TENSOR,
    Calibrator,
    PerBlock,
    Quantize,
)
from bitworth.recipe.consistency import (
    engine_hint,
    fault,
    natural_activations,
    natural_scheme,
    natural_weights,
    needs_ranges,
    support_key,
)

QUANTIZED = [f.name for f in FORMATS.values() if f.role == "quantized"]


def natural(name: str) -> Quantize:
    return Quantize(
        group="all",
        format=name,
        weights=natural_weights(name),
        activations=natural_activations(name),
        scheme=natural_scheme(name),
    )


@pytest.mark.parametrize("name", QUANTIZED)
def test_what_follows_from_a_format_alone_is_consistent(name: str) -> None:
    assert fault(natural(name)) is None
    assert fault(replace(natural(name), scheme="weight_only")) is None
    assert support_key(name, natural_scheme(name)) == name


def test_schemes_other_than_a_formats_own_have_a_support_of_their_own() -> None:
    assert support_key("int8", "dynamic") == "int8 dynamic"
    assert support_key("nvfp4", "weight_only") == "nvfp4 weight_only"
    assert support_key("int4", "weight_only") == "int4"


def test_only_what_has_static_numbers_needs_ranges() -> None:
    assert [name for name in QUANTIZED if needs_ranges(natural(name))] == [
        "int8", "fp8_e4m3", "fp8_e5m2", "nvfp4",
    ]  # fmt: skip
    int8 = replace(natural("int8"), scheme="dynamic")
    assert not needs_ranges(int8)
    assert needs_ranges(replace(int8, smooth=0.5))


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("fp32", {}, "does not quantize"),
        ("int4", {"scheme": "static"}, "weights alone"),
        ("nvfp4", {"weights": PER_CHANNEL}, "blocks of 16"),
        ("mxfp8", {"weights": PerBlock(16)}, "blocks of 32"),
        ("mxfp8", {"scheme": "static"}, "at run time"),
        ("fp8_e4m3", {"activations": PER_ROW}, "dynamic_per_row"),
        ("mxfp8", {"activations": PER_ROW, "scheme": "dynamic"}, "blocks of 32"),
        ("int8", {"scheme": "weight_only", "calibrator": Calibrator("mse")}, "no static scale"),
        ("fp8_e4m3", {"calibrator": Calibrator("entropy")}, "use mse"),
        ("int8", {"scheme": "weight_only", "smooth": 0.5}, "smooth_quant"),
        ("int8", {"equalize": True, "calibrator": Calibrator("mse")}, "max"),
        ("int8", {"equalize": True, "smooth": 0.5}, "choose one"),
        ("int8", {"activations": PER_CHANNEL, "scheme": "dynamic"}, "static scales"),
        ("fp8_e4m3", {"sign": "u8"}, "sign is for int8"),
        ("fp8_e4m3", {"zero_point": "symmetric"}, "zero_point is for int8"),
        ("fp8_e4m3", {"weight_range": "full"}, "weight_range is for int8"),
        ("int8", {"scheme": "dynamic", "sign": "u8"}, "static scales"),
        ("int8", {"scheme": "dynamic", "placement": "after_activation"}, "placement"),
    ],
)
def test_a_contradiction_is_told_with_what_to_do(
    name: str, changes: dict[str, object], told: str
) -> None:
    base = natural(name) if name in QUANTIZED else Quantize(group="all", format=name)
    found = fault(replace(base, **changes))  # type: ignore[arg-type]
    assert found is not None
    assert told in found
    assert "\n" not in found


def test_granularities_of_weights_are_free_where_the_format_has_no_blocks() -> None:
    for weights in (PER_TENSOR, PER_CHANNEL, PerBlock(64)):
        assert fault(replace(natural("int8"), weights=weights)) is None
        assert fault(replace(natural("int4"), weights=weights)) is None


def test_fp16_is_in_the_graph_and_bf16_is_a_hint() -> None:
    assert [engine_hint(base) for base in ("fp32", "fp16", "bf16")] == ["fp32", "fp32", "bf16"]
