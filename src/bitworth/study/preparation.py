"""Everything before the first cell: data, subject, calibration, reference, metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bitworth.calibration import Calibration, cache, observe
from bitworth.engines.base import EngineOptions
from bitworth.engines.cpu import usable_cores
from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore
from bitworth.measurement.metric_file import load_metric
from bitworth.measurement.quality import MetricSpec, Score
from bitworth.measurement.workers import WorkerFailed
from bitworth.recipe import FORMATS
from bitworth.record.schema import DataFacts
from bitworth.record.store import canonical, sha256
from bitworth.study.calibration_plan import CalibrationPlan, calibration_plan, is_calibrated
from bitworth.study.cell_stage import Judge, compute_reference
from bitworth.study.context import StudyContext, policy_of, timing_rules
from bitworth.study.data_stage import StudyData, open_data
from bitworth.study.lowered import Lowering
from bitworth.study.onnx_variant import OnnxLowering
from bitworth.study.originals import Original, TorchModel
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.sections import StudyConfig
from bitworth.study.subject_stage import Subject, prepare_subject
from bitworth.study.subjects import StudiedSubject
from bitworth.study.timed_input import check_batches
from bitworth.study.torch_inputs import module_inputs
from bitworth.study.torch_subject import calibrate_module, prepare_module
from bitworth.study.torch_subject import is_calibrated as is_module_calibrated
from bitworth.study.torch_variant import TorchLowering
from bitworth.study.variants import group_sites
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import InputSpec, OnnxModel, load


def prepare_study(
    request: StudyRequest, original: Original, workspace: Workspace, reporter: Reporter
) -> StudyContext:
    """Read, check, calibrate and compute the reference.

    Raises:
        UserError: a mistake in the study, its data or its metric; a full disk.
    """
    config = request.config
    if workspace.resumed:
        reporter.say(f"resuming the study of {config.subject.name}")
    # A metric that cannot be imported is told before minutes of work, not after them.
    metadata = original.metadata if isinstance(original, OnnxModel) else {}
    metrics, score = _metric(request, metadata)
    if isinstance(original, OnnxModel):
        made = _prepare_onnx(request, original, workspace, reporter)
    else:
        made = _prepare_torch(request, original, workspace, reporter)
    return StudyContext(
        config=config,
        folder=request.folder,
        workspace=workspace,
        reporter=reporter,
        subject=made.subject,
        lowering=made.lowering,
        data=replace(made.data, facts=_with_warnings(made.data, made.calibration, reporter)),
        statistics=made.calibration.statistics if made.calibration else {},
        judge=Judge(made.data, made.reference, metrics, score),
        rules=timing_rules(config),
        policy=policy_of(config),
    )


@dataclass(frozen=True)
class _Prepared:
    """What each kind of subject is prepared to."""

    subject: StudiedSubject
    lowering: Lowering
    data: StudyData
    calibration: Calibration | None
    reference: ArrayStore


def _metric(
    request: StudyRequest, metadata: Mapping[str, str]
) -> tuple[dict[str, MetricSpec], Score | None]:
    config = request.config
    metrics: dict[str, MetricSpec] = {}
    score: Score | None = None
    if config.quality.metric is not None and not config.data.random_inputs:
        metrics, score = load_metric(request.folder / config.quality.metric, metadata)
    if config.policy.max_loss and config.data.random_inputs:
        raise UserError("policy.max_loss: random inputs have no quality; give data or leave it out")
    for name in config.policy.max_loss:
        if name not in metrics:
            known = ", ".join(metrics) or "none"
            raise UserError(f"policy.max_loss: no metric '{name}'; the study's metrics: {known}")
    return metrics, score


def _prepare_onnx(
    request: StudyRequest, original: OnnxModel, workspace: Workspace, reporter: Reporter
) -> _Prepared:
    config = request.config
    calibrated = is_calibrated(config)
    if original.has_qdq:
        raise UserError(
            f"{original.path}: is quantized already (it has Q/DQ nodes) and is no honest baseline; "
            "give its float original, and this file as a candidate: bitworth compare"
        )
    _check_candidates(config, request.folder, original)
    data = _data(request, original.inputs, calibrated, workspace, reporter)
    try:
        subject = prepare_subject(config, original, data.inputs[0], workspace)
        if _is_quantized(config) and not subject.sites:
            raise UserError(f"{original.path}: has no Conv, Gemm or MatMul with a constant weight")
        _check_groups(config, subject)
        plan = calibration_plan(config, subject)
        calibration = _calibrate(subject, plan, data, workspace, reporter) if calibrated else None
        options = EngineOptions(threads=usable_cores(), optimization="none")
        reference = compute_reference(
            workspace, subject.reference_engine, original.path, data, options, reporter
        )
    except WorkerFailed as failure:
        raise UserError(
            f"{original.path}: does not run in onnxruntime, which computes the reference "
            f"({failure})"
        ) from None
    return _Prepared(subject, OnnxLowering(subject), data, calibration, reference)


def _prepare_torch(
    request: StudyRequest, original: TorchModel, workspace: Workspace, reporter: Reporter
) -> _Prepared:
    config = request.config
    calibrated = is_module_calibrated(config)
    data = _data(
        request, module_inputs(config.data, request.folder), calibrated, workspace, reporter
    )
    subject = prepare_module(config, original.process, data, workspace)
    if _is_quantized(config) and not subject.sites:
        raise UserError(f"subject.torch: {subject.source}: no Linear or convolution ran")
    _check_groups(config, subject)
    calibration = (
        calibrate_module(config, subject, data, workspace, reporter) if calibrated else None
    )
    options = EngineOptions(threads=usable_cores(), optimization="none")
    try:
        reference = compute_reference(
            workspace, subject.reference_engine, subject.reference_model(workspace), data, options,
            reporter,
        )  # fmt: skip
    except WorkerFailed as failure:
        raise UserError(
            f"subject.torch: {subject.source}: does not run in fp32, which is the reference "
            f"({failure})"
        ) from None
    return _Prepared(subject, TorchLowering(subject), data, calibration, reference)


def _data(
    request: StudyRequest,
    inputs: tuple[InputSpec, ...],
    calibrated: bool,
    workspace: Workspace,
    reporter: Reporter,
) -> StudyData:
    config = request.config
    at_least = max(cell.batch or 1 for cell in config.cell)
    data = open_data(
        config.data, request.folder, inputs, calibrated, workspace, reporter, at_least=at_least
    )
    check_batches(config.cell, data.inputs, inputs)
    return data


def _check_groups(config: StudyConfig, subject: StudiedSubject) -> None:
    """A group that matches nothing is told now, not after minutes; times come with a profile."""
    timeless = [g for g in config.group if g.top_share is None]
    names = [g.name for g in timeless]
    group_sites(timeless, names, subject.sites, {}, subject.attention)


def _check_candidates(config: StudyConfig, folder: Path, original: OnnxModel) -> None:
    """Models that were quantized elsewhere take and give the tensors of the original.

    Raises:
        UserError: one is no readable model, or does not.
    """
    expected = [(i.name, i.dtype) for i in original.inputs]
    for variant in config.variant:
        if variant.path is None:
            continue
        model = load(folder / variant.path)
        same = [(i.name, i.dtype) for i in model.inputs] == expected
        if not same or set(model.outputs) != set(original.outputs):
            raise UserError(
                f"{model.path}: its inputs and outputs are not those of {original.path.name}; "
                "compare models that take and give the same tensors"
            )


def _with_warnings(
    data: StudyData, calibration: Calibration | None, reporter: Reporter
) -> DataFacts:
    """The data's facts with the activations that calibration found to be no numbers."""
    found = dict(calibration.nonfinite) if calibration else {}
    for name, count in found.items():
        reporter.say(f"warning: {count} activations of {name} are not finite; they enter no range")
    return data.facts.model_copy(update={"non_finite_activations": found})


def _is_quantized(config: StudyConfig) -> bool:
    return any(v.format and FORMATS[v.format].role == "quantized" for v in config.variant)


def _calibrate(
    subject: Subject,
    plan: CalibrationPlan,
    data: StudyData,
    workspace: Workspace,
    reporter: Reporter,
) -> Calibration:
    """Ranges of every value that a variant may quantize, from one pass over the data."""
    values, axes = plan.values, dict(plan.channel_axes)
    key = sha256(canonical([list(values), axes, data.facts.calibration.sha256]))
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
            channel_axes=axes,
            progress=advance,
        )
    cache.save(path, found, key)
    return found
