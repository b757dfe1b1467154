"""One model with what all its runs share: samples, prepared graph, outputs, names of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.peers import float_values as floats
from benchmarks.peers import kept
from benchmarks.peers import ours as bitworth
from benchmarks.peers.errors import Outputs, outputs
from benchmarks.peers.qdq import Quantized
from benchmarks.peers.roles import Roles
from bitworth.calibration import RangeStatistics, cache
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import graph_sha256
from bitworth.subject.saving import save

#: What onnxruntime appends to the name of a weight that it quantizes.
_QUANTIZED = "_quantized"


@dataclass(frozen=True)
class Files:
    """Where things lie.

    Attributes:
        model: the float model.
        data: its samples, see data.py.
        written: by form name, the model that the peer wrote; none where it failed.
        failures: by form name, the peer's last word where it failed.
        work: a folder for what is made on the way.
    """

    model: Path
    data: Path
    written: Mapping[str, Path]
    failures: Mapping[str, str]
    work: Path


class Subject:
    """One model with all that its runs share."""

    def __init__(self, name: str, files: Files) -> None:
        self.name = name
        self.files = files
        with np.load(files.data) as arrays:
            self.data = {key: arrays[key] for key in arrays.files}
        self.calibration = self._split("calibration")
        self.holdout = self._split("holdout")
        self.ours = bitworth.prepare_model(files.model)
        self.prepared = files.work / f"{name}.prepared.onnx"
        save(self.ours.prepared.model, self.prepared)
        first = next(floats.rows(self.calibration))
        given = floats.fingerprints(files.model, first)
        known = floats.fingerprints(self.prepared, first)
        self._same = floats.same_values(given, known)
        self._taken = set(known)
        self.roles = Roles(self.ours, load(files.model).model)
        self._given_weights = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in onnx.load(files.model).graph.initializer
        }
        self._site_weights = {
            _content(weight): site.id
            for site in self.ours.sites
            if (weight := self.weight(site.id)).size > 1
        }
        self.sha256 = hashlib.sha256(files.model.read_bytes()).hexdigest()
        self.data_sha256 = _sha256(self.data)
        self.reference = self.outputs(files.model)

    def _split(self, split: str) -> dict[str, NDArray[np.generic]]:
        return {
            key.removeprefix(f"{split}/"): array
            for key, array in self.data.items()
            if key.startswith(f"{split}/")
        }

    def outputs(self, model: Path | onnx.ModelProto) -> Outputs:
        """The model's outputs on the held-out samples; kept."""
        content = model.read_bytes() if isinstance(model, Path) else _bytes(model)
        name = kept.key("outputs", content, self.data_sha256)
        return kept.array(self.files.work, name, lambda: outputs(model, self.holdout))

    def statistics(self, more: Sequence[str]) -> Mapping[str, RangeStatistics]:
        """What Bitworth's calibration observes; kept."""
        graph = graph_sha256(self.ours.prepared.model)
        name = kept.key("statistics", self.data_sha256, graph, more)
        path = self.files.work / f"{name}.npz"
        found = cache.load(path, name)
        if found is None:
            found = bitworth.statistics(self.ours, self.calibration, more)
            cache.save(path, found, name)
        return found.statistics

    def canonical(self, given: str) -> str:
        """What a value of the given graph is called here: as in the prepared graph, if it is."""
        if given in self._same:
            return self._same[given]
        return f"{given} (before folding)" if given in self._taken else given

    def is_prepared(self, name: str) -> bool:
        """Whether the prepared graph has the value."""
        return name in self._taken

    def weight(self, site: str) -> NDArray[Any]:
        """A site's weight as the prepared graph has it."""
        found = next(s for s in self.ours.sites if s.id == site)
        value = self.ours.prepared.model.graph.initializers[found.weight].const_value
        assert value is not None
        return np.asarray(value.numpy())

    def unfolded(self, site: str) -> NDArray[np.float64] | None:
        """amax / 127 of each channel of a site's weight as the given model has it."""
        found = next(s for s in self.ours.sites if s.id == site)
        array = self._given_weights.get(found.weight)
        if array is None or array.shape != found.weight_shape:
            return None
        others = tuple(i for i in range(array.ndim) if i != found.weight_axis)
        return np.asarray(np.abs(array.astype(np.float64)).max(axis=others) / 127, np.float64)

    def site_of(self, weight: Quantized) -> str | None:
        """The id of the site whose weight a peer quantizes, if it is one's."""
        plain = weight.name.removesuffix(_QUANTIZED)
        for site in self.ours.sites:
            if plain in (site.weight, site.id):
                return site.id
        given = self._given_weights.get(plain)
        if given is not None and (found := self._site_weights.get(_content(given))):
            return found
        written = {(op, self.canonical(value)) for op, value in weight.uses}
        for site in self.ours.sites:
            # A bias that is added has the site's output too, and is not its weight.
            if (site.op_type, site.output) in written:
                return site.id
        return None


def _content(array: NDArray[np.generic]) -> bytes:
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).digest()


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def _sha256(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + str(arrays[name].dtype).encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
