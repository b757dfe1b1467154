"""Run a study from its configuration to its record."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from bitworth.calibration import Calibration, cache, observe
from bitworth.errors import UserError
from bitworth.lowering.placement import observed_values
from bitworth.measurement.metric_file import load_metric
from bitworth.measurement.quality import MetricSpec, Score
from bitworth.measurement.workers import WorkerFailed
from bitworth.recipe import FORMATS
from bitworth.record.derive import derive
from bitworth.record.schema import Facts, NotRun, Record
from bitworth.record.store import canonical, sha256, write_record
from bitworth.study.cell_run import CellRun, cell_names, usable_cores
from bitworth.study.cell_stage import Judge, compute_reference
from bitworth.study.config import StudyConfig, subject_path
from bitworth.study.context import StudyContext, policy_of, timing_rules
from bitworth.study.data_stage import StudyData, open_data
from bitworth.study.environment import environment_facts, machine_name
from bitworth.study.outputs import OutputPaths, output_paths, write_outputs
from bitworth.study.progress import Reporter
from bitworth.study.subject_stage import Subject, prepare_subject, subject_facts
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import OnnxModel, load


class Interrupted(Exception):
    """The study was stopped; what is done is kept.

    Attributes:
        partial: the record of what was done, None when nothing was.
        advice: how to go on, in one line.
    """

    def __init__(self, partial: Path | None, advice: str) -> None:
        super().__init__(advice)
        self.partial = partial
        self.advice = advice


@dataclass(frozen=True)
class StudyRequest:
    """What to run.

    Attributes:
        config: the study.
        folder: of the study file, to which its paths are relative.
        output: folder under which records are kept.
        command: how it was started, for the record.
    """

    config: StudyConfig
    folder: Path
    output: Path
    command: str


def run_study(request: StudyRequest, reporter: Reporter) -> tuple[Record, OutputPaths]:
    """Run a study, or what is left of it, and write its record.

    Raises:
        UserError: a mistake in the study, its data or its metric; a full disk.
        Interrupted: Ctrl-C or SIGTERM; a partial record is written.
    """
    config = request.config
    original = load(subject_path(config.subject, request.folder))
    folder = request.output / file_folder(config.subject.name) / machine_name()
    key = _study_key(request, original)
    workspace = Workspace(request.output / ".bitworth" / key[:16])
    with workspace.locked(), _sigterm_as_interrupt():
        begun = _begun(workspace)
        id_ = _study_id(begun, key)
        paths = output_paths(folder, id_)
        partial = paths.record.with_suffix(".partial.json")
        cells: list[CellRun] = []
        study: StudyContext | None = None
        try:
            study = _prepare(request, original, workspace, reporter)
            for cell, name in zip(config.cell, cell_names(config.cell), strict=True):
                cells.append(CellRun(study, cell, name))
                _prepare_cell(cells[-1])
            _time_cells(cells, config.timing.budget_minutes * 60)
        except KeyboardInterrupt:
            advice = "run the same command again to resume"
            facts = study and _facts(request, study, cells, begun, "interrupted")
            if not facts or not facts.cells:
                raise Interrupted(None, advice) from None
            write_record(Record(id=id_, facts=facts, derived=derive(facts)), partial)
            raise Interrupted(partial, advice) from None
        facts = _facts(request, study, cells, begun, "")
        record = Record(id=id_, facts=facts, derived=derive(facts))
        write_outputs(record, paths)
        partial.unlink(missing_ok=True)
        workspace.remove()
    return record, paths


def file_folder(name: str) -> str:
    """The folder of a subject: its name, as far as a file system takes it."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".-") or "subject"


def _prepare(
    request: StudyRequest, original: OnnxModel, workspace: Workspace, reporter: Reporter
) -> StudyContext:
    """Everything before the first cell: data, subject, calibration, reference, metric."""
    config = request.config
    if workspace.resumed:
        reporter.say(f"resuming the study of {config.subject.name}")
    # A metric that cannot be imported is told before minutes of work, not after them.
    metrics: dict[str, MetricSpec] = {}
    score: Score | None = None
    if config.quality.metric is not None and not config.data.random_inputs:
        path = request.folder / config.quality.metric
        metrics, score = load_metric(path, original.metadata)
    for name in config.policy.max_loss:
        if name not in metrics:
            known = ", ".join(metrics) or "none"
            raise UserError(f"policy.max_loss: no metric '{name}'; the study's metrics: {known}")
    calibrated = any(v.format and FORMATS[v.format].role == "quantized" for v in config.variant)
    if original.has_qdq:
        raise UserError(
            f"{original.path}: is quantized already (it has Q/DQ nodes) and is no honest baseline; "
            "give its float original, and this file as a candidate: bitworth compare"
        )
    data = open_data(config.data, request.folder, original.inputs, calibrated, workspace, reporter)
    try:
        subject = prepare_subject(config, original, data.inputs[0], workspace)
        if calibrated and not subject.sites:
            raise UserError(f"{original.path}: has no Conv, Gemm or MatMul with a constant weight")
        calibration = _calibrate(subject, data, workspace, reporter) if calibrated else None
        reference = compute_reference(workspace, original.path, data, usable_cores(), reporter)
    except WorkerFailed as failure:
        raise UserError(
            f"{original.path}: does not run in onnxruntime, which computes the reference "
            f"({failure})"
        ) from None
    return StudyContext(
        config=config,
        folder=request.folder,
        workspace=workspace,
        reporter=reporter,
        subject=subject,
        data=data,
        statistics=calibration.statistics if calibration else {},
        judge=Judge(data, reference, metrics, score),
        rules=timing_rules(config),
        policy=policy_of(config),
    )


