"""What the recipe table says of schemes, blocks and bases."""

from __future__ import annotations

import pytest

from bitworth.recipe import PER_CHANNEL, PER_TENSOR, PerBlock, Quantize, Recipe
from bitworth.record.schema import Record
from bitworth.record.tables_facts import recipe_table

INT8 = Quantize(
    "all", "int8", sign="u8", zero_point="asymmetric", weight_range="full", placement="input_only"
)


def shown(record: Record, recipe: Recipe) -> list[str]:
    """The row of the first cell's first quantized variant, were this its recipe."""
    cell = record.facts.cells[0]
    at = next(i for i, v in enumerate(cell.variants) if v.recipe and v.recipe.quantize)
    variants = list(cell.variants)
    variants[at] = variants[at].model_copy(update={"recipe": recipe})
    cells = (cell.model_copy(update={"variants": tuple(variants)}), *record.facts.cells[1:])
    facts = record.facts.model_copy(update={"cells": cells})
    table = recipe_table(record.model_copy(update={"facts": facts}), 0)
    return [part.text for part in table.rows[at]]


@pytest.mark.parametrize(
    ("recipe", "base", "weights", "activations", "zero_point", "calibrator"),
    [
        (
            Recipe(quantize=(INT8,)),
            "fp32", "per_channel, full range", "per_tensor, u8", "asymmetric", "max",
        ),
        (
            Recipe("fp16", (Quantize("all", "int8", scheme="weight_only", dequantize="fp32",
                                     weight_range="full"),), ("Softmax", "LayerNormalization")),
            "fp16 but for Softmax, LayerNormalization, sites in fp32",
            "per_channel, full range", "left alone", "–", "–",
        ),
        (
            Recipe(quantize=(Quantize("all", "nvfp4", PerBlock(16), PerBlock(16), "dynamic"),)),
            "fp32", "block of 16", "block of 16, dynamic", "–", "max",
        ),
        (
            Recipe(quantize=(Quantize("all", "int8", PER_TENSOR, scheme="dynamic", smooth=0.5,
                                      smooth_insert=True, weight_range="reduced"),)),
            "fp32", "per_tensor, reduced range", "per_tensor, dynamic", "–",
            "max, SmoothQuant 0.5 with multiplications",
        ),
        (
            Recipe(quantize=(Quantize("all", "fp8_e4m3", PER_CHANNEL, PER_CHANNEL,
                                      equalize=True),)),
            "fp32", "per_channel", "per_channel", "–", "max, equalized",
        ),
    ],
)  # fmt: skip
def test_a_row_says_what_the_recipe_does(
    record: Record,
    recipe: Recipe,
    base: str,
    weights: str,
    activations: str,
    zero_point: str,
    calibrator: str,
) -> None:
    row = shown(record, recipe)
    assert row[1] == base
    assert row[4:8] == [weights, activations, zero_point, calibrator]
