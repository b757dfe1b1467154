"""One cell: plans built, checked and judged for quality, one worker process each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bitworth.engines.base import Arrays, EngineOptions, LayerTime
from bitworth.measurement.array_store import ArrayStore, store_arrays
from bitworth.measurement.plans import TIMEOUT_S, build_plan, load_plan, runner
from bitworth.measurement.profile import MappedLayer, map_layers
from bitworth.measurement.quality import MetricSpec, Quality, Score, evaluate
from bitworth.measurement.workers import Worker
from bitworth.record.schema import OptimizationCheck
from bitworth.study.data_stage import StudyData
from bitworth.study.progress import Reporter
from bitworth.study.subject_stage import Subject
from bitworth.study.workspace import Workspace
from bitworth.verdict import sig6, sig6_or_none

#: Samples on which a variant is compared with and without the engine's optimization.
CHECK_SAMPLES = 16
#: An engine's optimization may double the error and add this much (DESIGN section 7).
CHECK_SLACK = 0.01
PROFILE_CALLS = 10


@dataclass(frozen=True)
class Judge:
    """What every variant is judged by.

    Attributes:
        data: the held-out samples.
        reference: fp32 outputs of the model as given, unoptimized.
        metrics: the study's metrics.
        score: their values for one sample; None without a metric.
    """

    data: StudyData
    reference: ArrayStore
    metrics: Mapping[str, MetricSpec]
    score: Score | None


def probe_engine(workspace: Workspace, engine: str) -> dict[str, Any]:
    """What the engine is on this machine.

    Raises:
        WorkerFailed: it is not installed or does not start.
    """
    with Worker(f"{engine}/probe", workspace.path("logs", f"{engine}.log")) as worker:
        return worker.ask("probe", timeout_s=TIMEOUT_S, engine=engine)[0]


def build_and_load(
    workspace: Workspace,
    engine: str,
    model: Path,
    label: str,
    precision: str,
    options: EngineOptions,
    plan: Path,
) -> dict[str, Any]:
    """Build a plan in a worker of its own and load it once.

    Returns size, hash, layers, build time and the precision read back from the loaded plan.

    Raises:
        WorkerFailed: the engine refused, crashed or hung.
    """
    with Worker(f"{label}/build", workspace.path("logs", f"{engine}.log")) as worker:
        built = build_plan(worker, engine, model, label, precision, options, plan)
        loaded = load_plan(worker, engine, plan, precision, options)
    return {**built, "precision": loaded["precision"]}


def profile_plan(
    workspace: Workspace,
    engine: str,
    plan: Path,
    options: EngineOptions,
    inputs: Arrays,
    subject: Subject,
) -> tuple[MappedLayer, ...]:
    """The baseline's own layer times, mapped to sites.

    Raises:
        WorkerFailed: the plan does not run.
    """
    with Worker("profile", workspace.path("logs", f"{engine}.log")) as worker:
        load_plan(worker, engine, plan, "fp32", options)
        worker.ask("bind", inputs, timeout_s=TIMEOUT_S)
        worker.ask("block", timeout_s=TIMEOUT_S, lead_in=2, iterations=1)
        found, _ = worker.ask("profile", timeout_s=TIMEOUT_S, calls=PROFILE_CALLS)
    layers = [
        LayerTime(**{**layer, "origins": tuple(layer["origins"])}) for layer in found["layers"]
    ]
    return map_layers(layers, subject.sites, subject.producers, subject.upstream)


def judge_plan(
    workspace: Workspace,
    engine: str,
    plan: Path,
    label: str,
    precision: str,
    options: EngineOptions,
    judge: Judge,
    reporter: Reporter,
) -> Quality:
    """Quality of a plan over all held-out samples.

    Raises:
        WorkerFailed: the plan does not run.
        UserError: the metric raised.
    """
    count = len(judge.data.inputs)
    log = workspace.path("logs", f"{engine}.log")
    title = f"{engine}: quality of {label}"
    with Worker(f"{label}/quality", log) as worker, reporter.stage(title, count) as advance:
        load_plan(worker, engine, plan, precision, options)
        return evaluate(
            runner(worker),
            judge.data.holdout(),
            judge.reference,
            judge.metrics,
            judge.score,
            advance,
        )


def compute_reference(
    workspace: Workspace, model: Path, data: StudyData, threads: int, reporter: Reporter
) -> ArrayStore:
    """Outputs of the model as given on all held-out samples: onnxruntime, optimization off.

    Raises:
        WorkerFailed: onnxruntime does not run the model.
        UserError: no room on the disk.
    """
    folder = workspace.path("reference", "x").parent
    if (folder / "index.json").exists():
        return ArrayStore(folder)
    options = EngineOptions(threads=threads, optimization="none")
    plan = workspace.path("plans", "reference.onnx")
    build_and_load(workspace, "onnxruntime", model, "reference", "fp32", options, plan)
    count = len(data.inputs)
    log = workspace.path("logs", "onnxruntime.log")
    title = "fp32 reference (onnxruntime, unoptimized)"
    with Worker("reference", log) as worker, reporter.stage(title, count) as advance:
        load_plan(worker, "onnxruntime", plan, "fp32", options)
        run = runner(worker)
        return store_arrays((run(i) for i, _ in data.holdout()), count, folder, advance)


def check_optimization(
    workspace: Workspace,
    engine: str,
    lowered: Path,
    plan: Path,
    precision: str,
    options: EngineOptions,
    judge: Judge,
) -> OptimizationCheck:
    """Compare the plan's error with that of the same graph run unoptimized, on a few samples.

    An engine's graph optimization may round differently; it may not compute another function.

    Raises:
        WorkerFailed: one of the two does not run.
    """
    plain = EngineOptions(threads=options.threads, optimization="none")
    plain_plan = workspace.path("plans", f"{plan.stem}-unoptimized.onnx")
    build_and_load(workspace, "onnxruntime", lowered, "unoptimized", "fp32", plain, plain_plan)
    unoptimized = _error(workspace, "onnxruntime", plain_plan, "fp32", plain, judge)
    optimized = _error(workspace, engine, plan, precision, options, judge)
    plain_plan.unlink(missing_ok=True)
    known = unoptimized.rel_l2
    return OptimizationCheck(
        n=unoptimized.n,
        optimized_rel_l2=sig6_or_none(optimized.rel_l2),
        unoptimized_rel_l2=sig6_or_none(known),
        limit=None if known is None else sig6(2 * known + CHECK_SLACK),
    )


def _error(
    workspace: Workspace,
    engine: str,
    plan: Path,
    precision: str,
    options: EngineOptions,
    judge: Judge,
) -> Quality:
    with Worker("check", workspace.path("logs", f"{engine}.log")) as worker:
        load_plan(worker, engine, plan, precision, options)
        samples = islice(judge.data.holdout(), CHECK_SAMPLES)
        return evaluate(runner(worker), samples, judge.reference, {}, None, lambda _: None)
