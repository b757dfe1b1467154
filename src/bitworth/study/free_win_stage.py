"""The free wins of one cell: what makes the baseline faster is tried before any variant.

Each change is timed alone against the fair baseline, by the verdict's rules. Options that make it
faster and leave its result as it is join it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bitworth.bound.free_wins import largest_change
from bitworth.bound.option_changes import (
    STANDARD_BATCH,
    OptionChange,
    compatible,
    joined,
    standard_changes,
)
from bitworth.engines.base import Arrays, EngineOptions
from bitworth.errors import UserError
from bitworth.measurement.batch import batch_error, batched
from bitworth.measurement.device_lock import device_lock
from bitworth.measurement.plans import build_plan, load_plan, runner
from bitworth.measurement.timing import TimedPlan
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.record.free_win_facts import FreeWinSearch, FreeWinTry
from bitworth.record.free_win_verdicts import SAME_RESULT, is_same, judge_free_wins, worth_joining
from bitworth.record.names import AS_GIVEN, BASELINE
from bitworth.record.timing_facts import TimingJob
from bitworth.study.cell_engine import CellEngine
from bitworth.study.cell_stage import BATCH_SLACK
from bitworth.study.context import StudyContext, file_key
from bitworth.study.sections import CellConfig
from bitworth.study.timed_input import batch_samples, check_batch_size
from bitworth.study.timing_stage import baseline_call_ns, run_job, split_jobs
from bitworth.verdict import sig6_or_none

#: Share of a cell's time for timing that the search may take.
BUDGET_SHARE = 0.2
#: Rounds of a session at least: fewer than for the variants, which are what a study is about.
ROUNDS = 6
#: Samples on which outputs are compared with the baseline's.
SAMPLES = 4
WITH_DENORMALS = "with denormal weights"
#: Share of denormal weights from which they get a row of their own.
MANY_DENORMALS = 0.01


@dataclass(frozen=True)
class FoundFreeWins:
    """What a search found.

    Attributes:
        search: every try; None where nothing was tried.
        jobs: their timing.
        options: the cell's, with those that joined.
    """

    search: FreeWinSearch | None
    jobs: tuple[TimingJob, ...]
    options: EngineOptions


@dataclass(frozen=True)
class _Try:
    """One change before it is built: options, a model without what the baseline has, or a batch."""

    name: str
    kind: Literal["options", "undone", "batch"]
    model: Path
    options: EngineOptions
    change: OptionChange | None = None
    batch: tuple[int, ...] = ()


def find_free_wins(
    study: StudyContext,
    engine: CellEngine,
    config: CellConfig,
    quantile: float | None,
    budget_s: float,
) -> FoundFreeWins:
    """Try every change of the study and of the engine's own list.

    A finished search is read from the workspace; its plans are gone by then. Where the baseline
    does not build or run there is nothing to search for: its own run says so.

    Args:
        study: what all cells share.
        engine: the cell's engine, with the options that the study gives.
        config: the cell.
        quantile: what is compared in the tail; None where medians are.
        budget_s: seconds for the cell's timing, of which a share is spent here.
    """
    tries = list(_tries(study, engine, config))
    if not tries:
        return FoundFreeWins(None, (), engine.options)
    stored = study.workspace.load("free-wins", f"{engine.cell}-found")
    if stored is not None:
        return _read(stored)
    try:
        built = _built(study, engine, tries)
        timed = _timed_plans(study, engine, tries, built)
        jobs = _time(study, engine, timed, quantile, budget_s) if len(timed) > 1 else ()
    except WorkerFailed:
        return FoundFreeWins(None, (), engine.options)
    found = _judged(study, engine, config, tries, built, jobs, quantile)
    study.workspace.save(_tree(found), "free-wins", f"{engine.cell}-found")
    shutil.rmtree(_plan(study, engine, BASELINE).parents[1], ignore_errors=True)
    return found


def _judged(
    study: StudyContext,
    engine: CellEngine,
    config: CellConfig,
    tries: Sequence[_Try],
    built: tuple[FreeWinTry, ...],
    jobs: tuple[TimingJob, ...],
    quantile: float | None,
) -> FoundFreeWins:
    """What joins the baseline, by the verdicts on what was timed."""
    search = FreeWinSearch(
        given=told_options(engine.options, config.mode),
        tries=built,
        same_result=_same_result(study, engine),
    )
    verdicts = judge_free_wins(search, jobs, study.rules, quantile)
    changes = {t.name: t.change for t in tries if t.change is not None}
    chosen = compatible(
        tuple(changes[name] for name in worth_joining(search, verdicts) if name in changes)
    )
    chosen = _together(study, engine, chosen, search.same_result)
    names = {change.name for change in chosen}
    marked = tuple(one.model_copy(update={"applied": one.name in names}) for one in search.tries)
    return FoundFreeWins(
        search.model_copy(update={"tries": marked}), jobs, joined(engine.options, chosen)
    )


def _together(
    study: StudyContext, engine: CellEngine, best_first: tuple[OptionChange, ...], limit: float
) -> tuple[OptionChange, ...]:
    """The changes that build together and still give the baseline's result; the weakest go first.

    Each was tried alone, and two may not go together: onnxruntime wants as many affinities as it
    has threads.
    """
    fair = study.subject.fair_model(study.workspace)
    log = study.workspace.path("logs", f"{engine.engine}.log")
    samples = [study.data.inputs[i] for i in range(min(SAMPLES, len(study.data.inputs)))]
    for count in range(len(best_first), 1, -1):
        options = joined(engine.options, best_first[:count])
        both = (_Try(BASELINE, "options", fair, engine.options),
                _Try("all that joins", "options", fair, options))  # fmt: skip
        outputs = []
        try:
            for one in both:
                with Worker(one.name, log) as worker:
                    _build(worker, study, engine, one)
                    outputs.append([dict(runner(worker)(sample)) for sample in samples])
        except WorkerFailed:
            continue
        if is_same(_change(outputs[0], outputs[1]), limit):
            return best_first[:count]
    return best_first[:1]


def _tree(found: FoundFreeWins) -> dict[str, Any]:
    return {
        "search": found.search and found.search.model_dump(mode="json"),
        "jobs": [job.model_dump(mode="json") for job in found.jobs],
        "options": {**vars(found.options), "extra": dict(found.options.extra)},
    }


def _read(tree: dict[str, Any]) -> FoundFreeWins:
    return FoundFreeWins(
        FreeWinSearch.model_validate(tree["search"]),
        tuple(TimingJob.model_validate(job) for job in tree["jobs"]),
        EngineOptions(**tree["options"]),
    )


def told_options(options: EngineOptions, mode: str) -> dict[str, str]:
    """The record's form of engine options in a cell of this mode."""
    streams = {"streams": str(options.streams)} if mode == "throughput" else {}
    return {
        "threads": str(options.threads),
        "optimization": options.optimization,
        **streams,
        **dict(options.extra),
    }