def _calibrate(
    subject: Subject, data: StudyData, workspace: Workspace, reporter: Reporter
) -> Calibration:
    """Ranges of every value that a variant may quantize, from one pass over the data."""
    values = observed_values(subject.fair.model, subject.sites)
    key = sha256(canonical([list(values), data.facts.calibration.sha256]))
    path = workspace.path("data", "calibration.npz")
    found = cache.load(path, key)
    if found is not None:
        return found
    assert data.calibration is not None
    with reporter.stage(f"calibrating {len(values)} tensors", data.calibration.count) as advance:
        found = observe(
            subject.fair.model,
            values,
            (sample.inputs for sample in data.calibration),
            threads=usable_cores(),
            progress=advance,
        )
    cache.save(path, found, key)
    return found


def _prepare_cell(cell: CellRun) -> None:
    try:
        cell.prepare()
    except WorkerFailed as failure:
        cell.failures.append((f"engine {cell.config.engine}", str(failure)))


def _time_cells(cells: Sequence[CellRun], budget_s: float) -> None:
    """Time the cells one after another; what one leaves of the budget goes to the next."""
    end = monotonic() + budget_s
    for index, cell in enumerate(cells):
        share = max(0.0, end - monotonic()) / (len(cells) - index)
        cell.time(max(share, 1.0))


def _facts(
    request: StudyRequest,
    study: StudyContext,
    cells: Sequence[CellRun],
    begun: datetime.datetime,
    missing: str,
) -> Facts:
    config = request.config
    tree = config.model_dump(mode="json")
    found = [facts for cell in cells if (facts := cell.facts()) is not None]
    return Facts(
        created=begun.isoformat(),
        command=request.command,
        config=tree,
        config_sha256=sha256(canonical(tree)),
        policy=study.policy,
        timing=study.rules,
        subject=subject_facts(study.subject, study.workspace),
        data=study.data.facts,
        environment=environment_facts(),
        cells=tuple(found),
        not_run=_not_run(cells, missing),
        revisit=_revisit(cells),
    )


def _not_run(cells: Sequence[CellRun], missing: str) -> tuple[NotRun, ...]:
    lines = [NotRun(what="the rest of the study", reason=missing)] if missing else []
    for cell in cells:
        for what, reason in cell.failures:
            lines.append(NotRun(what=f"{cell.config.engine}: {what}", reason=reason))
        for variant in cell.variants:
            if variant.state != "measured":
                what = f"{cell.config.engine}: time of {variant.name}"
                lines.append(NotRun(what=what, reason=f"{variant.state}: {variant.reason}"))
    lines.append(NotRun(what="throughput, cold caches, other input shapes", reason="not asked for"))
    return tuple(lines)


def _revisit(cells: Sequence[CellRun]) -> tuple[str, ...]:
    """When to look again, as conditions that a program can check."""
    conditions = []
    for cell in cells:
        if cell.engine is None:
            continue
        name, info = cell.config.engine, cell.engine.info
        conditions.append(f"{name}.version > {info['version']}")
        conditions += [
            f"{name}.format.{variant.recipe.quantize[0].format} == native"
            for variant in cell.variants
            if variant.state == "emulated" and variant.recipe and variant.recipe.quantize
        ]
        conditions += [
            f"{name}.format.{variant.recipe.base} == native"
            for variant in cell.variants
            if variant.state == "not run" and variant.recipe and variant.recipe.base != "fp32"
        ]
        isa = info["details"].get("isa", "").split()
        if isa and not any(flag.endswith("vnni") for flag in isa):
            conditions.append("cpu.isa has avx512_vnni")
    return tuple(dict.fromkeys(conditions))


def _study_key(request: StudyRequest, original: OnnxModel) -> str:
    """What a finished stage depends on; a study that differs in any of it starts anew."""
    files: dict[str, Any] = {}
    config = request.config
    names = [config.data.source, config.data.calibration, config.data.holdout]
    names += [config.quality.metric, *(v.path for v in config.variant)]
    for name in names:
        path = request.folder / name if name else None
        if path is not None and path.is_file():
            files[str(name)] = sha256(path.read_bytes())
    return sha256(
        canonical(
            {
                "config": config.model_dump(mode="json", exclude={"timing": {"budget_minutes"}}),
                "subject": [original.sha256, dict(original.external_sha256)],
                "files": files,
                "environment": environment_facts().model_dump(mode="json"),
            }
        )
    )


def _begun(workspace: Workspace) -> datetime.datetime:
    """When the study began, to the second; a resumed one keeps the time of its first start."""
    stored = workspace.load("begun")
    if stored is None:
        stored = datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()
        workspace.save(stored, "begun")
    return datetime.datetime.fromisoformat(stored)


def _study_id(begun: datetime.datetime, key: str) -> str:
    """The study's id: when it began, and a part of its key."""
    return f"{begun:%Y-%m-%d-%H%M%S}-{key[:6]}"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """A polite end (SIGTERM) keeps as much as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: signals are the caller's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
