"""What the cases share: small models, the way from a model to a lowered one, and engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.calibration import Calibration, observe
from bitworth.engines.base import EngineOptions
from bitworth.engines.cpu import isa
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.placement import observed_values
from bitworth.measurement.plans import build_plan, load_plan, runner
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import Quantize, Recipe, Site
from bitworth.recipe.consistency import natural_activations, natural_scheme, natural_weights
from bitworth.recipe.rules import EMULATED, preference
from bitworth.study.lowered_variant import LoweredVariant, scale_variant
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import SiteScan, find_sites

Array = NDArray[Any]
Arrays = Mapping[str, Array]

#: What a recipe is resolved for where no engine computes its format.
EMULATION = "emulated"

#: One model for each operator that can be a site: graph, shape of the weight, shape of the input,
#: and the axis of the weight that holds the output channels.
SITE_OPS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], int]] = {
    "Conv": ("Conv<pads = [1, 1, 1, 1]>(x, w, b)", (6, 4, 3, 3), (1, 4, 6, 6), 0),
    "Conv depthwise": ("Conv<group = 4>(x, w, b)", (4, 1, 3, 3), (1, 4, 6, 6), 0),
    "ConvTranspose": ("ConvTranspose(x, w, b)", (4, 6, 2, 2), (1, 4, 5, 5), 1),
    "Gemm": ("Gemm<transB = 1>(x, w, b)", (6, 4), (3, 4), 0),
    "MatMul": ("MatMul(x, w)", (4, 6), (3, 4), 1),
}


def rand(*shape: int, seed: int = 0, scale: float = 1.0, dtype: str = "float32") -> Array:
    """Normal numbers that depend on the shape and the seed alone."""
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * scale).astype(dtype)


def site_graph(op: str, before: str = "", dtype: str = "float", after: str = "y = Relu(o)") -> str:
    """Text of ``x -> before -> op -> after``; ``before`` may turn x into ``a``."""
    node, _, x_shape, _ = SITE_OPS[op]
    node = node.replace("(x,", "(a,") if before else node
    dims, free = ", ".join(map(str, x_shape)), ", ".join("ABCD"[: len(x_shape)])
    return f"g ({dtype}[{dims}] x) => ({dtype}[{free}] y) {{ {before}\n o = {node}\n {after} }}"


def write_model(
    path: Path,
    graph: str,
    weights: Mapping[str, Array] | None = None,
    opset: int = 19,
    domains: str = "",
) -> Path:
    """Write a model given as ONNX text, with initializers by name."""
    header = f'<ir_version: {8 if opset < 19 else 10}, opset_import: ["" : {opset}{domains}]>'
    model = onnx.parser.parse_model(header + graph)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path


def run_exact(
    model: Path | bytes, inputs: Arrays, level: str = "ORT_DISABLE_ALL"
) -> dict[str, Array]:
    """Outputs in onnxruntime, with its optimizations off unless told."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def rel_l2(got: Array, want: Array) -> float:
    """Norm of the difference over the norm of ``want``, in float64."""
    exact = want.astype(np.float64)
    return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Case:
    """A prepared model with the samples that calibrate it."""

    prepared: PreparedModel
    samples: Sequence[Arrays]

    @cached_property
    def scan(self) -> SiteScan:
        return find_sites(self.prepared)

    @cached_property
    def calibration(self) -> Calibration:
        sites = (*self.scan.sites, *self.scan.attention)
        return observe(
            self.prepared.model,
            observed_values(self.prepared.model, sites),
            self.samples,
            threads=1,
            channel_axes={s.activation: s.activation_axis for s in self.scan.sites},
        )

    def scaled(
        self,
        recipe: Quantize | Recipe,
        sites: Sequence[Site] | None = None,
        engine: str = EMULATION,
    ) -> LoweredVariant:
        """Scales of ``sites``, all with weights unless told, as a study on ``engine`` has them."""
        preferred = EMULATED if engine == EMULATION else preference(engine, isa())
        whole = recipe if isinstance(recipe, Recipe) else Recipe(quantize=(recipe,))
        chosen = tuple(self.scan.sites if sites is None else sites)
        groups = {entry.group: chosen for entry in whole.quantize}
        return scale_variant(
            self.prepared,
            self.scan.sites,
            whole,
            groups,
            self.calibration.statistics,
            engine,
            preferred,
        )

    def lowered(
        self,
        recipe: Quantize | Recipe,
        sites: Sequence[Site] | None = None,
        engine: str = EMULATION,
    ) -> ir.Model:
        """The graph with ``sites`` quantized."""
        variant = self.scaled(recipe, sites, engine)
        return lower(variant.graph.prepared, variant.scaled.quantized)


def recipe_for(name: str, **changes: Any) -> Quantize:
    """An entry for the group "all" in a format, in its natural granularity and scheme."""
    entry = Quantize(
        "all",
        name,
        weights=natural_weights(name),
        activations=natural_activations(name),
        scheme=natural_scheme(name),
    )
    return replace(entry, **changes)


def case(path: Path, samples: Sequence[Arrays], opset: int = 19) -> Case:
    """Load and prepare the model at ``path``."""
    return Case(prepare(load(path), opset), samples)


class Engines:
    """Real engines, each in a worker process of its own, as a study runs them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[str, Worker] = {}
        self._numbers = count()

    def run(
        self, engine: str, model: Path | ir.Model, inputs: Arrays, optimization: str = "all"
    ) -> dict[str, Array]:
        """Outputs of a plan built from ``model``; raises WorkerFailed as in a study."""
        number = next(self._numbers)
        if isinstance(model, ir.Model):
            path = self._folder / f"{number}.onnx"
            save(model, path)
        else:
            path = model
        options = EngineOptions(threads=1, optimization=optimization)  # type: ignore[arg-type]
        plan = self._folder / f"plan-{number}" / "plan.bin"
        worker = self._worker(engine)
        try:
            build_plan(worker, engine, path, "case", "fp32", options, plan)
            load_plan(worker, engine, plan, "fp32", options)
            return dict(runner(worker)(inputs))
        except WorkerFailed as failure:
            if failure.kind in ("crashed", "timed out"):
                self._workers.pop(engine).close()
            raise

    def attempt(
        self, engine: str, model: Path | ir.Model, inputs: Arrays, optimization: str = "all"
    ) -> dict[str, Array] | WorkerFailed:
        """Outputs, or how it failed: both are results."""
        try:
            return self.run(engine, model, inputs, optimization)
        except WorkerFailed as failure:
            return failure

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _worker(self, engine: str) -> Worker:
        if engine not in self._workers:
            self._workers[engine] = Worker(engine, self._folder / f"{engine}.log", engine)
        return self._workers[engine]


def engines_in(folder: Path) -> Iterator[Engines]:
    """Engines for as long as a fixture lives."""
    engines = Engines(folder)
    yield engines
    engines.close()