def _tries(study: StudyContext, engine: CellEngine, config: CellConfig) -> Iterator[_Try]:
    fair = study.subject.fair_model(study.workspace)
    changes = [
        OptionChange(c.name, c.threads, c.optimization, c.options)
        for c in study.config.free_win
        if not c.engines or engine.engine in c.engines
    ]
    known = {change.name for change in changes}
    if study.config.free_wins.standard:
        found = standard_changes(engine.engine, engine.options, gpu=engine.device != "cpu")
        changes += [
            c
            for c in found
            # Threads that the study sets are a limit of what it asks, and no choice.
            if c.name not in known and (c.threads is None or not config.threads)
        ]
    win = study.subject.free_win
    batch = study.config.free_wins.batch
    if batch is None:
        batch = STANDARD_BATCH.get(engine.engine, 0) if study.config.free_wins.standard else 0
    # What a study has anyway is timed beside what it asked for, not for its own sake.
    if changes or batch > 1:
        original = study.subject.given_model(study.workspace)
        if original != fair:  # a PyTorch module is given as it is studied
            yield _Try(AS_GIVEN, "undone", original, engine.options)
        if win is not None and win.applied and study.subject.denormal_share >= MANY_DENORMALS:
            given = study.subject.denormal_model(study.workspace)
            yield _Try(WITH_DENORMALS, "undone", given, engine.options)
    for change in changes:
        yield _Try(change.name, "options", fair, change.on(engine.options), change)
    if batch > 1 and config.batch is None and config.mode == "host":
        samples = batch_samples(study.data.inputs, batch)
        if len(samples) > 1:
            name = f"{len(samples)} samples a call"
            yield _Try(name, "batch", fair, engine.options, batch=samples)


def _built(study: StudyContext, engine: CellEngine, tries: list[_Try]) -> tuple[FreeWinTry, ...]:
    """Every try built and compared with the baseline; those of an earlier run are read."""
    workspace = study.workspace
    stored = workspace.load("free-wins", engine.cell)
    if stored is not None:
        found = tuple(FreeWinTry.model_validate(one) for one in stored)
        names = [one.name for one in found if one.plan_sha256]
        if all(_plan(study, engine, name).exists() for name in [BASELINE, *names]):
            return found
    log = workspace.path("logs", f"{engine.engine}.log")
    fair = _Try(BASELINE, "options", study.subject.fair_model(workspace), engine.options)
    with (
        Worker(BASELINE, log) as base,
        study.reporter.stage(f"{engine.engine}: building free wins", len(tries) + 1) as advance,
    ):
        sha = _build(base, study, engine, fair)
        workspace.save(sha, "free-wins", f"{engine.cell}-baseline")
        advance(1)
        count = min(SAMPLES, len(study.data.inputs))
        before = [dict(runner(base)(study.data.inputs[i])) for i in range(count)]
        found = ()
        for done, one in enumerate(tries, start=2):
            found = (*found, _compared(study, engine, one, before))
            advance(done)
        workspace.save(_error(study, before), "free-wins", f"{engine.cell}-error")
    workspace.save([one.model_dump(mode="json") for one in found], "free-wins", engine.cell)
    return found


def _error(study: StudyContext, before: Sequence[Arrays]) -> float:
    """The baseline's own error against the reference, largest over samples and outputs."""
    reference = study.judge.reference
    found = _change([reference[i] for i in range(len(before))], before)
    return 0.0 if found is None else found


