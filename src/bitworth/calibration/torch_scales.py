"""Scales of the sites of a PyTorch module: those of ONNX sites, where they mean the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.scaled_sites import ScaledSites
from bitworth.calibration.scales import UnusableScaleError, activation_scale, smallest_scale
from bitworth.calibration.statistics import RangeStatistics
from bitworth.calibration.weight_scales import weight_amax, weight_scale
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale
from bitworth.recipe.formats import FORMATS
from bitworth.recipe.granularity import PerRow
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site

Weight = Callable[[str], NDArray[np.generic]]


def scale_modules(
    pairs: Sequence[tuple[Site, Quantize]],
    weight: Weight,
    statistics: Mapping[str, RangeStatistics],
    fused: Sequence[Sequence[str]] = (),
) -> ScaledSites:
    """Return the scales of all sites.

    Args:
        pairs: each site with its resolved entry.
        weight: a site's weight by its name, in fp32.
        statistics: of what each site reads, by the value's name.
        fused: modules that are computed in one GEMM, which has one scale for a whole weight: they
            share the largest.
    """
    quantized: dict[str, QuantizedSite] = {}
    entries = {site.node: entry for site, entry in pairs}
    dead: list[tuple[str, str]] = []
    left_out: list[tuple[str, str]] = []
    for site, entry in pairs:
        try:
            array = weight(site.weight)
            found = weight_scale(array, site, entry)
            read = _activation(statistics.get(site.activation), entry)
        except UnusableScaleError as error:
            left_out.append((site.id, str(error)))
            continue
        quantized[site.node] = QuantizedSite(site=site, weight=found, activation=read)
        dead += [(site.id, text) for text in _dead(array, site, found)]
    for names in fused:
        _share(names, quantized, entries)
    return ScaledSites(tuple(quantized.values()), tuple(dead), tuple(left_out))


def _activation(statistics: RangeStatistics | None, entry: Quantize) -> ActivationScale:
    kind = FORMATS[entry.format]
    if entry.scheme == "dynamic" and kind.block is None:
        # Symmetric, one scale for the tensor or each row: nothing of it is known beforehand.
        element = "int8" if kind.element == "float" else kind.element
        return DynamicScale(element, scale_storage="float")
    return activation_scale(statistics, entry)


def _share(
    names: Sequence[str], quantized: dict[str, QuantizedSite], entries: Mapping[str, Quantize]
) -> None:
    """Give sites of one GEMM one weight scale, where all of them have one for the whole weight."""
    found = [quantized[name] for name in names if name in quantized]
    if len(found) < len(names):
        return
    scales = [q.weight for q in found if q.weight is not None and q.weight.axis is None]
    same = len({(entries[n].format, entries[n].scheme, entries[n].activations) for n in names}) == 1
    if len(scales) < len(names) or not same:
        return
    largest = max(scales, key=lambda scale: float(scale.scale))
    for name, site in zip(names, found, strict=True):
        quantized[name] = QuantizedSite(site=site.site, weight=largest, activation=site.activation)


def is_per_row(entry: Quantize) -> bool:
    """Whether an activation has a scale for each row."""
    return isinstance(entry.activations, PerRow)


def _dead(array: NDArray[np.generic], site: Site, scale: TensorScale) -> list[str]:
    amax = weight_amax(array, site.weight_axis)
    if not amax.any():
        return [f"weight '{site.weight}' is all zeros"]
    found = []
    zeros = int(np.count_nonzero(amax == 0.0))
    if zeros:
        found.append(
            f"weight '{site.weight}': {zeros} of {amax.size} output channels are all zeros"
        )
    if scale.axis is not None and scale.block is None:
        tiny = int(np.count_nonzero((amax > 0) & (scale.scale == np.float32(smallest_scale("")))))
        if tiny:
            found.append(
                f"weight '{site.weight}': {tiny} of {amax.size} output channels are too small for "
                "a scale of their own"
            )
    return found
