"""Quality of a variant over all held-out samples, against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import Arrays, one_line
from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore
from bitworth.measurement.workers import WorkerFailed

#: Elements of one chunk: 256 KB in float64.
_CHUNK = 32768
#: What a metric of each kind returns for one sample.
_EXPECTED = {
    "binary": "0 or 1",
    "mean": "one finite number",
    "ratio": "a pair of finite numbers, the second at least 0",
    "perplexity": "a pair of finite numbers: nats in all, and tokens, at least 0",
}
MetricKind = Literal["binary", "mean", "ratio", "perplexity"]
Value = float | tuple[float, float]
Score = Callable[[Arrays, object], Mapping[str, Value]]
Run = Callable[[Arrays], Mapping[str, NDArray[np.generic]]]


@dataclass(frozen=True)
class MetricSpec:
    """A task metric that a study declares.

    Attributes:
        kind: ``binary`` (0 or 1 a sample), ``mean`` (a number a sample), ``ratio`` (the sum of
            numerators over the sum of denominators), ``perplexity`` (exp of the sum of negative
            log-likelihoods, in nats, over the sum of tokens; lower is better).
        better: which way is better.
    """

    kind: MetricKind
    better: Literal["higher", "lower"]


@dataclass
class OutputSums:
    """Sums from which the errors of one output follow; float64 throughout."""

    difference: float = 0.0
    reference: float = 0.0
    output: float = 0.0
    max_abs: float = 0.0
    non_finite: int = 0

    def add(self, reference: NDArray[np.generic], output: NDArray[np.generic]) -> None:
        """Add one sample's output; both arrays have one shape.

        Outputs can be millions of numbers and samples hundreds, so this goes chunk by chunk: a
        chunk stays in the cache, whole arrays would be read from memory once an operation.
        """
        want, got = reference.reshape(-1), output.reshape(-1)
        for start in range(0, got.size, _CHUNK):
            self._add_chunk(want[start : start + _CHUNK], got[start : start + _CHUNK])

    def _add_chunk(self, want: NDArray[np.generic], got: NDArray[np.generic]) -> None:
        exact = want.astype(np.float64)
        difference = got.astype(np.float64)
        output = _squared_norm(difference)
        with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity: counted below
            difference -= exact
        squared = _squared_norm(difference)
        if not math.isfinite(squared):  # one non-finite element makes the sum non-finite
            count = got.size - int(np.count_nonzero(np.isfinite(difference)))
            self.non_finite += max(1, count)  # or squares beyond float64
            return
        self.difference += squared
        self.output += output
        self.reference += _squared_norm(exact)
        self.max_abs = max(self.max_abs, float(difference.max()), -float(difference.min()))

    @property
    def rel_l2(self) -> float | None:
        """Norm of the difference over the norm of the reference; None with non-finite outputs."""
        if self.non_finite:
            return None
        if self.reference == 0:
            return 0.0 if self.difference == 0 else None
        return math.sqrt(self.difference / self.reference)

    @property
    def cosine(self) -> float | None:
        """Cosine over all elements; None with non-finite outputs or a zero norm."""
        norms = math.sqrt(self.reference) * math.sqrt(self.output)
        # |a - b|^2 = |a|^2 + |b|^2 - 2 ab
        product = (self.reference + self.output - self.difference) / 2
        return None if self.non_finite or norms == 0 else max(-1.0, min(1.0, product / norms))

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in dB; None for an exact or a non-finite output."""
        if self.non_finite or self.difference == 0 or self.reference == 0:
            return None
        return 10 * math.log10(self.reference / self.difference)


@dataclass
class Quality:
    """What ``evaluate`` found, in the samples' order.

    Attributes:
        n: samples.
        outputs: sums by output.
        metrics: values by metric; None where a metric does not apply to a sample.
        head_n, head_rel_l2: samples of the head, and the error over them alone.
    """

    n: int = 0
    outputs: dict[str, OutputSums] = field(default_factory=dict)
    metrics: dict[str, list[Value | None]] = field(default_factory=dict)
    head_n: int = 0
    head_rel_l2: float | None = None

    @property
    def rel_l2(self) -> float | None:
        """The largest relative L2 error over the outputs; None if one is not finite."""
        errors = [sums.rel_l2 for sums in self.outputs.values()]
        known = [e for e in errors if e is not None]
        return max(known) if known and len(known) == len(errors) else None


