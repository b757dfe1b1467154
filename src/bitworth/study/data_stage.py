"""The data: both splits checked and hashed, the held-out one kept for every variant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitworth.engines.base import Arrays
from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore, is_stored, store_arrays
from bitworth.record.schema import DataFacts, SplitFacts
from bitworth.record.store import canonical, sha256
from bitworth.study.progress import Reporter
from bitworth.study.sections import DataConfig
from bitworth.study.workspace import Workspace
from bitworth.subject.inputs import Dataset, from_module, from_npz, random_inputs
from bitworth.subject.onnx_model import InputSpec
from bitworth.subject.samples import Sample, check_no_overlap, sample_sha256

#: Random inputs time an engine; a few are enough.
RANDOM_SAMPLES = 8


@dataclass(frozen=True)
class StudyData:
    """Both splits of a study's data.

    Attributes:
        calibration: calibration samples; None when no variant is calibrated.
        inputs: held-out inputs, on disk.
        targets: held-out targets, in the same order.
        facts: the record's form.
    """

    calibration: Dataset | None
    inputs: ArrayStore
    targets: tuple[object, ...]
    facts: DataFacts

    def holdout(self) -> Iterator[tuple[Arrays, object]]:
        """Held-out inputs and targets, one in memory at a time."""
        for index in range(len(self.inputs)):
            yield self.inputs[index], self.targets[index]


def open_data(
    config: DataConfig,
    folder: Path,
    specs: tuple[InputSpec, ...],
    calibrated: bool,
    workspace: Workspace,
    reporter: Reporter,
    at_least: int = 1,
) -> StudyData:
    """Read, check and hash both splits.

    Args:
        config: the study's ``[data]``.
        folder: of the study file, to which its paths are relative.
        specs: the model's inputs.
        calibrated: whether a variant needs calibration.
        workspace: where the held-out inputs are kept.
        reporter: progress.
        at_least: random samples that are needed at least, such as for a batch.

    Raises:
        UserError: no data given, a sample that does not fit the model, or one that is in both
            splits.
    """
    random = max(RANDOM_SAMPLES, at_least)
    calibration = dataset(config, folder, specs, "calibration", random) if calibrated else None
    holdout = dataset(config, folder, specs, "holdout", random)
    split = workspace.load("data", "splits")
    stored = workspace.path("data", "holdout", "x").parent
    seen = _hash_all(calibration, "reading calibration data", reporter)
    if split is None or not is_stored(stored):
        held, targets, shapes = _store(holdout, stored, reporter)
        if not config.random_inputs:
            check_no_overlap(seen[0], held)
        split = {
            "calibration": _split(seen[0], seen[1]),
            "holdout": _split(held, shapes),
            "targets": targets,
        }
        workspace.save(split, "data", "splits")
    elif split["calibration"]["sha256"] != _split(*seen)["sha256"]:
        raise UserError(
            f"{_source(config)}: the calibration data changed since this study began; "
            f"remove {workspace.root} to begin anew"
        )
    facts = DataFacts(
        source=_source(config),
        seed=config.seed,
        random=config.random_inputs,
        calibration=SplitFacts.model_validate(split["calibration"]),
        holdout=SplitFacts.model_validate(split["holdout"]),
    )
    return StudyData(calibration, ArrayStore(stored), tuple(split["targets"]), facts)


def dataset(
    config: DataConfig, folder: Path, specs: tuple[InputSpec, ...], which: str, random: int
) -> Dataset:
    """One split: ``calibration`` or ``holdout``; ``random`` samples where inputs are random.

    Raises:
        UserError: no data given, or data that cannot be read.
    """
    if config.random_inputs:
        # Calibration and held-out samples of different seeds: random data judges nothing anyway.
        seed = 2 * config.seed + (which == "holdout")
        return random_inputs(specs, config.shapes, random, seed)
    if config.source is not None:
        count = config.calibration_samples if which == "calibration" else config.holdout_samples
        if which == "calibration":
            return from_module(folder / config.source, "calibration", count, config.seed, specs)
        return from_module(folder / config.source, "holdout", count, config.seed, specs)
    path = config.calibration if which == "calibration" else config.holdout
    if path is None:
        raise UserError(
            f"data.{which}: no {which} data; name an .npz (keys are the model's inputs: "
            f"{', '.join(s.name for s in specs)}) or a source, or set random_inputs to time only"
        )
    return from_npz(folder / path, specs)


def _source(config: DataConfig) -> str:
    if config.random_inputs:
        return "random inputs"
    if config.source is not None:
        return config.source
    return ", ".join(Path(p).name for p in (config.calibration, config.holdout) if p)


def _hash_all(
    dataset: Dataset | None, title: str, reporter: Reporter
) -> tuple[list[str], list[dict[str, tuple[int, ...]]]]:
    hashes: list[str] = []
    shapes: list[dict[str, tuple[int, ...]]] = []
    if dataset is None:
        return hashes, shapes
    with reporter.stage(title, dataset.count) as advance:
        for sample in dataset:
            hashes.append(sample_sha256(sample))
            _note_shape(sample, shapes)
            advance(len(hashes))
    return hashes, shapes


def _store(
    dataset: Dataset, folder: Path, reporter: Reporter
) -> tuple[list[str], list[object], list[dict[str, tuple[int, ...]]]]:
    hashes: list[str] = []
    targets: list[object] = []
    shapes: list[dict[str, tuple[int, ...]]] = []

    def stream() -> Iterator[Arrays]:
        for index, sample in enumerate(dataset):
            hashes.append(sample_sha256(sample))
            targets.append(_plain(sample.target, dataset.name, index))
            _note_shape(sample, shapes)
            yield sample.inputs

    with reporter.stage("reading held-out data", dataset.count) as advance:
        store_arrays(stream(), dataset.count, folder, advance)
    return hashes, targets, shapes


def _plain(target: object, name: str, index: int) -> object:
    """The target as plain JSON values, so that it can be kept beside the inputs."""
    if isinstance(target, np.ndarray | np.generic):
        target = target.tolist()
    try:
        return json.loads(json.dumps(target))
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: the target of sample {index} is a {type(target).__name__}; give text, "
            "numbers, lists or mappings of them"
        ) from None


def _note_shape(sample: Sample, shapes: list[dict[str, tuple[int, ...]]]) -> None:
    shape = {name: tuple(value.shape) for name, value in sample.inputs.items()}
    if shape not in shapes:
        shapes.append(shape)


def _split(hashes: list[str], shapes: list[dict[str, tuple[int, ...]]]) -> dict[str, object]:
    return {
        "count": len(hashes),
        "sha256": sha256(canonical(hashes)),
        "shapes": [{k: list(v) for k, v in s.items()} for s in shapes],
    }
