"""The subject: loaded, prepared, scanned for sites, and made fair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitworth.bound.free_wins import FreeWin, denormal_win
from bitworth.engines.base import Arrays
from bitworth.measurement.workers import Worker
from bitworth.recipe import FORMATS, Site
from bitworth.record.schema import SiteFact, SubjectFacts, Tensor
from bitworth.study.sections import StudyConfig
from bitworth.study.workspace import Workspace
from bitworth.subject.denormals import count_denormals, flush_denormals
from bitworth.subject.onnx_model import InputSpec, OnnxModel, load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import SiteScan, find_sites


@dataclass(frozen=True)
class Subject:
    """The model under study, as it was given and as it is studied.

    Attributes:
        source: where it came from, as the study names it.
        name: its name.
        original: as it was given; the reference runs this file.
        given: prepared, with the weights as given.
        fair: prepared, with the free wins that change no result; every variant starts from it.
        scan: its sites.
        denormals: denormal weights.
        free_win: what became of them; None when there are none.
        base: precision of the baseline.
        reference_engine: what computes the reference.
    """

    source: str
    name: str
    original: OnnxModel
    given: PreparedModel
    fair: PreparedModel
    scan: SiteScan
    denormals: int
    free_win: FreeWin | None
    base: str = "fp32"
    reference_engine: str = "onnxruntime"

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes."""
        return self.fair.inputs

    def fair_model(self, workspace: Workspace) -> Path:
        """The prepared model with the free wins that change no result."""
        return _model_path(workspace, "fair")

    def denormal_model(self, workspace: Workspace) -> Path:
        """The prepared model with its weights as given."""
        return _model_path(workspace, "as_given")

    def given_model(self, workspace: Workspace) -> Path:
        """The user's own file."""
        del workspace
        return self.original.path

    def model_sha256(self, path: Path) -> str:
        """See ``model_sha256``."""
        return model_sha256(path)

    def facts(self, workspace: Workspace) -> SubjectFacts:
        """The record's form of it."""
        return _facts(self, workspace)

    @property
    def denormal_share(self) -> float:
        """Share of the weights that are denormal."""
        return self.denormals / max(1, _weight_count(self.given))

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites, in graph order."""
        return self.scan.sites

    @property
    def attention(self) -> tuple[Site, ...]:
        """Products of two activations; in no group unless asked for."""
        return self.scan.attention

    @property
    def every_site(self) -> tuple[Site, ...]:
        """Sites and products of two activations."""
        return (*self.sites, *self.attention)

    @property
    def producers(self) -> dict[str, str]:
        """Value name to the name of the node that writes it."""
        return {
            str(value.name): str(node.name)
            for node in self.fair.model.graph
            for value in node.outputs
        }

    @property
    def upstream(self) -> dict[str, tuple[str, ...]]:
        """Node name to the names of the values that it reads."""
        return {
            str(node.name): tuple(str(v.name) for v in node.inputs if v is not None)
            for node in self.fair.model.graph
        }


def common_opset(config: StudyConfig) -> int:
    """The opset of the graph that all variants start from.

    That of int8 with a scale per channel, which every engine reads; a variant that needs a higher
    one is raised alone, since engines refuse much of what is newer.
    """
    quantized = any(v.format and FORMATS[v.format].role == "quantized" for v in config.variant)
    return FORMATS["int8"].onnx_opset if quantized else 0


def prepare_subject(
    config: StudyConfig, original: OnnxModel, sample: Arrays, workspace: Workspace
) -> Subject:
    """Prepare the model, find its sites, and look for the free wins that change no result.

    Args:
        config: the study.
        original: the model as given.
        sample: one real input, on which a free win must change nothing.
        workspace: where the prepared models are written.
    """
    given = prepare(original, common_opset(config))
    counts = count_denormals(given.model)
    fair, win = given, None
    save(given.model, workspace.path("models", "as_given.onnx"))
    if counts:
        flushed = flush_denormals(given)
        save(flushed.model, workspace.path("models", "flushed.onnx"))
        with Worker("free-win", workspace.path("logs", "free_wins.log")) as worker:
            win = denormal_win(
                worker,
                sum(counts.values()),
                workspace.path("models", "as_given.onnx"),
                workspace.path("models", "flushed.onnx"),
                sample,
            )
        fair = flushed if win.applied else given
    save(fair.model, workspace.path("models", "fair.onnx"))
    return Subject(
        source=_source(config),
        name=config.subject.name,
        original=original,
        given=given,
        fair=fair,
        scan=find_sites(fair),
        denormals=sum(counts.values()),
        free_win=win,
    )


def _model_path(workspace: Workspace, which: str) -> Path:
    """A prepared model's file: ``as_given`` or ``fair``."""
    return workspace.path("models", f"{which}.onnx")


def model_sha256(path: Path) -> str:
    """Hash of a written model: its graph and every weight, wherever they are stored."""
    return graph_sha256(load(path).model)


def _facts(subject: Subject, workspace: Workspace) -> SubjectFacts:
    return SubjectFacts(
        name=subject.name,
        source=subject.source,
        sha256=subject.original.identity_sha256,
        opset=subject.original.opset,
        prepared_opset=subject.fair.opset,
        prepared_sha256=model_sha256(subject.fair_model(workspace)),
        inputs=tuple(
            Tensor(name=i.name, dtype=i.dtype, shape=i.shape or ()) for i in subject.fair.inputs
        ),
        outputs=subject.fair.outputs,
        sites=tuple(
            SiteFact(
                id=s.id,
                node=s.node,
                op_type=s.op_type,
                weight_shape=s.weight_shape,
                groups=s.groups,
            )
            for s in subject.sites
        ),
        attention_left_alone=subject.scan.attention_nodes,
        uncovered=tuple((u.node, f"{u.op_type}: {u.reason}") for u in subject.scan.uncovered),
        denormal_weights=subject.denormals,
        weights=_weight_count(subject.fair),
    )


def _weight_count(prepared: PreparedModel) -> int:
    tensors = (v.const_value for v in prepared.model.graph.initializers.values())
    return sum(t.size for t in tensors if t is not None)


def _source(config: StudyConfig) -> str:
    subject = config.subject
    assert subject.onnx is not None
    return f"{subject.package}:{subject.onnx}" if subject.package else Path(subject.onnx).name
