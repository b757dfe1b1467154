"""Bitworth's side: the same model and data, quantized by calling its library."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.float_values import Arrays, rows
from bitworth.calibration import (
    Calibration,
    RangeStatistics,
    UnusableScaleError,
    activation_scale,
    observe,
    quantize_sites,
)
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.placement import ResolvedPlacement, observed_values, output_value
from bitworth.lowering.scaling import TensorScale
from bitworth.recipe import Quantize, Site
from bitworth.subject.denormals import flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.saving import save
from bitworth.subject.sites import find_sites

#: FP8 Q/DQ needs 19; the same graph serves all forms.
OPSET = 19


@dataclass(frozen=True)
class Ours:
    """A model as Bitworth prepares it.

    Attributes:
        prepared: the graph.
        sites: with weights.
        attention: products of two activations, that no form here quantizes.
    """

    prepared: PreparedModel
    sites: tuple[Site, ...]
    attention: tuple[Site, ...]


def prepare_model(path: Path) -> Ours:
    """Load, fold, and find the sites of the model in ``path``."""
    prepared = flush_denormals(prepare(load(path), OPSET))
    scan = find_sites(prepared)
    return Ours(prepared, scan.sites, scan.attention)


def statistics(ours: Ours, samples: Arrays, more: Sequence[str]) -> Calibration:
    """What calibration observes: of what Bitworth may quantize, and of ``more`` values."""
    values = dict.fromkeys([*observed_values(ours.prepared.model, ours.sites), *more])
    return observe(ours.prepared.model, tuple(values), rows(samples), threads=2)


def quantize(
    ours: Ours,
    recipe: Quantize,
    found: Mapping[str, RangeStatistics],
    path: Path,
    only: Collection[str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Write the quantized model to ``path``; return what was left out, with the reason.

    ``only``: ids of the sites that are quantized; None: all.
    """
    sites = [site for site in ours.sites if only is None or site.id in only]
    outputs = {
        site.id: output_value(ours.prepared.model, site, _placement(recipe), recipe.fused)
        for site in sites
    }
    pairs = [(site, recipe) for site in sites]
    scaled = quantize_sites(ours.prepared.model, pairs, found, outputs)
    save(lower(ours.prepared, scaled.quantized), path)
    return scaled.left_out


def biases(ours: Ours) -> dict[str, NDArray[np.float32]]:
    """The bias of each site that has one, by its id."""
    nodes = {str(node.name): node for node in ours.prepared.model.graph}
    found = {}
    for site in ours.sites:
        inputs = nodes[site.node].inputs
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None and bias.const_value is not None:
            found[site.id] = np.asarray(bias.const_value.numpy(), np.float32).ravel()
    return found


def inputs_only(recipe: Quantize) -> Quantize:
    """The recipe without quantized outputs: what its inputs alone cost."""
    return replace(recipe, placement="input_only")


def scales(
    recipe: Quantize, found: Mapping[str, RangeStatistics], names: Sequence[str]
) -> dict[str, TensorScale]:
    """Bitworth's scale for each of the values, also where Bitworth leaves them alone."""
    made: dict[str, TensorScale] = {}
    for name in names:
        try:
            scale = activation_scale(found[name], recipe)
        except UnusableScaleError:
            continue
        assert isinstance(scale, TensorScale)
        made[name] = replace(scale, scale=np.asarray(scale.scale, np.float32))
    return made


def _placement(recipe: Quantize) -> ResolvedPlacement:
    assert recipe.placement != "auto"
    return recipe.placement
