"""Streams of samples: from arrays in a file, from the user's own code, or random."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.subject.data_module import open_module
from bitworth.subject.onnx_model import InputSpec
from bitworth.subject.samples import Sample, check_names, check_sample

_TARGET = "target"


@dataclass(frozen=True)
class Dataset:
    """A stream of samples that can be read again, one sample in memory at a time.

    Every pass checks every sample, and that there are as many as were promised.

    Attributes:
        name: for messages: the file, or what made it.
        count: how many samples a pass yields.
        specs: the inputs of the model that it is for.
        open: starts a pass; called once each.
    """

    name: str
    count: int
    specs: tuple[InputSpec, ...]
    open: Callable[[], Iterator[Sample]] = field(repr=False)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples.

        Raises:
            UserError: a sample does not fit the model, or the stream ends early.
        """
        seen = 0
        for sample in self.open():
            if seen == self.count:
                return
            check_sample(sample, self.specs, f"{self.name}: sample {seen}")
            seen += 1
            yield sample
        if seen < self.count:
            raise UserError(
                f"{self.name}: ended after {seen} of {self.count} samples; give more data or ask "
                "for fewer"
            )


def from_npz(path: str | Path, specs: Sequence[InputSpec]) -> Dataset:
    """Return the samples in an ``.npz`` file whose keys are the model's inputs.

    An array of one dimension more than its input holds samples along axis 0. An array of the
    input's own rank is cut along axis 0 into batches of the model's fixed batch size, or of 1.
    An optional ``target`` holds one entry a sample along axis 0. Arrays are read one at a time,
    and stay in memory for a pass.

    Raises:
        UserError: no such file, not an ``.npz``, keys that are no inputs, no samples, or counts
            that differ between inputs.
    """
    path = Path(path)
    name = str(path)
    arrays = _read_npz(path)
    target = arrays.pop(_TARGET, None) if _TARGET not in [s.name for s in specs] else None
    check_names(arrays, specs, name)
    counts = {s.name: _split_count(arrays[s.name], s, name) for s in specs}
    count = next(iter(counts.values()), 0)
    for spec in specs:
        if counts[spec.name] != count:
            raise UserError(
                f"{name}: input '{spec.name}' has {counts[spec.name]} samples, '{specs[0].name}' "
                f"has {count}; give the same number of each"
            )
    if target is not None and (target.ndim == 0 or len(target) != count):
        raise UserError(f"{name}: 'target' must have one entry for each of the {count} samples")

    def stream() -> Iterator[Sample]:
        data = _read_npz(path)
        for i in range(count):
            inputs = {s.name: _split(data[s.name], s, i) for s in specs}
            yield Sample(inputs, None if target is None else target[i])

    return Dataset(name, count, tuple(specs), stream)


def from_module(
    path: str | Path,
    function: Literal["calibration", "holdout"],
    count: int,
    seed: int,
    specs: Sequence[InputSpec],
) -> Dataset:
    """Return the samples that ``function(count, seed)`` of a Python file yields.

    The function yields pairs: a mapping of input names to arrays, and the target (any object).
    The same count and seed must yield the same samples.

    Raises:
        UserError: no such file, a file that cannot be imported, no such function, count < 1.
    """
    path = Path(path)
    name = f"{path}:{function}"
    _check_count(count, name)
    opened = open_module(path, function, count, seed)
    return Dataset(name, count, tuple(specs), opened)


def random_inputs(
    specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]], count: int, seed: int
) -> Dataset:
    """Return standard normal floats, or small whole numbers, in the given shapes.

    Good for timing only. ``shapes`` gives each input with a free dimension its sizes.

    Raises:
        UserError: an unknown input, a free dimension without a size, count < 1.
    """
    name = "random inputs"
    _check_count(count, name)
    for given in shapes:
        check_names({**{s.name: None for s in specs}, given: None}, specs, name)
    full = {s.name: _full_shape(s, shapes.get(s.name), name) for s in specs}

    def stream() -> Iterator[Sample]:
        for i in range(count):
            rng = np.random.default_rng((seed, i))
            yield Sample({s.name: _random(rng, s, full[s.name]) for s in specs})

    return Dataset(name, count, tuple(specs), stream)


def _read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; give an .npz file")
    try:
        # Object arrays are pickles, which could run code: numpy refuses them unless told.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            return {key: data[key] for key in data.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path}: not a readable .npz file ({reason}); write it with numpy.savez"
        ) from None


def _split_count(array: NDArray[np.generic], spec: InputSpec, name: str) -> int:
    if spec.shape is None:
        raise UserError(f"{name}: the model gives input '{spec.name}' no rank; use a data module")
    rank = len(spec.shape)
    if array.ndim not in (rank, rank + 1) or array.ndim == 0:
        raise UserError(
            f"{name}: input '{spec.name}' has {array.ndim} dimensions; give {rank} (cut along the "
            f"batch) or {rank + 1} (samples along the first)"
        )
    size = _batch(spec) if array.ndim == rank else 1
    if len(array) == 0:
        raise UserError(f"{name}: input '{spec.name}' is empty; give at least one sample")
    if len(array) % size:
        raise UserError(
            f"{name}: input '{spec.name}' has {len(array)} rows, which the model's batch of {size} "
            "does not divide; drop or add rows"
        )
    return len(array) // size


def _split(array: NDArray[np.generic], spec: InputSpec, index: int) -> NDArray[np.generic]:
    if spec.shape is not None and array.ndim > len(spec.shape):
        sample: NDArray[np.generic] = array[index, ...]
        return np.ascontiguousarray(sample)
    size = _batch(spec)
    return np.ascontiguousarray(array[index * size : (index + 1) * size])


def _batch(spec: InputSpec) -> int:
    first = spec.shape[0] if spec.shape else None
    return first if isinstance(first, int) and first > 0 else 1


def _full_shape(spec: InputSpec, given: Sequence[int] | None, name: str) -> tuple[int, ...]:
    shape = tuple(given) if given is not None else spec.shape
    if shape is None or not all(isinstance(d, int) and d > 0 for d in shape):
        raise UserError(
            f"{name}: input '{spec.name}' has free dimensions ({shape}); give its shape"
        )
    return tuple(int(d) for d in shape if d is not None)


def _random(
    rng: np.random.Generator, spec: InputSpec, shape: tuple[int, ...]
) -> NDArray[np.generic]:
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if np.issubdtype(np.dtype(spec.dtype), np.integer):
        # 0 and 1 are valid token ids, masks and positions in nearly every model.
        return rng.integers(0, 2, shape).astype(spec.dtype)
    return rng.standard_normal(shape).astype(spec.dtype)


def _check_count(count: int, name: str) -> None:
    if count < 1:
        raise UserError(f"{name}: count is {count}; ask for at least one sample")
