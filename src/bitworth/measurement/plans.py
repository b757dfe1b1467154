"""Commands to a worker that build, load and run plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.quality import Run
from bitworth.measurement.workers import TimingWorker, Worker

#: Longest wait for one answer; an engine that takes longer hangs.
TIMEOUT_S = 600.0


def decided(worker: Worker, engine: str, model: Path, options: EngineOptions) -> EngineOptions:
    """``options`` with threads and streams of 0 replaced by the engine's choice for throughput.

    Raises:
        WorkerFailed: the engine refused, crashed or hung.
    """
    found, _ = worker.ask(
        "decide", timeout_s=TIMEOUT_S, engine=engine, model=str(model), options=_tree(options)
    )
    return replace(options, threads=found["threads"], streams=found["streams"])


def build_plan(
    worker: Worker,
    engine: str,
    model: Path,
    label: str,
    precision: str,
    options: EngineOptions,
    out: Path,
) -> dict[str, Any]:
    """Build ``model`` into the plan ``out``: size_bytes, sha256, layers,
    build_ns and a note on what is unusual about it.

    Raises:
        WorkerFailed: the engine refused, crashed or hung.
    """
    return worker.ask(
        "build",
        timeout_s=TIMEOUT_S,
        engine=engine,
        model=str(model),
        label=label,
        precision=precision,
        options=_tree(options),
        out=str(out),
    )[0]


def load_plan(
    worker: TimingWorker, engine: str, plan: Path, precision: str, options: EngineOptions
) -> dict[str, Any]:
    """Load a saved plan: load_ns, resident_before_bytes and the precision read back.

    Raises:
        WorkerFailed: the engine refused, crashed or hung.
    """
    return worker.ask(
        "load",
        timeout_s=TIMEOUT_S,
        engine=engine,
        plan=str(plan),
        precision=precision,
        options=_tree(options),
    )[0]


def unoptimized(
    worker: Worker, engine: str, model: Path, plan: Path, options: EngineOptions
) -> Run:
    """``model`` as a function, with the engine's optimization off; ``plan`` is its plan's file.

    Raises:
        WorkerFailed: the engine does not run it.
    """
    build_plan(worker, engine, model, "unoptimized", "fp32", options, plan)
    load_plan(worker, engine, plan, "fp32", options)
    return runner(worker)


def runner(worker: Worker) -> Run:
    """One inference of the worker's loaded plan as a function."""

    def run(inputs: Arrays) -> Arrays:
        return worker.ask("run", inputs, timeout_s=TIMEOUT_S)[1]

    return run


def _tree(options: EngineOptions) -> dict[str, Any]:
    return {**vars(options), "extra": dict(options.extra)}
