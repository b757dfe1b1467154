"""Computes a recipe in plain floats, for its quality where no engine has the format."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from bitworth.lowering.onnx_qdq import activation_qdq
from bitworth.lowering.rounding import (
    E4M3,
    GRIDS,
    Arithmetic,
    power_of_two_below,
    round_to_grid,
)
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.weave import Scope, Weaver, weave
from bitworth.lowering.weights import emulated_tensor
from bitworth.subject.prepare import PreparedModel, check

# From here on ReduceMax takes its axes as an input.
_AXES_INPUT_OPSET = 18
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
# A block's largest number is divided by the power of two of E4M3's largest, 2**8, and the result
# held to E8M0's smallest, 2**-127: 2**-119 before that.
_E4M3_POWER = 2.0**8
_SMALLEST_MX = 2.0**-119


def emulate(
    prepared: PreparedModel,
    quantized: Sequence[QuantizedSite],
    everywhere: Collection[str] = (),
) -> ir.Model:
    """Return a copy of the graph that computes what ``lower``'s means, with float operators.

    Weights are stored quantized and dequantized, in float. An activation in a float format passes
    through divisions, additions and multiplications that round exactly (see ``rounding``; a zero
    may lose its sign), since onnxruntime's Cast to E4M3 takes about three times longer, and it has
    none to fp4. Their scales are static, or those of blocks along the last axis, computed in the
    graph. An int8 activation passes through Quantize/DequantizeLinear, or DynamicQuantizeLinear,
    which onnxruntime computes exactly with its optimizations off; run it so. Float formats are
    computed in fp32, cast from and to the graph's own type.

    Raises:
        UserError: as ``lower``.
        ValueError: as ``lower``; or blocks that do not divide the last axis of an activation, whose
            rank and last dimension must be known.
    """
    model = weave(prepared, quantized, Weaver(_activation, _weight), everywhere)
    check(model, prepared.source)
    return model


def _weight(scope: Scope, source: ir.Value, scale: TensorScale) -> tuple[list[ir.Node], ir.Value]:
    assert source.const_value is not None
    wanted = f"{source.name}/emulated"
    return [], scope.initializer(wanted, emulated_tensor(source.const_value, scale, wanted))


def _activation(scope: Scope, value: ir.Value, scale: ActivationScale, name: str) -> list[ir.Node]:
    if isinstance(scale, TensorScale) and scale.storage not in GRIDS:
        return activation_qdq(scope, value, scale, name)
    a = Arithmetic(scope, name)
    dtype = value.dtype or ir.DataType.FLOAT
    x = value if dtype == ir.DataType.FLOAT else a.cast(value, ir.DataType.FLOAT)
    if isinstance(scale, TensorScale):
        _static(a, x, scale, dtype)
    elif scale.block is None:
        _dynamic_tensor(a, x, scale)
    else:
        _dynamic_blocks(a, x, scale, scale.block)
    if dtype != ir.DataType.FLOAT:
        a.cast(a.nodes[-1].outputs[0], dtype)
    return a.nodes


def _static(a: Arithmetic, x: ir.Value, scale: TensorScale, dtype: ir.DataType) -> None:
    # As Q/DQ nodes would hold it: in the data's float type.
    held = np.asarray(scale.scale, dtype=np.float32).astype(dtype.numpy()).astype(np.float32)
    if scale.axis is not None:
        rank = _rank(a, x)
        held = held.reshape([-1 if i == scale.axis % rank else 1 for i in range(rank)])
    step = a.own("scale", held)
    rounded = round_to_grid(a, a.op("Div", x, step), GRIDS[scale.storage])
    a.op("Mul", rounded, step)


def _dynamic_tensor(a: Arithmetic, x: ir.Value, scale: DynamicScale) -> None:
    if scale.storage != "uint8":
        raise ValueError(f"no dynamic scale of a whole tensor for {scale.storage}")
    outputs = [
        ir.Value(name=a.scope.name(f"{a.name}/dynamic/{kind}"), shape=shape, type=ir.TensorType(t))
        for kind, shape, t in (
            ("quantized", x.shape, ir.DataType.UINT8),
            ("scale", ir.Shape([]), ir.DataType.FLOAT),
            ("zero_point", ir.Shape([]), ir.DataType.UINT8),
        )
    ]
    name = a.scope.name(f"{a.name}/DynamicQuantizeLinear")
    a.nodes.append(ir.Node("", "DynamicQuantizeLinear", [x], outputs=outputs, name=name))
    a.op("DequantizeLinear", *outputs)


def _dynamic_blocks(a: Arithmetic, x: ir.Value, scale: DynamicScale, block: int) -> None:
    rank = _rank(a, x)
    assert x.shape is not None
    last = x.shape[-1]
    if not isinstance(last, int) or last % block:
        raise ValueError(f"value '{a.name}': its last axis ({last}) is no multiple of {block}")
    # A 0 in Reshape's shape keeps the dimension, so those in front may be free.
    split = a.own("split", np.array([0] * (rank - 1) + [last // block, block], np.int64))
    joined = a.own("joined", np.array([0] * (rank - 1) + [last], np.int64))
    front = list(x.shape[:-1])
    blocks = a.op("Reshape", x, split, shape=ir.Shape([*front, last // block, block]))
    one_each = ir.Shape([*front, last // block, 1])
    amax = _largest_in_block(a, blocks, one_each)
    if scale.scale_storage == "e8m0":
        step = divisor = _power_scale(a, amax)
    elif scale.scale_storage == "fp8_e4m3" and scale.tensor_scale is not None:
        step, divisor = _two_level_scale(a, amax, scale.tensor_scale)
    else:
        raise ValueError("the scales of dynamic blocks are E8M0, or E4M3 under a tensor's scale")
    rounded = round_to_grid(a, a.op("Div", blocks, divisor), GRIDS[scale.storage])
    a.op("Reshape", a.op("Mul", rounded, step), joined, shape=x.shape)


def _largest_in_block(a: Arithmetic, blocks: ir.Value, shape: ir.Shape) -> ir.Value:
    magnitude = a.op("Abs", blocks)
    axis = len(shape) - 1
    if a.scope.graph.opset_imports[""] < _AXES_INPUT_OPSET:
        return a.op("ReduceMax", magnitude, attributes=[ir.AttrInt64s("axes", [axis])], shape=shape)
    return a.op("ReduceMax", magnitude, a.own("axes", np.array([axis], np.int64)), shape=shape)


def _power_scale(a: Arithmetic, amax: ir.Value) -> ir.Value:
    """2**(floor(log2(amax)) - 8), at least 2**-127 (OCP Microscaling formats 1.0, section 6.3).

    A block of zeros gets the smallest scale: it stays zero.
    """
    low = a.constant("mx/smallest", _SMALLEST_MX)
    held = a.op("Clip", amax, low, a.constant("mx/largest", _LARGEST_FLOAT))
    power = power_of_two_below(a, held)
    return a.op("Mul", power, a.constant("mx/per_power", 1.0 / _E4M3_POWER))


def _two_level_scale(
    a: Arithmetic, amax: ir.Value, tensor_scale: float
) -> tuple[ir.Value, ir.Value]:
    """The fp32 scale of a block, E4M3(amax / (6 tensor_scale)) tensor_scale, and a safe divisor.

    Where it is zero, as for a block of zeros, the divisor is infinite and the quotient zero.
    """
    whole = np.float32(tensor_scale)
    wanted = a.op("Div", amax, a.own("six_tensor_scales", np.float32(6.0) * whole))
    stored = round_to_grid(a, wanted, E4M3)
    step = a.op("Mul", stored, a.own("tensor_scale", whole))
    zero, infinity = a.constant("nv/zero", 0.0), a.constant("nv/infinity", float("inf"))
    positive = a.op("Greater", step, zero, dtype=ir.DataType.BOOL)
    return step, a.op("Where", positive, step, infinity)


def _rank(a: Arithmetic, x: ir.Value) -> int:
    if x.shape is None or not len(x.shape):
        raise ValueError(f"value '{a.name}': its rank is not known, or 0")
    return len(x.shape)
