"""Where tensors stand in a graph: what writes and reads them, and what they are to Bitworth."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from benchmarks.peers.ours import Ours
from benchmarks.peers.results import Role
from bitworth.lowering.placement import output_value

#: Operators whose output holds values of their input, so that a peer may give both one scale.
MOVERS = (
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split",
    "MaxPool", "AveragePool", "Resize", "Expand", "Gather", "Pad", "Relu", "Clip", "Concat",
    "Cast", "GlobalAveragePool",
)  # fmt: skip
_FAR = 6


class Roles:
    """The roles of the tensors of one model."""

    def __init__(self, ours: Ours, given: ir.Model) -> None:
        """``given``: the model as it was given, for values that folding took away."""
        self._ours = ours
        self._prepared = _values(ours.prepared.model)
        self._given = _values(given)
        self._products = {
            name for site in ours.attention for name in (site.activation, site.second, site.output)
        }
        self._outputs = {
            place
            for site in ours.sites
            for placement in ("before_activation", "after_activation")
            if (place := output_value(ours.prepared.model, site, placement)) is not None
        }

    def of(self, name: str, quantized_sites: Collection[str]) -> Role:
        """The role of one value; ``quantized_sites``: ids of those whose weights the peer has."""
        value = self._prepared.get(name) or self._given.get(name)
        readers = [s for s in self._ours.sites if s.activation == name]
        producer = None if value is None else value.producer()
        return Role(
            by="input" if producer is None else producer.op_type,
            read_by=tuple(dict.fromkeys(n.op_type for n in (value.consumers() if value else ()))),
            prepared=name in self._prepared,
            site_input=bool(readers),
            site_output=any(s.output == name for s in self._ours.sites),
            behind_site=name in self._outputs,
            left_out=bool(readers) and not any(s.id in quantized_sites for s in readers),
            product=name in self._products,
            head=value is not None and _only_leads_out(value),
        )

    def related(self, name: str) -> tuple[str, ...]:
        """Values connected with one through operators that move values, the nearest first."""
        value = self._prepared.get(name) or self._given.get(name)
        if value is None:
            return ()
        found: dict[ir.Value, None] = {}
        edge = [value]
        for _ in range(_FAR):
            edge = [
                v for one in edge for v in _neighbours(one) if v not in found and v is not value
            ]
            found |= dict.fromkeys(edge)
        return tuple(str(v.name) for v in found)


def _neighbours(value: ir.Value) -> list[ir.Value]:
    producer = value.producer()
    near: list[ir.Value] = []
    if producer is not None and producer.op_type in MOVERS:
        near += [v for v in producer.inputs if v is not None and v.const_value is None]
    for node in value.consumers():
        if node.op_type in MOVERS:
            near += list(node.outputs)
    return near


def _only_leads_out(value: ir.Value) -> bool:
    """Whether operators that leave a score's order alone lead from here to outputs only."""
    if value.is_graph_output():
        return True
    consumers = list(value.consumers())
    heads = ("Softmax", "LogSoftmax", "Sigmoid", *MOVERS)
    return bool(consumers) and all(
        node.op_type in heads and all(_only_leads_out(v) for v in node.outputs)
        for node in consumers
    )


def _values(model: ir.Model) -> Mapping[str, ir.Value]:
    named = {str(v.name): v for v in model.graph.inputs}
    named.update((str(v.name), v) for node in model.graph for v in node.outputs)
    return named
