"""What was measured of this device stays in the user's cache: a study measures what is new.

A file for each engine, version, device, number of threads and set of options. ``BITWORTH_CACHE``
names another folder than the system's own for caches.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bitworth.atomic import write_atomic
from bitworth.bound.product_graph import Product, held
from bitworth.engines.base import EngineOptions
from bitworth.errors import UserError
from bitworth.record.device_profile import (
    CopyTime,
    DeviceProfile,
    ProductTime,
    read_device_profile,
)
from bitworth.record.store import canonical, sha256
from bitworth.study.context import slug
from bitworth.study.progress import Reporter
from bitworth.study.roofline_stage import LARGE, measure_device
from bitworth.study.workspace import Workspace

CACHE = "BITWORTH_CACHE"
_Shape = tuple[str, int, int, int]


def device_rates(
    workspace: Workspace,
    engine: str,
    info: dict[str, Any],
    options: EngineOptions,
    products: Sequence[Product],
    reporter: Reporter,
) -> DeviceProfile:
    """Rates of this device at ``products``; those that no earlier run measured are measured now.

    Beside them it holds the fastest product of each format, whatever measured it: that is the
    device's limit.

    Raises:
        WorkerFailed: the engine does not run the fp32 products.
    """
    path = cache_file(engine, info, options)
    known = _read(path, info)
    have = {_shape(p) for p in known.products} if known is not None else set()
    wanted = {held(p) for p in (*products, *LARGE)}
    if known is None or not {_shape(p) for p in wanted} <= have:
        new = [p for p in products if _shape(held(p)) not in have]
        found = measure_device(workspace, engine, info, options, new, reporter)
        known = add_to_cache(found, engine, info, options)
    return _of(known, {_shape(p) for p in wanted})


def add_to_cache(
    found: DeviceProfile, engine: str, info: dict[str, Any], options: EngineOptions
) -> DeviceProfile:
    """All that is known of the device, ``found`` included; it is also kept.

    A cache that cannot be written is done without: what was measured is in the record.
    """
    path = cache_file(engine, info, options)
    whole = merged(_read(path, info), found)
    with contextlib.suppress(UserError):
        write_atomic(path, whole.model_dump_json(indent=1).encode())
    return whole


def merged(old: DeviceProfile | None, new: DeviceProfile) -> DeviceProfile:
    """Both together. Of a product in both the faster measurement stays, with all its formats.

    What disturbs a measurement only adds to its time; formats of one product compare only within
    one measurement.
    """
    if old is None:
        return new
    before, now = _by_shape(old.products), _by_shape(new.products)
    products: list[ProductTime] = []
    for shape in sorted({*before, *now}):
        both: list[list[ProductTime]] = [before.get(shape, []), now.get(shape, [])]
        best: list[ProductTime] = min(both, key=_rank)
        products += best
    copies: dict[int, CopyTime] = {}
    for copy in (*old.copies, *new.copies):
        if copy.bytes not in copies or copy.time_ns < copies[copy.bytes].time_ns:
            copies[copy.bytes] = copy
    return new.model_copy(
        update={
            "products": tuple(products),
            "copies": tuple(copies[size] for size in sorted(copies)),
        }
    )


def cache_file(engine: str, info: dict[str, Any], options: EngineOptions) -> Path:
    """Where the rates of this device through ``engine`` lie."""
    identity = {
        "engine": engine,
        "version": info["version"],
        "device": info["device"],
        "details": info["details"],
        "threads": options.threads,
        "optimization": options.optimization,
        "options": dict(options.extra),
    }
    folder = Path(os.environ.get(CACHE) or user_cache_path("bitworth"))
    name = slug(f"{info['device']}-{engine}-{info['version']}-{options.threads}t")
    return folder / "devices" / f"{name}-{sha256(canonical(identity))[:8]}.json"


def _read(path: Path, info: dict[str, Any]) -> DeviceProfile | None:
    """The cached profile; None where there is none that can be used."""
    try:
        found = read_device_profile(path)
    except UserError:
        return None
    return found if found.device == info["device"] else None


def _of(profile: DeviceProfile, wanted: set[_Shape]) -> DeviceProfile:
    """The part of ``profile`` that bears on these products."""
    fastest: dict[str, ProductTime] = {}
    for product in profile.products:
        best = fastest.setdefault(product.format, product)
        if product.rate > best.rate:
            fastest[product.format] = product
    shapes = wanted | {_shape(p) for p in fastest.values()}
    return profile.model_copy(
        update={"products": tuple(p for p in profile.products if _shape(p) in shapes)}
    )


def _rank(times: list[ProductTime]) -> tuple[int, float]:
    """The better of two measurements of one product has the smaller rank."""
    # More formats say more: an engine's update can add one.
    return -len(times), sum(t.time_ns for t in times)


def _by_shape(products: Iterable[ProductTime]) -> dict[_Shape, list[ProductTime]]:
    found: dict[_Shape, list[ProductTime]] = {}
    for product in products:
        found.setdefault(_shape(product), []).append(product)
    return found


def _shape(product: Product | ProductTime) -> _Shape:
    return (product.kind, product.m, product.n, product.k)
