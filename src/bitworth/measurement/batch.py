"""Whether a plan computes for a batch what it computes for its samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import Arrays
from bitworth.measurement.quality import OutputSums, Run
from bitworth.measurement.workers import WorkerFailed


def batched(samples: Sequence[Arrays]) -> dict[str, NDArray[np.generic]]:
    """The inputs of one call for all ``samples``: each input joined along axis 0.

    Raises ValueError when an input has no axis, or not the same shape in every sample.
    """
    return {
        name: np.concatenate([np.asarray(sample[name]) for sample in samples])
        for name in samples[0]
    }


def batch_error(run: Run, samples: Sequence[Arrays]) -> float | None:
    """Largest relative L2 error of an output of the batch, against the samples run alone.

    None when an output is not finite.

    Args:
        run: one inference; may raise ``WorkerFailed``, which passes through.
        samples: inputs of equal shape.

    Raises:
        WorkerFailed: an output of the batch does not hold those of its samples along axis 0.
    """
    alone = [dict(run(sample)) for sample in samples]
    together = run(batched(samples))
    errors = [_error(name, [one[name] for one in alone], together) for name in alone[0]]
    known = [e for e in errors if e is not None]
    return max(known, default=0.0) if len(known) == len(errors) else None


def _error(
    name: str, alone: Sequence[NDArray[np.generic]], together: Mapping[str, NDArray[np.generic]]
) -> float | None:
    got = together[name]
    want_shape = (len(alone) * alone[0].shape[0], *alone[0].shape[1:]) if alone[0].shape else ()
    if got.shape != want_shape or not got.shape:
        raise WorkerFailed(
            "refused",
            f"output '{name}' of a batch of {len(alone)} has shape {got.shape}, that of one sample "
            f"{alone[0].shape}: it does not hold the samples one after another",
        )
    if got.dtype.kind not in "biufV":  # V: bfloat16 and the FP8 types of ml_dtypes
        return 0.0 if np.array_equal(got, np.concatenate(alone)) else None
    sums = OutputSums()
    for part, want in zip(np.split(got, len(alone)), alone, strict=True):
        if part.shape != want.shape:
            raise WorkerFailed("refused", f"output '{name}': its shape depends on the sample")
        sums.add(want, part)
    return sums.rel_l2
