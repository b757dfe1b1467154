"""Divides the channels of values by factors, and multiplies them back in the weights behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.recipe.site import Site
from bitworth.subject.channels import Channels
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.producers import Parameter
from bitworth.subject.rescalable import Pair, find_pairs
from bitworth.subject.tensors import static_shape, unused_name

Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class ChannelFactors:
    """By what the channels of a value are divided.

    Attributes:
        value: name of the value of a pair (``subject.rescalable.Pair``).
        factors: float32, shape (channels,); finite and positive.
    """

    value: str
    factors: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Change:
    """One pair's factors for one constant.

    Attributes:
        factors: float32, shape (channels,).
        channels: the channel of each element, in a shape that broadcasts with the constant's.
        multiply: whether elements are multiplied, else divided.
    """

    factors: NDArray[np.float32]
    channels: Channels
    multiply: bool

    @property
    def key(self) -> tuple[object, ...]:
        """What two changes that do the same have in common."""
        return self.factors.tobytes(), self.channels.tobytes(), self.channels.shape, self.multiply


def rescale(
    prepared: PreparedModel, sites: Iterable[Site], factors: Sequence[ChannelFactors]
) -> PreparedModel:
    """Return the graph in which values are divided by factors and their consumers' weights
    multiplied, so that it computes what it did.

    Its outputs stay equal up to rounding, and bit-equal for powers of two as long as nothing
    overflows or gets denormal. Names stay: of nodes, of values, of the sites' weights. A scale or
    bias that other nodes read as well is copied under a new name. Changed constants keep their
    type, and are computed each time they are read. The order of ``factors`` does not matter.

    Args:
        prepared: the graph.
        sites: those that its pairs were found with.
        factors: each for another pair.

    Raises:
        ValueError: factors of no pair, of one twice, of another number of channels, or not finite
            and positive.
    """
    chosen = _checked(find_pairs(prepared, sites), factors)
    changes: dict[tuple[str, int], list[Change]] = {}
    for pair, numbers in chosen:
        for use, change in pair_changes(pair, numbers):
            changes.setdefault((use.node, use.input), []).append(change)
    model = prepared.model.clone()
    values = {
        str(value.name): value
        for node in model.graph
        for i, value in enumerate(node.inputs)
        if value is not None and (str(node.name), i) in changes
    }
    for value in values.values():
        _change(model.graph, value, changes)
    return replace(prepared, model=model)


def pair_changes(pair: Pair, factors: NDArray[np.float32]) -> list[tuple[Parameter, Change]]:
    """What the factors of ``pair`` do to each of its constants."""
    return [(p, Change(factors, p.channels, False)) for p in pair.divided] + [
        (p, Change(factors, p.channels, True)) for p in pair.multiplied
    ]


def changed(array: Array, changes: Iterable[Change]) -> Array:
    """Return ``array`` with ``changes`` made, in its own type; computed in fp32 at least.

    It grows where channels lie along an axis that it has not.
    """
    kind = array.dtype
    wide = array.astype(np.result_type(kind, np.float32), copy=False)
    for change in changes:
        numbers = change.factors[change.channels]
        wide = wide * numbers if change.multiply else wide / numbers
    # What the narrower type cannot hold becomes infinite, and is found where weights are scaled.
    with np.errstate(over="ignore"):
        narrow: Array = wide.astype(kind, copy=False)
    return narrow


def value_factors(
    pairs: Iterable[Pair], factors: Sequence[ChannelFactors]
) -> dict[str, NDArray[np.float32]]:
    """By what each value of the graph is divided, along the axis that holds its channels.

    Arrays have one number for each index of that axis (``ScaledValue.axis``), which is more than
    the pair has channels where they were flattened with others. Values whose channels are spread
    over several axes are left out: no single scale of theirs can be had from channel extremes.

    Raises:
        ValueError: as ``rescale``.
    """
    return {
        value.name: numbers[value.channels.reshape(-1)]
        for pair, numbers in _checked(tuple(pairs), factors)
        for value in pair.values
        if value.axis is not None
    }


def _checked(
    pairs: Sequence[Pair], factors: Sequence[ChannelFactors]
) -> list[tuple[Pair, NDArray[np.float32]]]:
    """Pairs with their factors, in the order of the pairs."""
    by_value = {pair.value: pair for pair in pairs}
    given: dict[str, NDArray[np.float32]] = {}
    for entry in factors:
        numbers = np.asarray(entry.factors)
        if entry.value not in by_value:
            raise ValueError(f"the channels of value '{entry.value}' cannot be rescaled")
        if entry.value in given:
            raise ValueError(f"value '{entry.value}' has factors twice")
        if numbers.dtype != np.float32 or numbers.shape != (by_value[entry.value].channels,):
            raise ValueError(
                f"value '{entry.value}' needs {by_value[entry.value].channels} float32 factors, "
                f"not {numbers.dtype} {numbers.shape}"
            )
        if not (np.isfinite(numbers) & (numbers > 0)).all():
            raise ValueError(f"factors of value '{entry.value}' are not finite and positive")
        given[entry.value] = numbers
    return [(pair, given[pair.value]) for pair in pairs if pair.value in given]


def _change(
    graph: ir.Graph, value: ir.Value, changes: Mapping[tuple[str, int], list[Change]]
) -> None:
    """Change a constant, or copies of it where its uses do not agree."""
    source = value.const_value
    assert source is not None
    # Uses with the same changes, by what identifies these; no changes under the empty key.
    groups: dict[tuple[object, ...], list[tuple[ir.Node, int]]] = {}
    for node, index in tuple(value.uses()):
        key = tuple(c.key for c in changes.get((str(node.name), index), ()))
        groups.setdefault(key, []).append((node, index))
    in_place = len(groups) == 1 and not value.is_graph_output()
    for uses in groups.values():
        wanted = changes.get((str(uses[0][0].name), uses[0][1]))
        if wanted is None:
            continue
        if in_place:
            _set(value, source, wanted)
            continue
        copy = ir.Value(name=unused_name(f"{value.name}/rescaled", graph))
        _set(copy, source, wanted)
        graph.register_initializer(copy)
        for node, index in uses:
            node.replace_input_with(index, copy)
    if not value.uses() and not value.is_graph_output():
        del graph.initializers[str(value.name)]


def _set(value: ir.Value, source: ir.TensorProtocol, changes: Sequence[Change]) -> None:
    shape = np.broadcast_shapes(static_shape(source), *(c.channels.shape for c in changes))

    def compute() -> ir.TensorProtocol:
        return ir.Tensor(changed(source.numpy(), changes), dtype=source.dtype)

    value.shape, value.type = ir.Shape(shape), ir.TensorType(source.dtype)
    value.const_value = ir.LazyTensor(
        compute, dtype=source.dtype, shape=ir.Shape(shape), name=value.name
    )
