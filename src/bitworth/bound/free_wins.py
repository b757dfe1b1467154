"""Free wins: what makes the baseline faster without changing its result.

A speed-up over a slow baseline is a false claim, so these join the baseline first.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.plans import unoptimized
from bitworth.measurement.workers import Worker
from bitworth.record.free_win_verdicts import SAME_RESULT, is_same


@dataclass(frozen=True)
class FreeWin:
    """A change that should be free.

    Attributes:
        name: what it does.
        applied: whether it joined the baseline.
        rel_l2: largest relative L2 change of an output on the sample; None if it is not finite, or
            if an output changed its shape or its text.
        text: one sentence with its numbers.
    """

    name: str
    applied: bool
    rel_l2: float | None
    text: str


def denormal_win(worker: Worker, count: int, given: Path, flushed: Path, sample: Arrays) -> FreeWin:
    """Whether setting denormal weights to zero leaves the result as it is.

    CPUs multiply denormal numbers in microcode, many times slower than others. Both models run
    unoptimized on ``sample``.

    Raises:
        WorkerFailed: one of the two does not run.
    """
    change = largest_change(
        run_unoptimized(worker, given, sample), run_unoptimized(worker, flushed, sample)
    )
    applied = is_same(change)
    told = "not a finite number" if change is None else f"{change:.2g}"
    outcome = (
        "set to zero in the baseline and in every variant"
        if applied
        else f"left as they are: that would change the result by more than {SAME_RESULT:g}"
    )
    text = f"{count} denormal weights, {outcome} (relative change of the outputs {told})"
    return FreeWin("denormal weights set to zero", applied, change, text)


def run_unoptimized(worker: Worker, model: Path, sample: Arrays) -> Arrays:
    """Outputs of ``model`` in onnxruntime with optimization off.

    Raises:
        WorkerFailed: it does not run.
    """
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=".plan-") as folder:
        plan = Path(folder) / "plan.onnx"
        options = EngineOptions(threads=1, optimization="none")
        return unoptimized(worker, "onnxruntime", model, plan, options)(sample)


def largest_change(before: Arrays, after: Arrays) -> float | None:
    """Largest relative L2 change of an output; None: not finite, or of another shape or text."""
    worst = 0.0
    for name, value in before.items():
        if after[name].shape != value.shape:
            return None
        if value.dtype.kind in "US":
            if not np.array_equal(value, after[name]):
                return None
            continue
        was = np.asarray(value, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # infinity less infinity: found below
            difference = np.asarray(after[name], dtype=np.float64) - was
        norm, error = float(np.linalg.norm(was)), float(np.linalg.norm(difference))
        if not np.isfinite(norm + error):
            return None
        worst = max(worst, error / norm if norm else error)
    return worst
