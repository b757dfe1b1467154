"""Which float type each input and output of a node takes in a 16-bit graph.

Decided from the ONNX schema of the operator at the graph's opset, not from a list of operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import onnx
import onnx_ir as ir

from bitworth.subject.prepare import skeleton

# What is wanted of an input: the 16-bit type, fp32, or whatever its writer gives it.
Wanted = Literal["base", "fp32", "any"]
Base = Literal["fp16", "bf16"]

TYPES: Mapping[Base, ir.DataType] = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
_SCHEMA_TYPES = {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}
_CONTROL = ("If", "Loop", "Scan")
# They read bits, or a shape, and no number; or they convert from any float type themselves. Read
# as it is, a value is not rounded on its way: an fp32 input of 3001 stays 3001 in Cast to int64.
_READS_ANY = {
    "Cast": (0,), "CastLike": (0,), "Shape": (0,), "Size": (0,), "EyeLike": (0,),
    "RandomNormalLike": (0,), "RandomUniformLike": (0,), "Bernoulli": (0,),
}  # fmt: skip
# The schema allows 16 bits, but these are coordinates and counts, which need more; the output's
# type does not depend on them.
_READS_FP32 = {"Resize": (1,), "OneHot": (0, 1), "MelWeightMatrix": (0, 1, 2, 3, 4)}
# The converted node's attribute says the new type.
TYPE_ATTRIBUTES: Mapping[str, str] = {"Cast": "to", "ConstantOfShape": "value", "Constant": "value"}
# What they make is fp32 and cast behind: onnxruntime has no kernels that make 16 bits, and adds no
# casts to operators whose type no input says. Without its attribute the type is the input's.
TYPED_BY_INPUT = ("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
_STAY = {
    "BitCast": "it reads the bits of its input",
    "QuantizeLinear": "it is part of an earlier quantization",
    "DequantizeLinear": "it is part of an earlier quantization",
}


@dataclass(frozen=True)
class NodeTypes:
    """What a node reads and writes in a 16-bit graph.

    Attributes:
        inputs: one entry an input; None for what is no fp32 tensor.
        outputs: one entry an output, ``base`` or ``fp32``; None for what is no fp32 tensor.
        reason: why the whole node stays in fp32; None if it does not, or has nothing in fp32.
    """

    inputs: tuple[Wanted | None, ...]
    outputs: tuple[Wanted | None, ...]
    reason: str | None = None


def node_types(
    node: ir.Node, opsets: Mapping[str, int], base: Base, any_opset: bool = False
) -> NodeTypes:
    """Return what ``node`` reads and writes when its graph is converted to ``base``.

    Args:
        node: all its values have types, as far as they are known.
        opsets: version of each operator set.
        base: the 16-bit type.
        any_opset: bf16 counts as allowed wherever fp16 is, whatever the opset says.
    """
    if not has_fp32(node):
        return unchanged(node, None)
    if reason := _must_stay(node, opsets):
        return unchanged(node, reason)
    if not node.domain and node.op_type in _CONTROL:
        # What goes in and out of bodies has one type throughout.
        return NodeTypes(_all_base(node.inputs), _all_base(node.outputs))
    allowed = {_SCHEMA_TYPES[base]} | ({_SCHEMA_TYPES["fp16"]} if any_opset else set())
    version = opsets[node.domain]
    ins, outs = _parameters(node.op_type, version, node.domain)
    types = NodeTypes(
        tuple(
            _wanted(node, i, _formal(ins, i), allowed) if is_fp32(v) else None
            for i, v in enumerate(node.inputs)
        ),
        tuple(
            _written(node, _formal(outs, i), {p.type_str for p in ins}, allowed)
            if is_fp32(v)
            else None
            for i, v in enumerate(node.outputs)
        ),
    )
    if "base" in types.inputs + types.outputs or "fp32" not in types.inputs + types.outputs:
        return types
    return NodeTypes(types.inputs, types.outputs, _why_not(node, version, allowed))


def unchanged(node: ir.Node, reason: str | None) -> NodeTypes:
    """Return the types of a node that stays as it is."""
    return NodeTypes(
        tuple("fp32" if is_fp32(v) else None for v in node.inputs),
        tuple("fp32" if is_fp32(v) else None for v in node.outputs),
        reason,
    )


def is_fp32(value: ir.Value | None) -> bool:
    """Whether ``value`` is known to be a tensor of 32-bit floats."""
    return (
        value is not None
        and isinstance(value.type, ir.TensorType)
        and value.dtype == ir.DataType.FLOAT
    )


def has_fp32(node: ir.Node) -> bool:
    """Whether ``node`` reads or writes 32-bit floats, or has a body, which may."""
    bodies = any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    )
    return bodies or any(is_fp32(v) for v in (*node.inputs, *node.outputs))


def set_types(model: ir.Model) -> None:
    """Give every value of ``model`` its type, in place, as far as ONNX can infer it."""
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(skeleton(model)))
    known = {v.name: v.type for v in _values(inferred)}
    for value in _values(model):
        value.type = value.type or known.get(value.name)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _must_stay(node: ir.Node, opsets: Mapping[str, int]) -> str | None:
    if not node.domain and node.op_type in _STAY:
        return _STAY[node.op_type]
    if "sparse_value" in node.attributes:
        return "it is sparse"
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    unknown = [v.name for v in values if v.type is None]
    if unknown:
        return f"the type of '{unknown[0]}' is not known"
    if not node.domain and node.op_type in _CONTROL:
        return None
    if not _parameters(node.op_type, opsets.get(node.domain, 1), node.domain):
        return f"ONNX does not define {node.op_type} of domain '{node.domain}'"
    if any(not isinstance(v.type, ir.TensorType) for v in values):
        return "it reads or writes a sequence or an optional value"
    return None


def _all_base(values: Sequence[ir.Value | None]) -> tuple[Wanted | None, ...]:
    return tuple("base" if is_fp32(v) else None for v in values)


Parameters = tuple[onnx.defs.OpSchema.FormalParameter, ...]


@cache
def _parameters(op_type: str, version: int, domain: str) -> tuple[Parameters, ...]:
    """Formal inputs and outputs, or nothing where ONNX has no such operator."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return ()
    return tuple(schema.inputs), tuple(schema.outputs)


