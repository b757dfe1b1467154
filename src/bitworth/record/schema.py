"""The record of one study: facts as measured, and what follows from them by rule.

Units are in the names: ``_ns``, ``_bytes``, ``_ratio`` (a plain fraction). Numbers are rounded to
6 significant digits before they are stored.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bitworth.recipe.recipe import Recipe
from bitworth.record.conversions import Conversions
from bitworth.record.device_profile import DeviceProfile
from bitworth.record.free_win_facts import FreeWinSearch, FreeWinVerdict
from bitworth.record.part import Part
from bitworth.record.profile_facts import ProfileFacts
from bitworth.record.site_facts import QuantizedSiteFact, RescaledFact
from bitworth.record.time_split import TimeSplit
from bitworth.record.timing_facts import TimingJob
from bitworth.record.variant_bounds import WorkFact
from bitworth.record.variant_outlook import VariantOutlook
from bitworth.record.why import Why
from bitworth.verdict import (
    CellVerdict,
    Comparison,
    CycleRatio,
    Decision,
    MetricLoss,
    Policy,
    QuantileInterval,
    TimingRules,
)

SCHEMA_VERSION: Literal[7] = 7


class Tensor(Part):
    """An input or output of the model; a symbolic dimension is its name, an unknown one None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class SiteFact(Part):
    """A quantizable operation of the prepared graph."""

    id: str
    node: str
    op_type: str
    weight_shape: tuple[int, ...]
    groups: int


class SubjectFacts(Part):
    """What was studied."""

    name: str
    kind: Literal["onnx", "torch"] = "onnx"
    base: str = Field(default="fp32", description="precision of the baseline")
    source: str = Field(description="where it came from, as the study file or command names it")
    sha256: str
    opset: int = Field(description="0: it is no ONNX model")
    prepared_opset: int
    prepared_sha256: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    sites: tuple[SiteFact, ...]
    attention_left_alone: tuple[str, ...]
    uncovered: tuple[tuple[str, str], ...] = Field(description="node and operator type")
    denormal_weights: int
    weights: int


class SplitFacts(Part):
    """One split of the data: its size and the hash over its samples' hashes."""

    count: int
    sha256: str
    shapes: tuple[dict[str, tuple[int, ...]], ...] = Field(description="distinct input shapes")


class DataFacts(Part):
    """The data that calibrated, and the data that judged."""

    source: str
    seed: int
    random: bool = Field(description="random inputs: no quality evidence")
    non_finite_activations: dict[str, int] = Field(
        default={}, description="calibrated values that were NaN or infinite, by tensor"
    )
    calibration: SplitFacts
    holdout: SplitFacts


class EnvironmentFacts(Part):
    """Where it ran."""

    bitworth: str
    python: str
    platform: str
    cpu: str
    cores: int
    memory_bytes: int
    libraries: dict[str, str]


class OutputError(Part):
    """Error of one output over all held-out samples, against the fp32 reference.

    ``rel_l2`` is the norm of the difference over the norm of the reference; ``cosine`` is taken
    over all elements; ``sqnr_db`` is None for an exact output.
    """

    rel_l2: float | None
    cosine: float | None
    sqnr_db: float | None
    max_abs: float | None
    non_finite: int


class MetricValues(Part):
    """A task metric, per held-out sample in the data's order; None where it does not apply."""

    kind: Literal["binary", "mean", "ratio", "perplexity"]
    better: Literal["higher", "lower"]
    values: tuple[float | None, ...]
    denominators: tuple[float | None, ...] | None = None


class QualityFacts(Part):
    """Quality of one variant, measured on its plan or emulated."""

    evidence: Literal["measured", "emulated"]
    n: int
    outputs: dict[str, OutputError]
    metrics: dict[str, MetricValues]


class OptimizationCheck(Part):
    """Error against the reference with and without the engine's optimization, same samples."""

    n: int
    optimized_rel_l2: float | None
    unoptimized_rel_l2: float | None
    limit: float | None


class BatchCheck(Part):
    """Error of the outputs of a batch against those of its samples alone, on the same plan."""

    n: int = Field(description="samples of the batch")
    rel_l2: float | None = Field(description="None: not finite")
    limit: float


class PlanFacts(Part):
    """A built plan."""

    bytes: int
    sha256: str
    build_ns: int
    layers: dict[str, int] = Field(description="count by the engine's layer type")
    precision: str = Field(description="base precision read back from the loaded plan")


class VariantFacts(Part):
    """One variant in one cell."""

    name: str
    source: Literal["recipe", "precision", "file"]
    file: str | None = None
    file_sha256: str | None = None
    recipe: Recipe | None = None
    recipe_sha256: str | None = None
    recipe_identity: int = Field(
        default=0, description="version of what that hash is of; 0: an older record's"
    )
    lowered_sha256: str | None = None
    sites: tuple[QuantizedSiteFact, ...] = ()
    dead: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    opset: int | None = Field(default=None, description="of its graph; None: the prepared one's")
    scalings: tuple[str, ...] = Field(
        default=(), description="values that sites read through a multiplication put there"
    )
    rescaled: tuple[RescaledFact, ...] = ()
    everywhere: tuple[str, ...] = Field(
        default=(), description="activation inputs that other operators get quantized as well"
    )
    kept: tuple[tuple[str, str], ...] = Field(
        default=(), description="nodes that stayed in fp32 under a 16-bit base, and why"
    )
    overflow: tuple[tuple[str, str], ...] = Field(
        default=(), description="tensors that the 16-bit base cannot hold as they are"
    )
    options: dict[str, str] = Field(
        default={}, description="engine options of this variant that are not the cell's"
    )
    state: Literal["measured", "emulated", "failed", "not run"]
    reason: str = ""
    plan: PlanFacts | None = None
    quality: QualityFacts | None = None
    check: OptimizationCheck | None = None
    batch_check: BatchCheck | None = None
    profile: ProfileFacts | None = Field(default=None, description="None: it was not profiled")


