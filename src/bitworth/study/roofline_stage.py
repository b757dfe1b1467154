"""Measures how fast an engine multiplies in each format, and how fast the memory is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from bitworth.atomic import write_atomic
from bitworth.bound.copy_rate import copy_times
from bitworth.bound.product_graph import (
    Product,
    held,
    own_names,
    product_graph,
    product_inputs,
)
from bitworth.calibration import observe
from bitworth.engines.base import EngineOptions
from bitworth.lowering.placement import observed_values
from bitworth.measurement.plans import TIMEOUT_S, build_plan, load_plan
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import FORMATS, Quantize, Recipe
from bitworth.recipe.rules import preference
from bitworth.record.device_profile import CopyTime, DeviceProfile, ProductTime
from bitworth.record.op_classes import PRODUCT, op_class
from bitworth.study.lowered_variant import scale_variant, write_lowered
from bitworth.study.progress import Reporter
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites
from bitworth.verdict import sig6

KINDS: tuple[Literal["gemm", "conv"], ...] = ("gemm", "conv")
#: Large products, at which a device comes near its highest rate.
LARGE = tuple(
    Product(kind, m, n, k) for kind in KINDS for m, n, k in ((512, 512, 512), (1024, 256, 256))
)
#: Formats that are measured where an engine has them; the first is what baselines compute in.
MEASURED = ("fp32", "bf16", "int8")
CALLS = 9


def measure_device(
    workspace: Workspace,
    engine: str,
    info: dict[str, Any],
    options: EngineOptions,
    products: Sequence[Product],
    reporter: Reporter,
) -> DeviceProfile:
    """Times of ``products`` and of some large ones in each format that the engine has.

    Each product's time is that of its own layer in the engine's profile: what converts its inputs
    and result is not in it. One that the engine computed in another format is left out.

    Raises:
        WorkerFailed: the engine does not run the fp32 products.
    """
    wanted = sorted({held(p) for p in (*products, *LARGE)})
    # One graph a kind: in one graph onnxruntime leaves products in float beside convolutions.
    graphs = {kind: [p for p in wanted if p.kind == kind] for kind in KINDS}
    paths = {kind: workspace.path("roofline", engine, f"{kind}.onnx") for kind in KINDS}
    for kind in KINDS:
        graph = product_graph(graphs[kind], FORMATS["int8"].onnx_opset)
        write_atomic(paths[kind], graph.SerializeToString())
    formats = [name for name in MEASURED if name == "fp32" or _is_native(info, name)]
    times: list[ProductTime] = []
    with (
        reporter.stage(f"{engine}: {len(wanted)} products", len(formats) + 1) as advance,
        Worker("roofline", workspace.path("logs", f"{engine}.log")) as worker,
    ):
        for done, name in enumerate(formats, start=1):
            try:
                for kind in KINDS:
                    model, some = paths[kind], graphs[kind]
                    if name == "int8":
                        model = _int8(model, some, engine, info, options.threads)
                    times += _timed(worker, engine, model, name, options, some)
            except WorkerFailed:
                if name == "fp32":
                    raise
                break  # what killed the worker is not tried in further formats
            advance(done)
        copies = copy_times(options.threads)
    return DeviceProfile(
        engine=engine,
        engine_version=info["version"],
        device=info["device"],
        threads=options.threads,
        details=info["details"],
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        products=tuple(times),
        copies=tuple(CopyTime(bytes=size, time_ns=sig6(time)) for size, time in copies),
    )


def _is_native(info: dict[str, Any], name: str) -> bool:
    return name in info["formats"] and info["formats"][name]["state"] == "native"


def _int8(
    path: Path, products: Sequence[Product], engine: str, info: dict[str, Any], threads: int
) -> Path:
    """The products as the engine's own preference quantizes them."""
    prepared = prepare(load(path), FORMATS["int8"].onnx_opset)
    sites = find_sites(prepared).sites
    values = observed_values(prepared.model, sites)
    found = observe(prepared.model, values, iter([product_inputs(products)]), threads=threads)
    preferred = preference(engine, info["details"].get("isa", "").split())
    variant = scale_variant(
        prepared, sites, Recipe(quantize=(Quantize("all", "int8"),)), {"all": sites},
        found.statistics, engine, preferred,
    )  # fmt: skip
    lowered = path.with_name(f"{path.stem}.int8.onnx")
    write_lowered(variant, lowered, emulated=False)
    return lowered


def _timed(
    worker: Worker,
    engine: str,
    model: Path,
    name: str,
    options: EngineOptions,
    products: Sequence[Product],
) -> list[ProductTime]:
    precision = "bf16" if name == "bf16" else "fp32"
    plan = model.with_suffix(f".{name}.plan")
    by_name = {name: p for p in products for name in (*own_names(p), f"{p.name}_y")}
    build_plan(worker, engine, model, name, precision, options, plan)
    load_plan(worker, engine, plan, precision, options)
    worker.ask("bind", product_inputs(products), timeout_s=TIMEOUT_S)
    worker.ask("block", timeout_s=TIMEOUT_S, lead_in=2, iterations=1)
    found, _ = worker.ask("profile", timeout_s=TIMEOUT_S, calls=CALLS, plain=False)
    times = []
    for layer in found["layers"]:
        product = next((by_name[o] for o in layer["origins"] if o in by_name), None)
        if product is None or layer["format"] != name or layer["time_ns"] <= 0:
            continue
        if op_class(layer["op"]) != PRODUCT:
            continue  # the Relu, where it was not fused
        times.append(
            ProductTime(
                kind=product.kind,
                format=name,
                m=product.m,
                n=product.n,
                k=product.k,
                time_ns=sig6(layer["time_ns"]),
            )
        )
    return times
