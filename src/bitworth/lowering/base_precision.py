"""Converts a graph to fp16 or bf16: its base precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from bitworth.lowering.base_plan import BasePlan, plan_base
from bitworth.lowering.base_uses import (
    FloatValue,
    cast,
    constant_of,
    float_values,
    insert,
    redirect,
)
from bitworth.lowering.base_weights import converted_tensor, range_losses
from bitworth.lowering.float_types import TYPE_ATTRIBUTES, TYPED_BY_INPUT, TYPES, Base, set_types
from bitworth.lowering.scope import Scope
from bitworth.subject.prepare import PreparedModel, check


@dataclass(frozen=True)
class Converted:
    """A graph in a 16-bit base precision.

    Attributes:
        model: the converted graph; its inputs and outputs are those of the fp32 one.
        kept: (node name, reason) of each node that stays in fp32, bodies included.
        overflow: (value name, text) of what leaves the type's range: elements of constants beyond
            its largest number, or too small for its smallest one, and values whose largest
            magnitude is beyond it.
        renamed: (new name, name in the fp32 graph) of each value that was added beside another:
            what holds for the one, such as its range, holds for the other.
    """

    model: PreparedModel
    kept: tuple[tuple[str, str], ...]
    overflow: tuple[tuple[str, str], ...]
    renamed: tuple[tuple[str, str], ...]


@dataclass
class _Work:
    model: ir.Model
    base: Base
    plan: BasePlan
    names: Scope
    losses: list[tuple[str, str]] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)


def to_base(
    prepared: PreparedModel,
    base: Base,
    keep_fp32: Sequence[str] = (),
    amax: Mapping[str, float] | None = None,
) -> Converted:
    """Return ``prepared`` in fp16 or bf16, in which nodes stay in fp32 where they must.

    Inputs and outputs of the graph stay fp32. A node is converted where the ONNX schema of its
    operator allows the type at the graph's opset; of an operator that takes it for some inputs
    only (Resize), these are converted. It stays in fp32 when ``keep_fp32`` names it, when it
    computes counts (see ``counts``), when it reads or writes a value that ``amax`` says is beyond
    the type's range, and when it belongs to a body of a node that stays. fp64 and integers are
    left alone. Constants are converted when they are read; beyond the range they become the
    largest finite number.

    Names stay: nodes, initializers that a converted node reads, and the values that nodes write.
    New are, with ``/fp32`` where the writer is converted and the reader is not:

    - ``<name>/fp16`` (``/bf16``): what converted nodes read of an input of the graph, or of a value
      that a node in fp32 writes; and what a converted node writes where its value is an output of
      the graph, whose name its Cast now has;
    - ``<name>/fp32``: also a constant as nodes in fp32 read it, where converted ones do too.

    The same arguments give the same bytes; ``prepared`` is not changed.

    Args:
        prepared: the fp32 graph.
        base: the 16-bit type.
        keep_fp32: operators, or patterns on node names (``fnmatch``).
        amax: largest magnitude in calibration, by name of a value of ``prepared``.

    Raises:
        UserError: an entry of ``keep_fp32`` that matches no node, or an opset without the type.
        ValueError: ``amax`` names a value that the graph has not.
    """
    model = prepared.model.clone()
    set_types(model)
    plan = plan_base(model, base, keep_fp32, amax or {}, prepared.source)
    work = _Work(model, base, plan, Scope.of(model))
    values = float_values(model, plan)
    for node, types in plan.nodes.items():
        if not node.domain and node.op_type in TYPE_ATTRIBUTES and "base" in types.outputs:
            _retype(work, node)
        if not node.domain and node.op_type in TYPED_BY_INPUT and "fp32" in types.outputs:
            node.attributes["dtype"] = ir.AttrInt64("dtype", ir.DataType.FLOAT.value)
    for entry in values:
        if entry.constant:
            _constant(work, entry)
        else:
            _value(work, entry)
    check(model, prepared.source)
    return Converted(
        model=replace(prepared, model=model),
        kept=plan.kept,
        overflow=(*plan.overflow, *work.losses),
        renamed=tuple(work.renamed),
    )


def _value(work: _Work, entry: FloatValue) -> None:
    value, name = entry.value, str(entry.value.name)
    low = TYPES[work.base]
    if entry.written == "base":
        value.type = ir.TensorType(low)
    others = entry.read_as("fp32" if entry.written == "base" else "base")
    if not others:
        return
    if entry.written == "base":
        wanted, to = f"{name}/fp32", ir.DataType.FLOAT
        if any(r.by is work.model.graph for r in others):
            # The output of the graph keeps its name and type; the node writes another value.
            value.name = work.names.name(f"{name}/{work.base}")
            work.renamed.append((value.name, name))
            wanted = name
    else:
        wanted, to = f"{name}/{work.base}", low
    new = wanted if wanted == name else work.names.name(wanted)
    node = cast(value, to, new, work.names.name(f"{wanted}/Cast"))
    insert(entry, [node])
    redirect(others, node.outputs[0])
    if new != name:
        work.renamed.append((new, name))


def _constant(work: _Work, entry: FloatValue) -> None:
    low, full = entry.read_as("base"), entry.read_as("fp32")
    if not low:
        return
    value, name = entry.value, str(entry.value.name)
    tensor = constant_of(value)
    work.losses += [(name, text) for text in range_losses(tensor, work.base)]
    if not full:
        _set_constant(value, converted_tensor(tensor, work.base, name))
        return
    # Whichever keeps the name: an output of the graph must, and else what converted nodes read.
    returned = any(r.by is work.model.graph for r in full)
    scope = Scope(entry.graph, work.names.taken)
    converted = converted_tensor(tensor, work.base, name)
    if returned:
        other = scope.initializer(f"{name}/{work.base}", converted)
        redirect(low, other)
    else:
        other = scope.initializer(f"{name}/fp32", _renamed(tensor))
        redirect(full, other)
        _set_constant(value, converted)
    work.renamed.append((str(other.name), name))


def _renamed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same tensor as another object, so that its name is not that of the original graph."""
    shape = ir.Shape([d for d in tensor.shape if isinstance(d, int)])
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape)


def _set_constant(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    value.type = ir.TensorType(tensor.dtype)
    node = value.producer()
    if node is None:
        value.const_value = tensor
        return
    node.attributes.clear()
    node.attributes.add(ir.AttrTensor("value", tensor))


def _retype(work: _Work, node: ir.Node) -> None:
    """Set the attribute that says the type of what ``node`` writes."""
    low, name = TYPES[work.base], TYPE_ATTRIBUTES[node.op_type]
    if node.op_type == "Constant":
        return  # converted as any constant
    if node.op_type != "ConstantOfShape":
        node.attributes[name] = ir.AttrInt64(name, low.value)
        return
    given = node.attributes.get(name)
    fill = given.as_tensor() if given is not None else ir.tensor([0.0], ir.DataType.FLOAT)
    output = str(node.outputs[0].name)
    work.losses += [(output, text) for text in range_losses(fill, work.base)]
    node.attributes[name] = ir.AttrTensor(name, converted_tensor(fill, work.base, fill.name))
