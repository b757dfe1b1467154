"""One cell: plans built, checked and judged for quality, one worker process each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bitworth.engines.base import EngineOptions
from bitworth.measurement.array_store import ArrayStore, is_stored, store_arrays
from bitworth.measurement.batch import batch_error
from bitworth.measurement.plans import (
    TIMEOUT_S,
    build_plan,
    decided,
    load_plan,
    runner,
    unoptimized,
)
from bitworth.measurement.quality import MetricSpec, Quality, Score, evaluate
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.record.schema import BatchCheck, OptimizationCheck
from bitworth.study.data_stage import StudyData
from bitworth.study.progress import Reporter
from bitworth.study.workspace import Workspace
from bitworth.verdict import sig6, sig6_or_none

#: Samples on which a variant is compared with and without the engine's optimization.
CHECK_SAMPLES = 16
#: An engine's optimization may double the error and add this much (DESIGN section 7).
CHECK_SLACK = 0.01
#: What a batch may differ by on a plan without any error: sums in another order are far below.
BATCH_SLACK = 1e-3


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


@dataclass(frozen=True)
class PlanRequest:
    """What to build, and where to.

    Attributes:
        engine: engine name.
        model: the lowered model.
        label: the variant.
        precision: base precision that the engine is told.
        options: the cell's options.
        plan: file of the plan.
        batch: held-out samples that a timed call takes together; empty for one at a time.
    """

    engine: str
    model: Path
    label: str
    precision: str
    options: EngineOptions
    plan: Path
    batch: tuple[int, ...] = ()


def probe_engine(workspace: Workspace, engine: str) -> dict[str, Any]:
    """What the engine is on this machine.

    Raises:
        WorkerFailed: it is not installed or does not start.
    """
    with Worker(f"{engine}/probe", workspace.path("logs", f"{engine}.log")) as worker:
        return worker.ask("probe", timeout_s=TIMEOUT_S, engine=engine)[0]


def decided_options(
    workspace: Workspace, cell: str, engine: str, model: Path, options: EngineOptions
) -> EngineOptions:
    """``options`` with threads and streams of 0 as the engine decides for the fair baseline.

    Decided once for a study: a resumed one times what it began with.

    Raises:
        WorkerFailed: the engine refused the model, or does not start.
    """
    stored = workspace.load("streams", cell)
    if stored is None:
        with Worker(f"{engine}/decide", workspace.path("logs", f"{engine}.log")) as worker:
            found = decided(worker, engine, model, options)
        stored = {"threads": found.threads, "streams": found.streams}
        workspace.save(stored, "streams", cell)
    return replace(options, **stored)


def build_and_judge(
    workspace: Workspace,
    request: PlanRequest,
    judge: Judge,
    reporter: Reporter,
    judged: bool = True,
    afterwards: Callable[[Worker, dict[str, Any]], None] | None = None,
) -> tuple[dict[str, Any], Quality | None]:
    """Build a plan, load the saved bytes, and judge them on all held-out samples.

    All in one worker: whatever kills it is the result of this variant alone. A plan that was
    judged is still loaded there when ``afterwards`` gets the worker and what was built.

    Returns what was built (size, hash, layers, build time, the precision read back from the loaded
    plan, and with a batch the error of its outputs) and its quality; None for a plan that is not
    ``judged``.

    Raises:
        WorkerFailed: the engine refused, crashed or hung.
        UserError: the metric raised.
    """
    r = request
    log = workspace.path("logs", f"{r.engine}.log")
    with Worker(r.label, log) as worker:
        built = build_plan(worker, r.engine, r.model, r.label, r.precision, r.options, r.plan)
        loaded = load_plan(worker, r.engine, r.plan, r.precision, r.options)
        built["precision"] = loaded["precision"]
        if r.batch:
            samples = [judge.data.inputs[i] for i in r.batch]
            built["batch_rel_l2"] = batch_error(runner(worker), samples)
        if not judged:
            return built, None
        title = f"{r.engine}: quality of {r.label}"
        with reporter.stage(title, len(judge.data.inputs)) as advance:
            quality = evaluate(
                runner(worker),
                judge.data.holdout(),
                judge.reference,
                judge.metrics,
                judge.score,
                advance,
                head=CHECK_SAMPLES,
            )
        if afterwards is not None:
            afterwards(worker, built)
    return built, quality


def check_batch(error: float | None, samples: int, quality: Quality | None) -> BatchCheck:
    """Compare a batch's error with the plan's own.

    A plan may round a batch differently, by other kernels or another order of sums. It may not
    add more to its error against the reference than that error and ``BATCH_SLACK``: so the batch
    is within twice the error that was measured, as a plan is within twice its graph's.

    Args:
        error: of the batch against its samples alone.
        samples: of the batch.
        quality: of the plan; None where it was not judged.
    """
    own = quality.rel_l2 if quality is not None else None
    limit = sig6((own or 0.0) + BATCH_SLACK)
    return BatchCheck(n=samples, rel_l2=sig6_or_none(error), limit=limit)


def compute_reference(
    workspace: Workspace,
    engine: str,
    model: Path,
    data: StudyData,
    options: EngineOptions,
    reporter: Reporter,
) -> ArrayStore:
    """Outputs of the model as given on all held-out samples, in fp32 and unoptimized.

    Args:
        workspace: where they are stored.
        engine: what runs it: onnxruntime, or torch for its own modules.
        model: the model as given, in fp32.
        data: the held-out samples.
        options: of the engine, with optimization off.
        reporter: progress.

    Raises:
        WorkerFailed: the engine does not run the model.
        UserError: no room on the disk.
    """
    folder = workspace.path("reference", "x").parent
    if is_stored(folder):
        return ArrayStore(folder)
    count = len(data.inputs)
    log = workspace.path("logs", f"{engine}.log")
    title = f"fp32 reference ({engine}, unoptimized)"
    with Worker("reference", log) as worker, reporter.stage(title, count) as advance:
        plan = workspace.path("plans", "reference.onnx")
        run = unoptimized(worker, engine, model, plan, options)
        return store_arrays((run(i) for i, _ in data.holdout()), count, folder, advance)


def check_optimization(
    workspace: Workspace,
    engine: str,
    lowered: Path,
    key: str,
    options: EngineOptions,
    quality: Quality,
    judge: Judge,
) -> OptimizationCheck:
    """Compare a plan's error with that of the same graph run unoptimized, on the first samples.

    An engine's graph optimization may round differently; it may not compute another function.

    Args:
        workspace: finished stages.
        engine: what runs it unoptimized.
        lowered: the graph that the plan was built from.
        key: its hash; engines that share a graph share its unoptimized error.
        options: of that engine, with optimization off.
        quality: of the plan, with the error over its first ``CHECK_SAMPLES`` samples.
        judge: the held-out samples and their reference.

    Where that engine does not run the graph there is no limit to compare with.
    """
    stored = workspace.load("unoptimized", key)
    if stored is None:
        error = None
        with Worker("unoptimized", workspace.path("logs", f"{engine}.log")) as worker:
            try:
                plan = workspace.path("plans", "unoptimized.onnx")
                run = unoptimized(worker, engine, lowered, plan, options)
                samples = islice(judge.data.holdout(), CHECK_SAMPLES)
                error = evaluate(run, samples, judge.reference, {}, None, lambda _: None).rel_l2
            except WorkerFailed:
                error = None
        stored = {"rel_l2": error}
        workspace.save(stored, "unoptimized", key)
    known = stored["rel_l2"]
    return OptimizationCheck(
        n=quality.head_n,
        optimized_rel_l2=sig6_or_none(quality.head_rel_l2),
        unoptimized_rel_l2=sig6_or_none(known),
        limit=None if known is None else sig6(2 * known + CHECK_SLACK),
    )
