"""SmoothQuant: moves outlier channels of activations into the weights that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.balance import balance
from bitworth.calibration.equalize import follows_ranges, parameter_amax
from bitworth.calibration.statistics import RangeStatistics
from bitworth.lowering.rescaling import ChannelFactors
from bitworth.recipe.granularity import PerTensor
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.rescalable import Pair, ScaledValue


def needed_channels(pairs: Iterable[Pair]) -> dict[str, int]:
    """The axis of the channels, by name, of all values that factors of ``pairs`` may divide.

    Calibration has to collect channel extremes of those that it observes: SmoothQuant reads them,
    and without them the range of a divided value cannot be known.
    """
    return {v.name: v.axis for pair in pairs for v in pair.values if v.axis is not None}


def smooth_factors(
    prepared: PreparedModel,
    pairs: Sequence[Pair],
    entries: Sequence[tuple[Site, Quantize]],
    statistics: Mapping[str, RangeStatistics],
) -> tuple[ChannelFactors, ...]:
    """Return SmoothQuant's factors of the pairs whose consumers all ask for one alpha.

    s_j = max|x_j| ** alpha / max|w_j| ** (1 - alpha) (Xiao et al. 2022, arXiv 2211.10438), with x_j
    channel j of what the consumers read, w_j all their weights that multiply it, as ``balance``
    says.

    A pair is left alone as well where the producer's weight is quantized under one scale, which
    would have to serve channels that are divided by different numbers, and where a quantized
    product reads channels that are spread over several axes.

    Args:
        prepared: the graph; its weights are read one at a time.
        pairs: of this graph.
        entries: the quantized sites, products of two activations included, each with its entry.
        statistics: by value, with channel extremes for what the consumers read.

    Raises:
        ValueError: a consumer's activation has no channel extremes.
    """
    by_id = {site.id: entry for site, entry in entries}
    factors = []
    for pair in pairs:
        alphas = {by_id[i].smooth if i in by_id else None for i in pair.consumers}
        alpha = alphas.pop()
        if alpha is None or alphas or not follows_ranges(pair, entries):
            continue
        if pair.site in by_id and isinstance(by_id[pair.site].weights, PerTensor):
            continue
        read = {site.activation for site, _ in entries if site.id in pair.consumers}
        seen = [_amax(pair, v, statistics) for v in pair.values if v.name in read]
        weights = [parameter_amax(prepared, pair, p) for p in pair.multiplied]
        numbers = balance(np.max(seen, axis=0), np.max(weights, axis=0), alpha)
        if (numbers != 1).any():
            factors.append(ChannelFactors(pair.value, numbers.astype(np.float32)))
    return tuple(factors)


def _amax(
    pair: Pair, value: ScaledValue, statistics: Mapping[str, RangeStatistics]
) -> NDArray[np.float64]:
    """Largest magnitude seen in each of the pair's channels, in one of its values."""
    found = statistics.get(value.name)
    if found is None or found.channel_minimum is None or found.channel_maximum is None:
        raise ValueError(f"value '{value.name}': the extremes of its channels were not observed")
    largest = np.maximum(-found.channel_minimum, found.channel_maximum)
    amax = np.zeros(pair.channels)
    # Flattened with others, a channel is several indices of the axis.
    np.maximum.at(amax, value.channels.reshape(-1), largest)
    return amax
