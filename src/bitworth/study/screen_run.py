"""Screens a model on each engine asked for: baseline, profile, limits, prospects."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bitworth.errors import UserError
from bitworth.measurement.device_lock import device_lock
from bitworth.measurement.workers import WorkerFailed
from bitworth.record.device_profile import DeviceProfile
from bitworth.study.cell_run import CellRun, cell_names
from bitworth.study.config import subject_path
from bitworth.study.preparation import prepare_study
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.roofline_cache import device_rates
from bitworth.study.screening import Screen, onnx_subject, screen_cell
from bitworth.study.sections import QualityConfig, StudyConfig
from bitworth.study.site_shapes import products_of, shapes_at, work_at
from bitworth.study.variants import group_sites
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import load


def baseline_only(config: StudyConfig) -> StudyConfig:
    """``config`` with nothing to build but the baseline, and one sample to run it on."""
    data = config.data.model_copy(update={"holdout_samples": 1})
    policy = config.policy.model_copy(update={"max_loss": {}})
    return config.model_copy(
        update={"variant": (), "quality": QualityConfig(), "data": data, "policy": policy}
    )


def run_screen(
    request: StudyRequest, reporter: Reporter, elsewhere: DeviceProfile | None
) -> tuple[Screen, ...]:
    """A screen for each cell of the request.

    Args:
        request: its variants, metric and output are not used.
        reporter: progress.
        elsewhere: rates of another device; None: those of this one are measured.

    Raises:
        UserError: a mistake in the model or its data; an engine that does not run the baseline or
            gives no profile.
    """
    config = baseline_only(request.config)
    request = StudyRequest(config, request.folder, request.output, request.command)
    if config.subject.torch is not None:
        raise UserError(
            "subject.torch: products of a PyTorch module are not measured on their own; screen "
            "what bitworth onnx makes of it"
        )
    original = load(subject_path(config.subject, request.folder))
    with tempfile.TemporaryDirectory(prefix="bitworth-screen-") as folder:
        workspace = Workspace(Path(folder))
        with workspace.locked(), device_lock("cpu"):
            study = prepare_study(request, original, workspace, reporter)
            found = []
            for cell, name in zip(config.cell, cell_names(config.cell), strict=True):
                run = CellRun(study, cell, name)
                with reporter.stage(f"{cell.engine}: baseline and its profile", 1) as advance:
                    try:
                        run.prepare()
                    except WorkerFailed as failure:
                        raise UserError(f"engine {cell.engine}: {failure}") from None
                    advance(1)
                found.append(_screened(run, reporter, elsewhere))
    return tuple(found)


def _screened(run: CellRun, reporter: Reporter, elsewhere: DeviceProfile | None) -> Screen:
    study = run.study
    names = ["all", *(g.name for g in study.config.group)]
    groups = group_sites(
        study.config.group, names, study.subject.sites, run.site_times(), study.subject.attention
    )
    limits = elsewhere
    if limits is None:
        assert run.engine is not None
        subject = onnx_subject(run)
        shapes = shapes_at(subject.fair.model, run.inputs)
        products = products_of(work_at(subject.every_site, shapes))
        engine = run.engine
        try:
            limits = device_rates(
                study.workspace, engine.engine, engine.info, engine.options, products, reporter
            )
        except WorkerFailed as failure:
            raise UserError(f"engine {run.config.engine}: {failure}") from None
    return screen_cell(run, groups, limits)