def evaluate(
    run: Run,
    samples: Iterable[tuple[Arrays, object]],
    reference: ArrayStore,
    metrics: Mapping[str, MetricSpec],
    score: Score | None,
    progress: Callable[[int], None],
    head: int = 0,
) -> Quality:
    """Run every sample and compare it with the reference.

    Args:
        run: one inference; may raise ``WorkerFailed``, which passes through.
        samples: inputs and target of each held-out sample, in the reference's order.
        reference: outputs of the same samples.
        metrics: the declared metrics.
        score: values of the metrics that apply to one sample, from its outputs and target.
        progress: told the samples done.

    Raises:
        WorkerFailed: an output has another shape than the reference's.
        UserError: the metric raised or returned something that it did not declare.
    """
    quality = Quality(metrics={name: [] for name in metrics})
    for index, (outputs, target) in enumerate(_run_ahead(run, samples)):
        for name, want in reference[index].items():
            got = outputs[name]
            if got.shape != want.shape:
                raise WorkerFailed(
                    "refused",
                    f"sample {index}: output '{name}' has shape {got.shape}, the reference's has "
                    f"{want.shape}",
                )
            if want.dtype.kind in "biufV":  # V: bfloat16 and the FP8 types of ml_dtypes
                quality.outputs.setdefault(name, OutputSums()).add(want, got)
        if score is not None:
            values = _scored(score, outputs, target, index, metrics)
            for name, column in quality.metrics.items():
                column.append(values.get(name))
        quality.n += 1
        if quality.n <= head:
            quality.head_n, quality.head_rel_l2 = quality.n, quality.rel_l2
        progress(quality.n)
    return quality


def _run_ahead(
    run: Run, samples: Iterable[tuple[Arrays, object]]
) -> Iterator[tuple[Arrays, object]]:
    """Outputs and target of each sample; the next one runs while the last is judged."""
    pool = ThreadPoolExecutor(1, "next sample")
    try:
        running: tuple[Future[Mapping[str, NDArray[np.generic]]], object] | None = None
        for inputs, target in samples:
            following = (pool.submit(run, inputs), target)
            if running is not None:
                yield running[0].result(), running[1]
            running = following
        if running is not None:
            yield running[0].result(), running[1]
    finally:
        # Whoever stops here ends the worker, and with it the call that still runs.
        pool.shutdown(wait=False, cancel_futures=True)


def _scored(
    score: Score, outputs: Arrays, target: object, index: int, metrics: Mapping[str, MetricSpec]
) -> Mapping[str, Value]:
    try:
        values = dict(score(outputs, target))
    except Exception as error:  # the metric is the user's code: whatever it raises is told
        raise UserError(
            f"quality.metric: sample {index}: {type(error).__name__}: {one_line(error)}; mend the "
            "metric, which returns a mapping of names to values"
        ) from error
    for name, value in values.items():
        if name not in metrics:
            raise UserError(
                f"quality.metric: sample {index}: '{name}' is not declared in METRICS; add it"
            )
        kind = metrics[name].kind
        if not _fits(value, kind):
            told = " ".join(repr(value).split())[:80]
            raise UserError(
                f"quality.metric: sample {index}: '{name}' is {told}; a {kind} metric returns "
                f"{_EXPECTED[kind]}"
            )
    return {name: _plain(value) for name, value in values.items()}


def _fits(value: object, kind: str) -> bool:
    if kind in ("ratio", "perplexity"):
        if not isinstance(value, tuple) or len(value) != 2:
            return False
        return all(map(_is_finite, value)) and bool(value[1] >= 0)
    return _is_finite(value) and (kind != "binary" or value in (0, 1))


def _plain(value: Value) -> Value:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else float(value)


def _is_finite(value: object) -> bool:
    # Numpy's scalars of float32 and of the integers are no Python numbers.
    return isinstance(
        value, (bool, int, float, np.bool_, np.integer, np.floating)
    ) and math.isfinite(value)


def _squared_norm(values: NDArray[np.float64]) -> float:
    # Not through BLAS: its threads would contend with the worker's, for no gain at one pass.
    return float(np.einsum("i,i->", values, values))
