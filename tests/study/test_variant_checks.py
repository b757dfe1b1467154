"""What a ``[[variant]]`` may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitworth.errors import UserError
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, PerBlock
from bitworth.study.sections import VariantConfig
from bitworth.study.variant_checks import check_variant, expanded
from bitworth.study.variants import recipe_of

STUDY = Path("study.toml")


def variant(**keys: Any) -> VariantConfig:
    return VariantConfig(name="v", **keys)


def test_what_a_variant_leaves_out_follows_from_its_format() -> None:
    (int8,) = recipe_of(variant(format="int8")).quantize
    assert (int8.weights, int8.activations, int8.scheme) == (PER_CHANNEL, PER_TENSOR, "static")
    (int4,) = recipe_of(variant(format="int4")).quantize
    assert (int4.weights, int4.scheme) == (PerBlock(32), "weight_only")
    (wide,) = recipe_of(variant(format="int4", block=128)).quantize
    assert wide.weights == PerBlock(128)
    (whole,) = recipe_of(variant(format="int4", weights="per_channel")).quantize
    assert whole.weights == PER_CHANNEL
    (nvfp4,) = recipe_of(variant(format="nvfp4")).quantize
    assert (nvfp4.weights, nvfp4.activations, nvfp4.scheme) == (
        PerBlock(16),
        PerBlock(16),
        "dynamic",
    )
    (only,) = recipe_of(variant(format="nvfp4", activations="none")).quantize
    assert only.scheme == "weight_only"


def test_a_list_of_calibrators_stands_for_a_variant_each() -> None:
    one = variant(format="int8", calibrators=("max", "percentile", "mse"), percentile=99.9)
    found = expanded([one, variant(format="fp8_e4m3")])
    assert [v.name for v in found] == ["v (max)", "v (percentile 99.9)", "v (mse)", "v"]
    assert [v.calibrator for v in found] == ["max", "percentile", "mse", "max"]
    assert [v.percentile for v in found[:3]] == [99.99, 99.9, 99.99]
    for each in found:
        assert each.calibrators == ()
        check_variant(each, {"all"}, STUDY)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "has no format"),
        ({"source": "file"}, "no path"),
        ({"format": "bf16", "groups": ("conv",)}, "leave groups out"),
        ({"format": "fp16", "weights": "per_tensor"}, "weights is for quantized sites"),
        ({"format": "fp16", "calibrator": "mse"}, "calibrator is for quantized sites"),
        ({"format": "int8", "block": 32}, 'block is for weights = "block"'),
        ({"format": "int8", "weights": "block"}, "add block = 32"),
        ({"format": "int8", "keep_fp32": ("Softmax",)}, 'add base = "fp16"'),
        ({"format": "int8", "percentile": 99.9}, 'calibrator = "percentile"'),
        ({"format": "fp8_e4m3", "sign": "s8"}, "sign is for int8"),
        ({"format": "int8", "groups": ("cnov",)}, "did you mean 'conv'?"),
    ],
)
def test_a_mistake_is_told_by_its_key(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match="variant 'v'") as caught:
        check_variant(variant(**keys), {"all", "conv"}, STUDY)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_the_studys_own_are_reserved() -> None:
    with pytest.raises(UserError, match="reserved"):
        check_variant(VariantConfig(name="baseline", format="int8"), {"all"}, STUDY)