def _same_result(study: StudyContext, engine: CellEngine) -> float:
    """Largest change of an output that is the same result.

    In 16 bits sums in another order differ by about as much as they differ from the truth: what
    stays within the baseline's own error cannot be told from it.
    """
    if study.subject.base == "fp32":
        return SAME_RESULT
    return max(SAME_RESULT, float(study.workspace.load("free-wins", f"{engine.cell}-error") or 0.0))


def _compared(
    study: StudyContext, engine: CellEngine, one: _Try, before: Sequence[Arrays]
) -> FreeWinTry:
    """The try built, with the largest change of an output; one that fails says why."""
    facts: dict[str, Any] = {
        "name": one.name,
        "kind": one.kind,
        "settings": one.change.settings if one.change else {},
        "items": max(1, len(one.batch)),
        "n": 0,
        "result_change": None,
        "plan_sha256": None,
    }
    log = study.workspace.path("logs", f"{engine.engine}.log")
    inputs = study.data.inputs
    try:
        if one.batch:
            check_batch_size(one.name, len(one.batch), inputs, study.subject.inputs)
        with Worker(one.name, log) as worker:
            sha = _build(worker, study, engine, one)
            if one.batch:
                n = len(one.batch)
                change = batch_error(runner(worker), [inputs[i] for i in one.batch])
            else:
                n = len(before)
                change = _change(before, (runner(worker)(inputs[i]) for i in range(n)))
    except (WorkerFailed, UserError) as failure:
        told = study.workspace.without_paths(str(failure))
        return FreeWinTry(**{**facts, "failed": told})
    if one.batch and (change is None or change > BATCH_SLACK):
        return FreeWinTry(
            **{**facts, "n": n, "result_change": sig6_or_none(change)},
            failed="a batch gives other outputs than its samples alone",
        )
    return FreeWinTry(
        **{**facts, "n": n, "result_change": sig6_or_none(change), "plan_sha256": sha}
    )


def _change(before: Sequence[Arrays], after: Iterable[Arrays]) -> float | None:
    """Largest relative L2 change of an output over the samples; None: not finite."""
    changes = [largest_change(was, now) for was, now in zip(before, after, strict=True)]
    known = [c for c in changes if c is not None]
    return max(known, default=0.0) if len(known) == len(changes) else None


def _build(worker: Worker, study: StudyContext, engine: CellEngine, one: _Try) -> str:
    """Build, save and load the try's plan; its hash."""
    plan = _plan(study, engine, one.name)
    name = engine.engine
    base = study.subject.base
    built = build_plan(worker, name, one.model, one.name, base, one.options, plan)
    load_plan(worker, name, plan, base, one.options)
    return str(built["sha256"])


def _plan(study: StudyContext, engine: CellEngine, name: str) -> Path:
    return study.workspace.path("plans", engine.cell, "free-wins", file_key(name), "plan.bin")


def _timed_plans(
    study: StudyContext, engine: CellEngine, tries: list[_Try], built: tuple[FreeWinTry, ...]
) -> list[TimedPlan]:
    """The baseline, and every try that has a plan."""
    sha = study.workspace.load("free-wins", f"{engine.cell}-baseline")
    base = study.subject.base
    plans = [TimedPlan(BASELINE, _plan(study, engine, BASELINE), base, str(sha))]
    for one, facts in zip(tries, built, strict=True):
        if facts.plan_sha256 is None:
            continue
        samples = [study.data.inputs[i] for i in one.batch]
        plans.append(
            TimedPlan(
                one.name,
                _plan(study, engine, one.name),
                base,
                facts.plan_sha256,
                one.options,
                batched(samples) if samples else None,
                facts.items,
            )
        )
    return plans


def _time(
    study: StudyContext,
    engine: CellEngine,
    plans: list[TimedPlan],
    quantile: float | None,
    budget_s: float,
) -> tuple[TimingJob, ...]:
    workspace = study.workspace
    log = workspace.path("logs", f"{engine.engine}.log")
    target = engine.target(log)
    name = f"{engine.cell}-free-wins"
    with device_lock(engine.device):
        call_ns = baseline_call_ns(workspace, name, target, plans[0])
        jobs = split_jobs(
            name, plans[0], (), plans[1:], call_ns, study.config.timing.seed,
            streams=engine.options.streams, quantile=quantile, rounds=ROUNDS,
            gpu=target.gpu is not None, cold=target.options.mode == "cold",
        )  # fmt: skip
        total = sum(len(job.plans) - 2 for job in jobs)
        done = []
        for job in jobs:
            alpha = study.rules.alpha * (len(job.plans) - 2) / total
            # What joins is timed again beside the variants: there is no verdict to wait for here.
            rules = replace(study.rules, alpha=alpha, until_settled=False)
            share = budget_s * BUDGET_SHARE / len(jobs)
            found = run_job(
                workspace, target, job, rules, share, study.reporter,
                quantile=quantile, what="free wins",
            )  # fmt: skip
            done.append(found)
    return tuple(done)
