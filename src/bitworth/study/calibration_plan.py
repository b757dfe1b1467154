"""What calibration has to observe for the variants of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from bitworth.calibration.smooth import needed_channels
from bitworth.lowering.placement import observed_values
from bitworth.recipe import PER_CHANNEL, Quantize
from bitworth.recipe.consistency import needs_ranges
from bitworth.study.sections import StudyConfig
from bitworth.study.subject_stage import Subject
from bitworth.study.variants import recipe_of
from bitworth.subject.rescalable import find_pairs


@dataclass(frozen=True)
class CalibrationPlan:
    """What one pass over the data observes.

    Attributes:
        values: names of values of the prepared graph, each once.
        channel_axes: of those whose channels are observed one by one, the axis.
    """

    values: tuple[str, ...]
    channel_axes: Mapping[str, int]


def is_calibrated(config: StudyConfig) -> bool:
    """Whether a variant needs ranges, and so calibration data.

    The overflow of fp16 activations is looked for where there is calibration data; an fp16 variant
    needs none.
    """
    given = config.data.calibration is not None or config.data.source is not None
    return any(needs_ranges(e) for e in _entries(config)) or (_in_fp16(config) and given)


def calibration_plan(config: StudyConfig, subject: Subject) -> CalibrationPlan:
    """What to observe so that every variant of ``config`` finds its ranges."""
    model = subject.fair.model
    entries = [e for e in _entries(config) if needs_ranges(e)]
    values: dict[str, None] = {}
    if entries:
        values |= dict.fromkeys(observed_values(model, subject.sites))
        used = {name for variant in config.variant for name in variant.groups}
        if any(g.attention and g.name in used for g in config.group):
            values |= dict.fromkeys(observed_values(model, subject.attention))
            values |= dict.fromkeys(s.second for s in subject.attention)
    if _in_fp16(config):
        values |= dict.fromkeys(_float_values(model))
    axes: dict[str, int] = {}
    if any(e.activations == PER_CHANNEL or e.smooth_insert for e in entries):
        axes |= {s.activation: s.activation_axis for s in subject.sites}
    if any(e.smooth is not None or e.equalize for e in entries):
        axes |= needed_channels(find_pairs(subject.fair, subject.sites))
    return CalibrationPlan(tuple(values), {n: axis for n, axis in axes.items() if n in values})


def _entries(config: StudyConfig) -> Iterator[Quantize]:
    for variant in config.variant:
        if variant.format is not None and variant.source == "recipe":
            yield from recipe_of(variant).quantize


def _in_fp16(config: StudyConfig) -> bool:
    return any(v.format == "fp16" or v.base == "fp16" for v in config.variant)


def _float_values(model: ir.Model) -> Iterator[str]:
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.dtype is not None and value.dtype.is_floating_point():
                yield value.name
