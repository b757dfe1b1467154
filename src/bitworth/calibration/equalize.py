"""Equalization of weight ranges: across two layers, without data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bitworth.calibration.balance import balance
from bitworth.lowering.rescaling import Change, ChannelFactors, changed, pair_changes
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site
from bitworth.subject.channels import largest_by_channel
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.producers import Parameter
from bitworth.subject.rescalable import Pair

Floats = NDArray[np.float64]

# In a chain each pair changes what its neighbours see, by ever smaller steps.
_STEP = 0.01
_ROUNDS = 100


def equalize_factors(
    prepared: PreparedModel, pairs: Sequence[Pair], entries: Sequence[tuple[Site, Quantize]]
) -> tuple[ChannelFactors, ...]:
    """Return the factors that equalize the weight ranges of each pair that asks for it.

    s_j = sqrt(r1_j / r2_j), with r1_j the largest magnitude of the producer's weight or scale that
    writes channel j, r2_j that of all consumers' weights that read it (Nagel et al. 2019,
    arXiv 1906.04721), as ``balance`` says. Pairs that share a weight are gone through until their
    factors stand still, within 1%.

    A pair asks for it when the entries of all its consumers do, and that of the producer where it
    is linear. It is left alone where a quantized product reads channels that are spread over
    several axes.

    Args:
        prepared: the graph; its weights are read one at a time.
        pairs: of this graph.
        entries: the quantized sites, products of two activations included, each with its entry.
    """
    wanted = {site.id for site, entry in entries if entry.equalize}
    chosen = [
        pair
        for pair in pairs
        if wanted.issuperset(pair.consumers)
        and (pair.kind == "norm" or pair.site in wanted)
        and follows_ranges(pair, entries)
    ]
    found = _balanced(prepared, chosen)
    return tuple(
        ChannelFactors(pair.value, found[pair.value].astype(np.float32))
        for pair in chosen
        if (found[pair.value] != 1).any()
    )


def follows_ranges(pair: Pair, entries: Iterable[tuple[Site, Quantize]]) -> bool:
    """Whether the range of every value that a quantized site reads or writes stays known.

    It does not where the pair's channels are spread over several axes, as heads are.
    """
    spread = {value.name for value in pair.values if value.axis is None}
    return all(
        spread.isdisjoint((site.activation, site.second, site.output)) for site, _ in entries
    )


def parameter_amax(
    prepared: PreparedModel, pair: Pair, parameter: Parameter, changes: Sequence[Change] = ()
) -> Floats:
    """Largest magnitude in each channel of one of the pair's constants, after ``changes``."""
    tensor = prepared.model.graph.initializers[parameter.initializer].const_value
    assert tensor is not None
    array = changed(tensor.numpy(), changes) if changes else tensor.numpy()
    return largest_by_channel(array, parameter.channels, pair.channels)


def _balanced(prepared: PreparedModel, pairs: Sequence[Pair]) -> Mapping[str, Floats]:
    """Factors of each pair, by its value, that agree with those of all others."""
    factors = {pair.value: np.ones(pair.channels) for pair in pairs}
    sharing: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        for use in (pair.divided[0], *pair.multiplied):
            sharing.setdefault((use.node, use.input), []).append(pair)

    def amax(pair: Pair, parameter: Parameter) -> Floats:
        others = [
            change
            for other in sharing[parameter.node, parameter.input]
            if other is not pair
            for use, change in pair_changes(other, factors[other.value].astype(np.float32))
            if (use.node, use.input) == (parameter.node, parameter.input)
        ]
        return parameter_amax(prepared, pair, parameter, others)

    waiting = {pair.value for pair in pairs}
    for _ in range(_ROUNDS):
        for pair in pairs:
            if pair.value not in waiting:
                continue
            waiting.discard(pair.value)
            read = np.max([amax(pair, p) for p in pair.multiplied], axis=0)
            new = balance(amax(pair, pair.divided[0]), read, 0.5)
            if np.max(np.abs(np.log(new / factors[pair.value]))) > _STEP:
                factors[pair.value] = new
                waiting |= {
                    other.value
                    for use in (pair.divided[0], *pair.multiplied)
                    for other in sharing[use.node, use.input]
                    if other is not pair
                }
        if not waiting:
            break
    return factors