class CellFacts(Part):
    """One engine, device, shape and set of options, with its variants and their timing."""

    engine: str
    version: str
    device: str
    formats: dict[str, tuple[str, str]] = Field(description="state and reason by format")
    details: dict[str, str]
    shape: dict[str, tuple[int, ...]]
    mode: Literal["host", "throughput", "tail", "hot", "cold"]
    streams: int = Field(default=1, description="inferences in flight at once")
    batch: int | None = Field(default=None, description="samples in one call; None: as the data is")
    quantile: float | None = Field(default=None, description="what the tail mode compares")
    threads: int
    options: dict[str, str]
    options_sha256: str
    preferences: dict[str, str] = Field(description="what auto in a recipe resolves to")
    free_wins: tuple[str, ...] = Field(description="variants that an engine's hint gives for free")
    notes: tuple[str, ...] = Field(default=(), description="what was done to make it fair")
    free_win_search: FreeWinSearch | None = Field(
        default=None, description="changes to the baseline that were tried; None: none were"
    )
    free_win_jobs: tuple[TimingJob, ...] = ()
    groups: dict[str, tuple[str, ...]] = Field(description="site ids by group, as resolved here")
    variants: tuple[VariantFacts, ...]
    jobs: tuple[TimingJob, ...]
    limits: DeviceProfile | None = Field(
        default=None, description="measured rates of this device; None: not measured"
    )
    work: dict[str, WorkFact] = Field(
        default={}, description="products that each site is at this cell's shapes, by id"
    )


class NotRun(Part):
    """Something that was not run, and why."""

    what: str
    reason: str


class Facts(Part):
    """All that was observed; never edited."""

    created: str = Field(description="UTC, ISO 8601")
    command: str
    config: dict[str, Any]
    config_sha256: str
    policy: Policy
    timing: TimingRules
    subject: SubjectFacts
    data: DataFacts
    environment: EnvironmentFacts
    cells: tuple[CellFacts, ...]
    not_run: tuple[NotRun, ...]
    revisit: tuple[str, ...] = Field(description="conditions under which to look again")


class VariantSummary(Part):
    """What follows for one variant in one cell."""

    variant: str
    evidence: Literal["measured", "emulated", "none"]
    comparison: Comparison | None
    against_best: Comparison | None
    losses: tuple[MetricLoss, ...]
    scores: dict[str, float]
    rel_l2: float | None
    error_over_floor: float | None
    plan_bytes_ratio: float | None
    peak_bytes: int | None = Field(description="median over the sessions")
    load_ns: int | None = Field(description="median over the sessions")
    time: str = Field(description="empty, or why there is no time")


class GroupBound(Part):
    """The most that a group could give: its share of all profiled time, and Amdahl's ceiling."""

    group: str
    evidence: Literal["derived"] = "derived"
    share_of_profile: float
    ceiling_speedup: float | None = Field(description="None: it is all of the profile")


class Throughput(Part):
    """Items that a variant completed in a second, with their interval over n sessions."""

    items_per_s: float
    items_per_s_low: float | None = Field(description="None for one session")
    items_per_s_high: float | None
    n: int


class Latency(Part):
    """Absolute times of one variant in this run; no other run's compare with them."""

    variant: str
    p50: QuantileInterval | None
    tail: QuantileInterval | None = Field(description="None: too few calls a session")
    throughput: Throughput | None = Field(description="of the throughput mode, which has no others")


class UncoveredTime(Part):
    """A node that no recipe covers, and the share of all profiled time that it takes."""

    node: str
    what: str = Field(description="operator and reason")
    evidence: Literal["derived"] = "derived"
    share_of_profile: float | None = Field(description="None: the profile has no such layer")


class CellDerived(Part):
    """What follows from one cell's facts."""

    engine: str
    verdicts: tuple[CellVerdict, ...] = Field(description="one for each timing job")
    variants: tuple[VariantSummary, ...]
    profile_coverage: float | None
    bounds: tuple[GroupBound, ...]
    uncovered: tuple[UncoveredTime, ...] = ()
    decision: Decision
    free_wins: tuple[FreeWinVerdict, ...] = Field(
        default=(), description="what each change to the baseline gave"
    )
    cycles: tuple[CycleRatio, ...] = Field(
        default=(), description="comparisons in clock cycles, where the clocks differ"
    )
    latency: tuple[Latency, ...] = Field(default=(), description="absolute, of this run alone")
    splits: tuple[TimeSplit, ...] = Field(default=(), description="of every plan with a profile")
    conversions: tuple[Conversions, ...] = Field(
        default=(), description="of every variant with a profile, against the baseline's"
    )
    reasons: tuple[Why, ...] = Field(
        default=(), description="why each profiled variant is as fast as it is"
    )
    outlooks: tuple[VariantOutlook, ...] = Field(
        default=(), description="what each quantized variant could give, and gave"
    )


class Derived(Part):
    """What follows from the facts by the rules of ``rules_version``; can be recomputed."""

    rules_version: int
    timing: TimingRules = Field(description="constants that the verdicts follow")
    quality_level: float = Field(description="confidence level of the intervals of losses")
    resolvable_loss: dict[str, float] = Field(description="loss that n can resolve, by metric")
    cells: tuple[CellDerived, ...]
    decision: Decision


class Record(Part):
    """One study."""

    schema_version: Literal[7] = SCHEMA_VERSION
    id: str
    facts_sha256: str = Field(description="of the facts as canonical JSON, samples included")
    facts: Facts
    derived: Derived
