"""The hash of a resolved recipe: what is quantized, how, and for which engine and options."""

from __future__ import annotations

from typing import Any

from bitworth.record.schema import CellFacts, VariantFacts
from bitworth.record.store import canonical, sha256

#: What a cell tells of its options that is no option of the engine by that name.
_TOLD = ("threads", "optimization", "streams")
#: Version of what the hash is of.
IDENTITY = 1


def recipe_sha256(variant: VariantFacts, cell: CellFacts) -> str:
    """The hash of a variant's recipe in its cell; sites, scales, engine, version and options."""
    extra = {k: v for k, v in cell.options.items() if k not in _TOLD}
    return identity_sha256(
        variant,
        cell.engine,
        cell.version,
        threads=cell.threads,
        optimization=cell.options.get("optimization", "all"),
        streams=cell.streams,
        extra={**extra, **variant.options},
    )


def identity_sha256(
    variant: VariantFacts,
    engine: str,
    version: str,
    *,
    threads: int,
    optimization: str,
    streams: int,
    extra: dict[str, str],
) -> str:
    """The hash of a variant's recipe under these options of this engine."""
    recipe = variant.recipe
    identity: dict[str, Any] = {
        "sites": [s.model_dump(mode="json") for s in variant.sites],
        "scalings": variant.scalings,
        "rescaled": [r.model_dump(mode="json") for r in variant.rescaled],
        "everywhere": variant.everywhere,
        "base": recipe.base if recipe is not None else "fp32",
        "kept": variant.kept,
        "engine": engine,
        "version": version,
        "threads": threads,
        "options": extra,
        # What an older record has not said was so.
        **({"streams": streams} if streams > 1 else {}),
        **({"optimization": optimization} if optimization != "all" else {}),
    }
    return sha256(canonical(identity))
