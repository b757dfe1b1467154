"""Every scale of one variant: statistics and weights in, quantized sites out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.calibration.scales import UnusableScaleError, activation_scale, smallest_scale
from bitworth.calibration.statistics import RangeStatistics
from bitworth.calibration.weight_scales import weight_amax, weight_scale
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site


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
    are read one at a time.

    Args:
        model: the prepared graph, for the weights.
        sites: each with its resolved entry.
        statistics: by name of the value; those of the activation inputs and output values.
        output_values: by site id, the value at which its output is quantized; none or absent: not
            quantized.

    Raises:
        ValueError: an entry is not resolved, or a weight or a value's statistics are missing.
    """
    made: dict[tuple[str, Quantize, str], TensorScale] = {}

    def scale_of(name: str, site: Site, quantize: Quantize) -> TensorScale:
        if name not in statistics:
            raise ValueError(f"site '{site.id}': value '{name}' was not observed")
        key = (name, quantize, site.dtype)
        try:
            if key not in made:
                made[key] = activation_scale(statistics[name], quantize, dtype=site.dtype)
        except UnusableScaleError as error:
            raise UnusableScaleError(f"value '{name}': {error}") from None
        return made[key]

    quantized: list[QuantizedSite] = []
    dead: list[tuple[str, str]] = []
    left_out: list[tuple[str, str]] = []
    for site, quantize in sites:
        output = output_values.get(site.id)
        try:
            weight, dead_weight = _weight(model, site, quantize)
            entry = QuantizedSite(
                site=site,
                weight=weight,
                activation=scale_of(site.activation, site, quantize),
                output_value=output,
                output=scale_of(output, site, quantize) if output is not None else None,
            )
        except UnusableScaleError as error:
            left_out.append((site.id, str(error)))
            continue
        quantized.append(entry)
        dead += [
            (site.id, f"value '{name}' is always zero")
            for name in dict.fromkeys((site.activation, output))
            if name is not None and statistics[name].amax == 0.0
        ]
        dead += [(site.id, what) for what in dead_weight]
    return ScaledSites(tuple(quantized), tuple(dead), tuple(left_out))


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
    amax = weight_amax(array, scale.axis)
    if not amax.any():
        return scale, (f"weight '{site.weight}' is all zeros",)
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
