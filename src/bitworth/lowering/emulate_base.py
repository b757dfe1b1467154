"""Computes a 16-bit base precision in fp32, for its quality where no engine computes in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
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
from bitworth.lowering.base_weights import to_16_bits
from bitworth.lowering.float_types import TYPES, Base, set_types
from bitworth.lowering.scope import Scope
from bitworth.subject.prepare import PreparedModel, check
from bitworth.subject.tensors import static_shape

# Of numbers that a type holds, these make only numbers that it holds: nothing is left to round.
# If, Loop and Scan return what their bodies rounded.
_EXACT = (
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Concat", "Split",
    "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad",
    "Expand", "Tile", "Where", "Max", "Min", "Clip", "Relu", "Neg", "Abs", "Sign", "MaxPool",
    "GlobalMaxPool", "ReduceMax", "ReduceMin", "TopK", "Compress", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Trilu", "ConstantOfShape", "Floor", "Ceil", "Round", "If", "Loop", "Scan",
)  # fmt: skip
_REDUCING = ("ScatterElements", "ScatterND")


def emulate_base(
    prepared: PreparedModel,
    base: Base,
    keep_fp32: Sequence[str] = (),
    amax: Mapping[str, float] | None = None,
) -> ir.Model:
    """Return a copy of the graph in which fp32 operators compute with numbers of ``base``.

    What ``to_base`` would convert is rounded instead: inputs, constants, and each value that a
    node writes; sums inside a node stay in fp32, as in hardware that accumulates in fp32. bf16 is
    allowed wherever fp16 is, whatever the graph's opset: no operator has to know the type. Values
    are rounded by Cast to the type and back, which onnxruntime does exactly as IEEE 754 and
    ml_dtypes do (to nearest, ties to even; subnormals; infinity beyond the range); constants as
    ``to_base`` rounds them. An optimizer may take the Casts out: run it with optimizations off.

    Values and nodes keep their names; what a node writes before it is rounded is
    ``<name>/unrounded``, and ``<name>/bf16`` is what converted nodes read of an input of the graph
    or of a node that stays in fp32.

    Args:
        prepared: the fp32 graph; it is not changed.
        base: the 16-bit type.
        keep_fp32: as for ``to_base``.
        amax: as for ``to_base``.

    Raises:
        UserError: an entry of ``keep_fp32`` that matches no node.
        ValueError: ``amax`` names a value that the graph has not.
    """
    model = prepared.model.clone()
    set_types(model)
    plan = plan_base(model, base, keep_fp32, amax or {}, prepared.source, any_opset=True)
    scope = Scope.of(model)
    for node, types in plan.nodes.items():
        if node.op_type == "ConstantOfShape" and types.outputs == ("base",):
            _round_fill(node, base)
    for entry in float_values(model, plan):
        if entry.constant:
            _round_constant(entry, base, scope)
        elif entry.written == "fp32":
            _round_for_some(entry, base, scope)
        elif not _is_exact(entry.value, plan):
            _round_for_all(entry, base, scope)
    check(model, prepared.source)
    return model


def _is_exact(value: ir.Value, plan: BasePlan) -> bool:
    node = value.producer()
    if node is None:
        # An input of a body: whoever gives it has rounded it.
        return True
    if node.domain or node.op_type not in _EXACT or "fp32" in plan.nodes[node].inputs:
        return False
    adds = node.op_type in _REDUCING and node.attributes.get_string("reduction", "none") != "none"
    return not adds


def _round_for_all(entry: FloatValue, base: Base, scope: Scope) -> None:
    value, name = entry.value, str(entry.value.name)
    value.name = scope.name(f"{name}/unrounded")
    rounded = _rounding(entry, base, scope, name)
    redirect(entry.reads, rounded)


def _round_for_some(entry: FloatValue, base: Base, scope: Scope) -> None:
    reads = entry.read_as("base")
    if reads:
        name = scope.name(f"{entry.value.name}/{base}")
        redirect(reads, _rounding(entry, base, scope, name))


def _rounding(entry: FloatValue, base: Base, scope: Scope, name: str) -> ir.Value:
    half = scope.name(f"{name}/rounded")
    down = cast(entry.value, TYPES[base], half, scope.name(f"{half}/Cast"))
    up = cast(down.outputs[0], ir.DataType.FLOAT, name, scope.name(f"{name}/Cast"))
    insert(entry, [down, up])
    return up.outputs[0]


def _round_constant(entry: FloatValue, base: Base, scope: Scope) -> None:
    low, full = entry.read_as("base"), entry.read_as("fp32")
    if not low:
        return
    value = entry.value
    rounded = _rounded_tensor(constant_of(value), base, value.name)
    if full or value.producer() is not None:
        body = Scope(entry.graph, scope.taken)
        redirect(low, body.initializer(f"{value.name}/{base}", rounded))
    else:
        value.const_value = rounded


def _round_fill(node: ir.Node, base: Base) -> None:
    if (fill := node.attributes.get("value")) is not None:
        tensor = fill.as_tensor()
        node.attributes["value"] = ir.AttrTensor(
            "value", _rounded_tensor(tensor, base, tensor.name)
        )


def _rounded_tensor(source: ir.TensorProtocol, base: Base, name: str | None) -> ir.LazyTensor:
    def compute() -> ir.TensorProtocol:
        return ir.Tensor(to_16_bits(source.numpy(), base).astype(np.float32))

    shape = ir.Shape(static_shape(source))
    return ir.LazyTensor(compute, dtype=ir.DataType.FLOAT, shape=shape, name=name)
