"""What to quantize: formats, granularity, sites, groups and recipes. Pure data."""

from bitworth.recipe.formats import FORMATS, Format, format_named
from bitworth.recipe.granularity import (
    PER_CHANNEL,
    PER_ROW,
    PER_TENSOR,
    Granularity,
    PerBlock,
    PerChannel,
    PerRow,
    PerTensor,
)
from bitworth.recipe.recipe import Calibrator, Quantize, Recipe
from bitworth.recipe.site import Site

__all__ = [
    "FORMATS",
    "PER_CHANNEL",
    "PER_ROW",
    "PER_TENSOR",
    "Calibrator",
    "Format",
    "Granularity",
    "PerBlock",
    "PerChannel",
    "PerRow",
    "PerTensor",
    "Quantize",
    "Recipe",
    "Site",
    "format_named",
]
