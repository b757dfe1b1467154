"""What a process of the benchmark is asked, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Side = Literal["ours", "theirs", "cached"]


@dataclass(frozen=True)
class Job:
    """One process's work.

    Attributes:
        side: Bitworth (``ours``), one call of quantize_static (``theirs``), or the calls one after
            the other, each with a cache of ranges (``cached``).
        model: the file that is quantized; for quantize_static one for each opset, prepared.
        samples: file of the samples.
        input: name of the model's input.
        shape: of one sample.
        count: samples to calibrate on.
        pairs: names of the pairs.
        threads: of every session.
        folder: where models are written.
    """

    side: Side
    model: Path
    samples: Path
    input: str
    shape: tuple[int, ...]
    count: int
    pairs: tuple[str, ...]
    threads: int
    folder: Path
    prepared: Mapping[int, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and seconds of all cores together that the process used."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


NOTHING = Cost(0.0, 0.0)


def total(costs: Mapping[str, Cost]) -> Cost:
    """The sum of some costs."""
    return sum(costs.values(), NOTHING)


@dataclass(frozen=True)
class VariantCost:
    """One variant of Bitworth's.

    Attributes:
        scales: ranges of activations, scales of activations and weights.
        write: lowering, the file, and its comparison with what was to be written.
        weights: weights that the file holds quantized.
    """

    scales: Cost
    write: Cost
    weights: int

    @property
    def cost(self) -> Cost:
        return self.scales + self.write


@dataclass(frozen=True)
class OurRun:
    """One run of Bitworth.

    Attributes:
        count: calibration samples.
        baseline_bytes: resident after all imports, before anything else.
        peak_bytes: the most that was resident, by part: the pass, then each calibrator's variants.
        shared: what all variants share.
        variants: by pair.
    """

    count: int
    baseline_bytes: int
    peak_bytes: Mapping[str, int]
    shared: Mapping[str, Cost]
    variants: Mapping[str, VariantCost]

    @property
    def cost(self) -> Cost:
        variants = {name: variant.cost for name, variant in self.variants.items()}
        return total(self.shared) + total(variants)

    @property
    def beyond_bytes(self) -> Mapping[str, int]:
        """Peaks beyond the interpreter with the same imports."""
        return {part: peak - self.baseline_bytes for part, peak in self.peak_bytes.items()}


@dataclass(frozen=True)
class Call:
    """One call of quantize_static.

    Attributes:
        pair: name.
        cost: of the call; None when it did not end.
        beyond_bytes: the most that was resident beyond the interpreter with the same imports; for
            a call that was stopped, what it held then.
        weights: weights that the file holds quantized; 0 when there is none.
        failed: why there is no cost.
    """

    pair: str
    cost: Cost | None
    beyond_bytes: int
    weights: int = 0
    failed: str = ""


class Stopwatch:
    """Costs of one thing after the other."""

    def __init__(self) -> None:
        self._last = self._now()

    def lap(self) -> Cost:
        """Cost since the last lap."""
        now = self._now()
        cost = Cost(round(now[0] - self._last[0], 4), round(now[1] - self._last[1], 4))
        self._last = self._now()
        return cost

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()
