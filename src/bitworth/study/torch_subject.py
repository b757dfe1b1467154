"""A PyTorch subject: its module, scanned on a real sample, and its models as lowered files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitworth.bound.free_wins import FreeWin
from bitworth.calibration import Calibration, cache
from bitworth.engines.plan_file import plan_sha256
from bitworth.recipe import Quantize, Site
from bitworth.recipe.consistency import needs_ranges
from bitworth.record.schema import SiteFact, SubjectFacts, Tensor
from bitworth.record.store import canonical, sha256
from bitworth.study.data_stage import StudyData
from bitworth.study.progress import Reporter
from bitworth.study.sections import StudyConfig
from bitworth.study.torch_process import ModuleProcess, Scan
from bitworth.study.variants import recipe_of
from bitworth.study.workspace import Workspace
from bitworth.subject.onnx_model import InputSpec


@dataclass(frozen=True)
class TorchSubject:
    """The module under study.

    Attributes:
        source: the factory, as the study names it.
        name: its name.
        base: precision of the baseline.
        process: holds the module.
        scan: what one run of it showed.
    """

    source: str
    name: str
    base: str
    process: ModuleProcess
    scan: Scan

    reference_engine = "torch"
    free_win: FreeWin | None = None
    denormal_share: float = 0.0

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes; the sizes of a sample are no limit."""
        return tuple(
            InputSpec(name, dtype, tuple(None for _ in shape))
            for name, (shape, dtype) in self.scan.inputs.items()
        )

    @property
    def sites(self) -> tuple[Site, ...]:
        """Linear and convolution modules, in the order in which they first ran."""
        return self.scan.sites

    @property
    def attention(self) -> tuple[Site, ...]:
        """None: products of two activations are left to PyTorch's own attention."""
        return ()

    @property
    def every_site(self) -> tuple[Site, ...]:
        """The sites."""
        return self.scan.sites

    @property
    def producers(self) -> Mapping[str, str]:
        """None: a profile names modules."""
        return {}

    @property
    def upstream(self) -> Mapping[str, Sequence[str]]:
        """The modules themselves, by name."""
        return {site.node: () for site in self.scan.sites}

    def fair_model(self, workspace: Workspace) -> Path:
        """The module in the base precision."""
        return _model(workspace, "fair")

    def denormal_model(self, workspace: Workspace) -> Path:
        """The same: denormal weights are left as they are."""
        return _model(workspace, "fair")

    def given_model(self, workspace: Workspace) -> Path:
        """The same: options are all that a free win changes."""
        return _model(workspace, "fair")

    def reference_model(self, workspace: Workspace) -> Path:
        """The module in fp32."""
        return _model(workspace, "reference")

    def model_sha256(self, path: Path) -> str:
        """Hash of the file: specification and tensors."""
        return plan_sha256(path)

    def facts(self, workspace: Workspace) -> SubjectFacts:
        """The record's form of it."""
        return SubjectFacts(
            name=self.name,
            kind="torch",
            base=self.base,
            source=self.source,
            sha256=str(self.process.identity["identity_sha256"]),
            opset=0,
            prepared_opset=0,
            prepared_sha256=self.model_sha256(self.fair_model(workspace)),
            inputs=tuple(
                Tensor(name=i.name, dtype=i.dtype, shape=i.shape or ()) for i in self.inputs
            ),
            outputs=self.scan.outputs,
            sites=tuple(
                SiteFact(
                    id=s.id, node=s.node, op_type=s.op_type, weight_shape=s.weight_shape,
                    groups=s.groups,
                )
                for s in self.sites
            ),
            attention_left_alone=(),
            uncovered=tuple((name, f"{kind}: {why}") for name, kind, why in self.scan.uncovered),
            denormal_weights=int(self.process.identity["denormals"]),
            weights=int(self.process.identity["weights"]),
        )  # fmt: skip


def prepare_module(
    config: StudyConfig, process: ModuleProcess, data: StudyData, workspace: Workspace
) -> TorchSubject:
    """Scan the module on the first held-out sample, and write it in the base precision and fp32.

    Raises:
        UserError: it does not run on the data.
    """
    assert config.subject.torch is not None
    subject = TorchSubject(
        source=config.subject.torch,
        name=config.subject.name,
        base=config.subject.base,
        process=process,
        scan=process.scan(data.inputs[0]),
    )
    for which, base in (("fair", subject.base), ("reference", "fp32")):
        path = _model(workspace, which)
        if not path.exists():
            process.lower(path, base, (), {}, subject.scan)
    return subject


def calibrate_module(
    config: StudyConfig,
    subject: TorchSubject,
    data: StudyData,
    workspace: Workspace,
    reporter: Reporter,
) -> Calibration:
    """Ranges of what every site reads, from one pass over the calibration data."""
    values = {site.activation: site.node for site in subject.sites}
    key = sha256(canonical([list(values), data.facts.calibration.sha256]))
    path = workspace.path("data", "calibration.npz")
    found = cache.load(path, key)
    if found is not None:
        return found
    assert data.calibration is not None
    with reporter.stage(f"calibrating {len(values)} tensors", data.calibration.count) as advance:
        samples = (sample.inputs for sample in data.calibration)
        found = subject.process.observe(samples, values, advance)
    cache.save(path, found, key)
    return found


def is_calibrated(config: StudyConfig) -> bool:
    """Whether a variant needs ranges."""
    return any(needs_ranges(entry) for entry in _entries(config))


def _entries(config: StudyConfig) -> list[Quantize]:
    chosen = [v for v in config.variant if v.format is not None and v.source == "recipe"]
    return [entry for variant in chosen for entry in recipe_of(variant).quantize]


def _model(workspace: Workspace, which: str) -> Path:
    return workspace.path("models", f"{which}.safetensors")
