"""Run a study from its configuration to its record."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from bitworth.measurement.workers import WorkerFailed
from bitworth.record.make import make_record
from bitworth.record.schema import Facts, Record
from bitworth.record.store import canonical, read_record, remove_record, sha256, write_record
from bitworth.study.assembly import study_facts
from bitworth.study.cell_run import CellRun, cell_names
from bitworth.study.config import with_until_settled
from bitworth.study.context import StudyContext
from bitworth.study.environment import environment_facts, machine_name
from bitworth.study.originals import Original, TorchModel, opened
from bitworth.study.outputs import PARTIAL, OutputPaths, output_paths, write_outputs
from bitworth.study.preparation import prepare_study
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.workspace import Workspace


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


def run_study(request: StudyRequest, reporter: Reporter) -> tuple[Record, OutputPaths]:
    """Run a study, or what is left of it, and write its record.

    Raises:
        UserError: a mistake in the study, its data or its metric; a full disk.
        Interrupted: Ctrl-C or SIGTERM; a partial record is written.
    """
    with opened(request.config.subject, request.folder) as original:
        return _run(request, original, reporter)


def _run(
    request: StudyRequest, original: Original, reporter: Reporter
) -> tuple[Record, OutputPaths]:
    folder = (
        request.output / file_folder(request.config.subject.name) / machine_name(_on_gpu(request))
    )
    key = _study_key(request, original)
    workspace = Workspace(request.output / ".bitworth" / key[:16])
    with workspace.locked(), _sigterm_as_interrupt():
        request = _as_begun(request, workspace, reporter)
        config = request.config
        begun = _begun(workspace)
        id_ = _study_id(begun, key)
        paths = output_paths(folder, id_)
        partial = paths.record.with_suffix(PARTIAL)
        cells: list[CellRun] = []
        study: StudyContext | None = None
        budget_s = config.timing.budget_minutes * 60
        try:
            study = prepare_study(request, original, workspace, reporter)
            for cell, name in zip(config.cell, cell_names(config.cell), strict=True):
                cells.append(CellRun(study, cell, name))
                _prepare_cell(cells[-1], budget_s / len(config.cell))
            if isinstance(original, TorchModel):
                original.process.close()  # everything is lowered, and it holds memory
            _time_cells(cells, budget_s - sum(cell.search_s for cell in cells))
        except KeyboardInterrupt:
            advice = "run the same command again to resume"
            facts = study and study_facts(request, study, cells, begun, "interrupted")
            if not facts or not facts.cells:
                raise Interrupted(None, advice) from None
            if _sessions(facts) >= _sessions_of(partial):
                remove_record(partial)
                write_record(make_record(id_, facts), partial)
            raise Interrupted(partial, advice) from None
        facts = study_facts(request, study, cells, begun, "")
        record = make_record(id_, facts)
        write_outputs(record, paths)
        remove_record(partial)
        workspace.remove()
    return record, paths


def _on_gpu(request: StudyRequest) -> bool:
    """Whether a cell runs on the machine's GPU, where it has one."""
    cells = request.config.cell
    return any(c.engine == "torch" and c.options.get("device") != "cpu" for c in cells)


def file_folder(name: str) -> str:
    """The folder of a subject: its name, as far as a file system takes it."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".-") or "subject"


def _prepare_cell(cell: CellRun, budget_s: float) -> None:
    try:
        cell.prepare(budget_s)
    except WorkerFailed as failure:
        cell.failures.append((f"engine {cell.config.engine}", str(failure)))


def _time_cells(cells: Sequence[CellRun], budget_s: float) -> None:
    """Time the cells one after another; what one leaves of the budget goes to the next.

    Sessions of an earlier run count as spent.
    """
    left = budget_s
    for index, cell in enumerate(cells):
        cell.time(max(left / (len(cells) - index), 1.0))
        left -= cell.spent_s


def _sessions(facts: Facts) -> int:
    return sum(len(job.sessions) for cell in facts.cells for job in cell.jobs)


def _sessions_of(partial: Path) -> int:
    """Sessions of an earlier partial record: one that is interrupted sooner does not replace it."""
    return _sessions(read_record(partial).facts) if partial.exists() else 0


def _study_key(request: StudyRequest, original: Original) -> str:
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
                # Policy and precision judge what was measured; changing them loses no session.
                "config": config.model_dump(mode="json", exclude={"policy", "timing"}),
                "seed": config.timing.seed,
                "subject": original.identity_sha256,
                "files": files,
                "environment": environment_facts().model_dump(
                    mode="json", exclude={"memory_bytes"}
                ),
            }
        )
    )


def _as_begun(request: StudyRequest, workspace: Workspace, reporter: Reporter) -> StudyRequest:
    """The request, judged as the study was begun.

    Who has seen verdicts of a study until settled and resumes it by the rule of precision would
    choose when to stop by what was seen, at a level that does not allow for it.
    """
    rule = "until-settled"
    if request.config.timing.until_settled:
        workspace.save(True, rule)
    elif workspace.load(rule):
        reporter.say("this study was begun with --until-settled and goes on so")
        return replace(request, config=with_until_settled(request.config, request.folder))
    return request


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
