"""What a comparison found, as it is committed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Facts:
    """What a tensor's values were, read with plain onnxruntime over the calibration samples.

    Attributes:
        low, high: extremes.
        entropy_by_sample, entropy_of_all: ranges that onnxruntime's entropy method gives for them,
            with the settings of modelopt and of onnxruntime; only where a run needs them.
        deviation: their standard deviation as onnxruntime's FP8 takes it, likewise.
    """

    low: float
    high: float
    entropy_by_sample: tuple[float, float] | None = None
    entropy_of_all: tuple[float, float] | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class Role:
    """Where a tensor stands in the graph.

    Attributes:
        by: operator that writes it; ``input`` for an input of the graph.
        read_by: operators that read it, each once.
        prepared: whether Bitworth's prepared graph has it.
        site_input: whether a site reads it.
        site_output: whether a site writes it.
        behind_site: whether it is the value at which Bitworth would quantize a site's output.
        left_out: whether the peer leaves the weights alone of all sites that read it.
        product: whether a product of two activations reads or writes it.
        head: whether it only leads to outputs of the graph.
    """

    by: str
    read_by: tuple[str, ...] = ()
    prepared: bool = False
    site_input: bool = False
    site_output: bool = False
    behind_site: bool = False
    left_out: bool = False
    product: bool = False
    head: bool = False


@dataclass(frozen=True)
class Row:
    """One tensor of one run, where the two sides are not equal.

    Attributes:
        tensor: its name; of a weight, its site's.
        kind: activation or weight.
        cause: why.
        ours, theirs: scale; of a weight with several the largest; None: it is not quantized.
        our_zero, their_zero: zero points.
        apart: largest relative difference of a scale; 0 where one side has none.
        other: the other tensor that the cause is about, if any.
        off: of a weight whose scales a rule explains, the largest relative difference between what
            the rule says and the peer's scales.
        role: of a tensor that one side alone quantizes.
    """

    tensor: str
    kind: str
    cause: str
    ours: float | None = None
    theirs: float | None = None
    our_zero: float = 0.0
    their_zero: float = 0.0
    apart: float = 0.0
    other: str = ""
    off: float | None = None
    role: Role | None = None


@dataclass(frozen=True)
class Error:
    """How far a quantized model's outputs are from the float model's, on the held-out samples.

    Attributes:
        relative_l2: over all samples together.
        agreement: share of samples, or of pixels, on which the decision is the float model's.
    """

    relative_l2: float
    agreement: float


@dataclass(frozen=True)
class Run:
    """One model under one method.

    Attributes:
        peer, method: as in forms.py.
        failed: the peer's own last word where it wrote no model that loads; else empty.
        equal: activations whose scales agree, with the scale of both.
        equal_weights: weights whose scales all agree, by site, with the largest scale.
        rows: all others.
        theirs, ours: errors of the two models.
        ours_inputs_only: of Bitworth's without quantized outputs.
        ours_their_sites: of Bitworth's with those sites alone whose weights the peer quantizes;
            None where these are all.
        ours_their_inputs: of the same without quantized outputs, likewise.
        exchanged: of the peer's model with Bitworth's scales for the activations that both
            quantize.
        nudged: smallest and largest relative L2 of the peer's model with its own activation scales
            all multiplied by 0.97 to 1.03: what of an error is the luck of rounding.
    """

    peer: str
    method: str
    failed: str = ""
    equal: dict[str, float] = field(default_factory=dict)
    equal_weights: dict[str, float] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    theirs: Error | None = None
    ours: Error | None = None
    ours_inputs_only: Error | None = None
    ours_their_sites: Error | None = None
    ours_their_inputs: Error | None = None
    exchanged: Error | None = None
    nudged: tuple[float, float] | None = None


@dataclass(frozen=True)
class Comparison:
    """One model against all peers.

    Attributes:
        model: its name here.
        sha256: of the file.
        data_sha256: of the data's arrays.
        calibration, holdout: samples.
        decision: what ``agreement`` counts.
        versions: of the packages at work, by environment.
        facts: of activations, by name.
        weights: of weights, by site.
        related: by tensor, its neighbours through operators that move values or join tensors.
        runs: one a form.
        others: held-out errors of quantizers that are not compared scale by scale.
    """

    model: str
    sha256: str
    data_sha256: str
    calibration: int
    holdout: int
    decision: str
    versions: dict[str, dict[str, str]]
    facts: dict[str, Facts]
    weights: dict[str, Facts]
    related: dict[str, tuple[str, ...]]
    runs: tuple[Run, ...]
    others: dict[str, Error] = field(default_factory=dict)


def read(path: Path) -> Comparison:
    """The comparison in ``path``."""
    return TypeAdapter(Comparison).validate_json(path.read_bytes())


def write(path: Path, comparison: Comparison) -> None:
    """Write ``comparison``: numbers with 9 digits, which a float32 needs; no defaults."""
    tree = TypeAdapter(Comparison).dump_python(comparison, mode="json", exclude_defaults=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(tree), separators=(",", ":"), sort_keys=True) + "\n")


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
