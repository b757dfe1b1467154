"""One sample, its identity, and whether it fits a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.subject.onnx_model import InputSpec

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Sample:
    """What a model is given once, and what is known about the right answer.

    Attributes:
        inputs: an array for every input of the model.
        target: what the study's metric compares with; None where there is nothing.
    """

    inputs: Arrays
    target: object = None


def sample_sha256(sample: Sample) -> str:
    """Return a hash of the inputs: names, types, shapes and bytes; the target is left out."""
    digest = hashlib.sha256()
    for name in sorted(sample.inputs):
        array = np.ascontiguousarray(sample.inputs[name])
        digest.update(f"{name}\0{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def check_no_overlap(calibration: Sequence[str], holdout: Sequence[str]) -> None:
    """Check that no held-out sample was calibrated on; takes the hashes of both, in order.

    Raises:
        UserError: with the first shared samples' indices.
    """
    where = {digest: i for i, digest in reversed(list(enumerate(calibration)))}
    shared = [(i, where[digest]) for i, digest in enumerate(holdout) if digest in where]
    if shared:
        pairs = ", ".join(f"{h} (= calibration {c})" for h, c in shared[:5])
        more = f" and {len(shared) - 5} more" if len(shared) > 5 else ""
        raise UserError(
            f"held-out data: sample {pairs}{more} is in the calibration data too; the data that "
            "sets the scales cannot judge them: remove it from one of the two"
        )


def check_sample(sample: Sample, specs: Sequence[InputSpec], where: str) -> None:
    """Check that ``sample`` fits the model; ``where`` names it in messages.

    Raises:
        UserError: an unknown or missing input, a wrong type, rank or fixed dimension, two sizes
            for one named dimension, a value that is not finite.
    """
    check_names(sample.inputs, specs, where)
    sizes: dict[str, int] = {}
    for spec in specs:
        _check_array(sample.inputs[spec.name], spec, sizes, where)


def check_names(names: Mapping[str, object], specs: Sequence[InputSpec], where: str) -> None:
    """Check that ``names`` are exactly the model's inputs.

    Raises:
        UserError: with the nearest input's name.
    """
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            near = (get_close_matches(name, known, n=1, cutoff=0.0) or known)[0]
            raise UserError(
                f"{where}: the model has no input '{name}'; did you mean '{near}'? "
                f"(inputs: {', '.join(known)})"
            )
    for name in known:
        if name not in names:
            raise UserError(f"{where}: input '{name}' is missing; give an array of that name")


def _check_array(
    array: NDArray[np.generic], spec: InputSpec, sizes: dict[str, int], where: str
) -> None:
    label = f"{where}: input '{spec.name}'"
    if not isinstance(array, np.ndarray):
        raise UserError(f"{label} is a {type(array).__name__}; give a numpy array")
    if array.dtype.name != spec.dtype and not (spec.dtype == "object" and array.dtype.kind in "UO"):
        raise UserError(
            f"{label} is {array.dtype.name}, the model takes {spec.dtype}; convert the data"
        )
    if spec.shape is not None and not _fits(array.shape, spec.shape, sizes):
        raise UserError(
            f"{label} has shape {list(array.shape)}, the model takes {_shown(spec.shape)}; "
            "reshape the data"
        )
    if 0 in array.shape:
        raise UserError(f"{label} is empty (shape {list(array.shape)}); give real data")
    if not np.issubdtype(array.dtype, np.floating):
        return
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise UserError(
            f"{label} has {bad} values that are not finite (first kind: {kind}); clean the data"
        )


def _fits(
    shape: tuple[int, ...], spec: tuple[int | str | None, ...], sizes: dict[str, int]
) -> bool:
    if len(shape) != len(spec):
        return False
    for size, dim in zip(shape, spec, strict=True):
        if isinstance(dim, int) and size != dim:
            return False
        # A name used twice is one size, wherever it appears in the sample.
        if isinstance(dim, str) and dim and sizes.setdefault(dim, size) != size:
            return False
    return True


def _shown(spec: tuple[int | str | None, ...]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in spec) + "]"
