"""Every scale of one variant: statistics and weights in, quantized sites out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.calibration.bias_steps import with_room_for_bias
from bitworth.calibration.scales import UnusableScaleError, activation_scale, smallest_scale
from bitworth.calibration.statistics import RangeStatistics
from bitworth.calibration.weight_scales import weight_amax, weight_scale
from bitworth.lowering.scaling import (
    ActivationScale,
    DynamicScale,
    QuantizedSite,
    TensorScale,
)
from bitworth.recipe.consistency import needs_ranges
from bitworth.recipe.granularity import PerChannel
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site
from bitworth.subject.tensors import unmap


@dataclass(frozen=True)
class ScaledSites:
    """The scales of one variant, and what is to be said about them.

    Attributes:
        quantized: the sites that are quantized, in the order given.
        dead: (site id, what): tensors that are always zero and weight channels of zeros, whose
            scale is 1, which keeps them zero; and weight channels next to nothing (of denormal
            numbers, mostly), which share the smallest usable scale.
        left_out: (site id, reason): sites that stay in the base precision.
    """

    quantized: tuple[QuantizedSite, ...]
    dead: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]


def quantize_sites(
    model: ir.Model,
    sites: Sequence[tuple[Site, Quantize]],
    statistics: Mapping[str, RangeStatistics],
    output_values: Mapping[str, str | None],
) -> ScaledSites:
    """Return the scales of all ``sites``.

    A value's scale follows from its statistics and the entry alone, so one that is the output of
    one site and the input of another has the same scale in both when their recipes agree. Weights
    are read one at a time. When one product of an attention has no usable scale, the others of its
    scope stay in the base precision too.

    Args:
        model: the prepared graph, for the weights.
        sites: each with its resolved entry.
        statistics: by name of the value; those of the activation inputs and output values.
        output_values: by site id, the value at which its output is quantized; none or absent: not
            quantized.

    Raises:
        ValueError: an entry is not resolved, or a weight or a value's statistics are missing.
    """
    values = _ValueScales(statistics)
    quantized: list[QuantizedSite] = []
    dead: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    for site, quantize in sites:
        try:
            entry, found = _quantized(model, site, quantize, values, output_values.get(site.id))
        except UnusableScaleError as error:
            left_out[site.id] = str(error)
            continue
        quantized.append(entry)
        dead[site.id] = found
    scopes = {s.scope: s.id for s, _ in sites if s.scope and s.id in left_out}
    for entry in quantized:
        if entry.site.scope in scopes:
            blocked = scopes[entry.site.scope]
            left_out[entry.site.id] = f"'{blocked}' of the same attention is left out"
    return ScaledSites(
        tuple(q for q in quantized if q.site.id not in left_out),
        tuple((i, what) for i, all_ in dead.items() if i not in left_out for what in all_),
        tuple((s.id, left_out[s.id]) for s, _ in sites if s.id in left_out),
    )


class _ValueScales:
    """Scales of activations, each computed once for all sites whose entries agree."""

    def __init__(self, statistics: Mapping[str, RangeStatistics]) -> None:
        self._statistics = statistics
        self._made: dict[tuple[str, Quantize, str, int | None], ActivationScale] = {}

    def scale(self, name: str, site: Site, quantize: Quantize) -> ActivationScale:
        """How the value is quantized where ``site`` reads or writes it."""
        statistics = self._statistics.get(name)
        if statistics is None and needs_ranges(quantize):
            raise ValueError(f"site '{site.id}': value '{name}' was not observed")
        axis = site.activation_axis if isinstance(quantize.activations, PerChannel) else None
        key = (name, replace(quantize, group=""), site.dtype, axis)
        try:
            if key not in self._made:
                self._made[key] = activation_scale(
                    statistics, quantize, dtype=site.dtype, axis=axis
                )
        except UnusableScaleError as error:
            raise UnusableScaleError(f"value '{name}': {error}") from None
        return self._made[key]

    def dead(self, names: Iterable[str]) -> list[str]:
        """What is to be said about values that are always zero."""
        found = {name: self._statistics.get(name) for name in names}
        return [
            f"value '{name}' is always zero"
            for name, statistics in found.items()
            if statistics is not None and statistics.amax == 0.0
        ]


def _quantized(
    model: ir.Model, site: Site, quantize: Quantize, values: _ValueScales, output: str | None
) -> tuple[QuantizedSite, list[str]]:
    """One site with its scales, and what of it is dead."""
    weight, dead = (None, ()) if not site.weight else _weight(model, site, quantize)
    if quantize.scheme == "weight_only":
        return QuantizedSite(site=site, weight=weight, activation=None), list(dead)
    output_scale = values.scale(output, site, quantize) if output is not None else None
    if isinstance(output_scale, DynamicScale):
        raise ValueError(f"site '{site.id}': an output has a static scale or none")
    activation = values.scale(site.activation, site, quantize)
    if weight is not None:
        weight = with_room_for_bias(model, site, weight, activation)
    entry = QuantizedSite(
        site=site,
        weight=weight,
        activation=activation,
        output_value=output,
        output=output_scale,
        second=values.scale(site.second, site, quantize) if site.second else None,
    )
    names = dict.fromkeys(n for n in (site.activation, site.second, output) if n)
    return entry, [*values.dead(names), *dead]


def _weight(model: ir.Model, site: Site, quantize: Quantize) -> tuple[TensorScale, tuple[str, ...]]:
    """Scale of a site's weight, and what of it is dead."""
    value = model.graph.initializers.get(site.weight)
    if value is None or value.const_value is None:
        raise ValueError(f"site '{site.id}': the graph has no initializer '{site.weight}'")
    array = value.const_value.numpy()
    try:
        scale = weight_scale(array, site, quantize)
    except UnusableScaleError as error:
        raise UnusableScaleError(f"weight '{site.weight}': {error}") from None
    # Under blocks a channel has many scales; what is dead is told by channel all the same.
    amax = weight_amax(array, scale.axis if scale.block is None else site.weight_axis)
    del array
    unmap([value.const_value])
    if not amax.any():
        return scale, (f"weight '{site.weight}' is all zeros",)
    tiny = np.zeros(amax.shape, np.bool_)
    if scale.block is None:
        tiny = (amax > 0.0) & (scale.scale == np.float32(smallest_scale(site.dtype)))
    return scale, tuple(
        f"weight '{site.weight}': {np.count_nonzero(which)} of {amax.size} output channels {what} "
        f"({_listed(which)})"
        for which, what in (
            (amax == 0.0, "are all zeros"),
            (tiny, f"are too small for a {site.dtype} scale of their own"),
        )
        if which.any()
    )


def _listed(which: NDArray[np.bool_]) -> str:
    channels = np.flatnonzero(which)
    return ", ".join(str(i) for i in channels[:8]) + (", ..." if channels.size > 8 else "")