def _formal(parameters: Parameters, index: int) -> onnx.defs.OpSchema.FormalParameter:
    return parameters[min(index, len(parameters) - 1)]


def _wanted(
    node: ir.Node, index: int, formal: onnx.defs.OpSchema.FormalParameter, allowed: set[str]
) -> Wanted:
    if not node.domain and index in _READS_ANY.get(node.op_type, ()):
        return "any"
    if not node.domain and index in _READS_FP32.get(node.op_type, ()):
        return "fp32"
    return "base" if allowed & formal.types else "fp32"


def _written(
    node: ir.Node,
    formal: onnx.defs.OpSchema.FormalParameter,
    read: set[str],
    allowed: set[str],
) -> Wanted:
    # A type that no input has is said by an attribute; one that is not known stays as it says.
    if formal.type_str not in read and (node.domain or node.op_type not in TYPE_ATTRIBUTES):
        return "fp32"
    return "base" if allowed & formal.types else "fp32"


def _why_not(node: ir.Node, version: int, allowed: set[str]) -> str:
    if node.op_type in TYPED_BY_INPUT or not node.inputs:
        return "it makes fp32 numbers of its own"
    name = " or ".join(sorted(t.removeprefix("tensor(").removesuffix(")") for t in allowed))
    for later in range(version + 1, onnx.defs.onnx_opset_version() + 1 if not node.domain else 0):
        formals = [p for ps in _parameters(node.op_type, later, node.domain) for p in ps]
        if any(allowed & p.types and "tensor(float)" in p.types for p in formals):
            return f"{node.op_type} takes {name} from opset {later} on; the graph has {version}"
    return f"{node.op_type} does not take {name}"
