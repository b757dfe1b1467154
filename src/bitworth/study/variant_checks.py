"""What a ``[[variant]]`` may say, and the variants that a list of calibrators stands for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

from bitworth.errors import UserError
from bitworth.recipe.consistency import fault
from bitworth.recipe.eligibility import RULES
from bitworth.study.sections import FreeWinConfig, VariantConfig
from bitworth.study.variants import BASES, recipe_of

#: Names that a study gives itself.
RESERVED = ("baseline", "baseline again", "reference", "as given", "with denormal weights")
#: Keys that say how sites are quantized, which a base precision has not.
_OF_QUANTIZED = (
    "weights", "block", "activations", "sign", "zero_point", "weight_range", "placement", "shared",
    "residual", "calibrator", "percentile", "smooth_quant", "smooth_insert", "equalize", "base",
    "dequantize", "ignore_rules",
)  # fmt: skip

_KEPT: float = VariantConfig.model_fields["percentile"].default


def expanded(variants: Iterable[VariantConfig]) -> tuple[VariantConfig, ...]:
    """The variants with one for each of a list of calibrators, named after it."""
    found: list[VariantConfig] = []
    for variant in variants:
        if not variant.calibrators:
            found.append(variant)
        found += [
            variant.model_copy(
                update={
                    "name": f"{variant.name} ({_told(variant, calibrator)})",
                    "calibrator": calibrator,
                    "calibrators": (),
                    "percentile": variant.percentile if calibrator == "percentile" else _KEPT,
                }
            )
            for calibrator in dict.fromkeys(variant.calibrators)
        ]
    return tuple(found)


def check_variant(variant: VariantConfig, groups: Collection[str], path: Path) -> None:
    """Refuse a variant that contradicts itself or names no group.

    Raises:
        UserError: naming the file, the variant and the key.
    """
    where = f"{path}: variant '{variant.name}'"
    if variant.name in RESERVED:
        raise UserError(f"{path}: variant name '{variant.name}' is reserved; choose another")
    if variant.source == "file":
        if variant.path is None:
            raise UserError(f'{where} has source = "file" but no path')
        return
    if variant.format is None:
        raise UserError(f'{where} has no format; add format = "int8"')
    if variant.format in BASES:
        _check_precision(variant, where)
    else:
        _check_quantized(variant, where)
    for key, used, known in (
        ("group", variant.groups, groups),
        # What holds for every engine has no other form: it cannot be ignored.
        ("rule", variant.ignore_rules, {r.id for r in RULES if "*" not in r.engines}),
    ):
        for name in used:
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), n=1)
                hint = (
                    f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"
                )
                raise UserError(f"{where} names no {key} '{name}'; {hint}")


def check_free_win(change: FreeWinConfig, path: Path) -> None:
    """Refuse a change to the baseline that changes nothing, or has a name that is taken.

    Raises:
        UserError: naming the file, the change and the key.
    """
    if change.name in RESERVED:
        raise UserError(f"{path}: free_win name '{change.name}' is reserved; choose another")
    if change.threads is None and change.optimization is None and not change.options:
        raise UserError(
            f"{path}: free_win '{change.name}' changes nothing; give it threads, optimization or "
            "options"
        )


def _check_precision(variant: VariantConfig, where: str) -> None:
    if variant.format == "fp32" and not variant.options:
        raise UserError(
            f'{where} is the baseline; give it options = {{ KEY = "VALUE" }}, or another format'
        )
    if variant.groups != ("all",):
        raise UserError(
            f"{where}: {variant.format} is a precision of the whole model here; leave groups out "
            "(keep_fp32 names what stays in fp32)"
        )
    fields = VariantConfig.model_fields
    for key in _OF_QUANTIZED:
        if getattr(variant, key) != fields[key].default:
            raise UserError(
                f"{where}: {key} is for quantized sites, which {variant.format} has not"
            )


def _check_quantized(variant: VariantConfig, where: str) -> None:
    if variant.block is not None and variant.weights != "block" and variant.format != "int4":
        raise UserError(f'{where}: block is for weights = "block"; add that or leave it out')
    if variant.block is None and variant.weights == "block" and variant.format != "int4":
        raise UserError(f'{where}: weights = "block" needs its size; add block = 32')
    if variant.keep_fp32 and variant.base == "fp32":
        raise UserError(f'{where}: keep_fp32 is for a 16-bit base; add base = "fp16"')
    if variant.percentile != _KEPT and variant.calibrator != "percentile":
        raise UserError(f'{where}: percentile is for calibrator = "percentile"; set it')
    for entry in recipe_of(variant).quantize:
        if (what := fault(entry)) is not None:
            raise UserError(f"{where}: {what}")


def _told(variant: VariantConfig, calibrator: str) -> str:
    return f"percentile {variant.percentile:g}" if calibrator == "percentile" else calibrator
