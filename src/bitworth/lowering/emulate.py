"""Computes a recipe in plain floats, for its quality where no engine has the format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bitworth.lowering.onnx_qdq import activation_qdq
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.lowering.weave import Scope, Weaver, weave
from bitworth.lowering.weights import emulated_tensor
from bitworth.subject.prepare import PreparedModel, check

_LARGEST = 448.0  # E4M3
# E4M3 keeps 4 significant bits of fp32's 24: Veltkamp's splitting with 2**20 + 1.
_SPLITTER = 2.0**20 + 1
# Below its smallest normal, E4M3 is a grid of step 2**-9. Adding and subtracting this number
# rounds to that grid, since numbers from 2**14 to 2**15 have just that step in fp32.
_SMALLEST_NORMAL = 2.0**-6
_GRID = 1.5 * 2.0**14


def emulate(prepared: PreparedModel, quantized: Sequence[QuantizedSite]) -> ir.Model:
    """Return a copy of the graph that computes what ``lower``'s means, with float operators.

    Weights are stored quantized and dequantized, in float. An fp8 activation passes through
    divisions, additions and multiplications that round exactly as E4M3 does (equal to ml_dtypes
    for every finite fp32 number; a zero may lose its sign), since onnxruntime's Cast to E4M3 takes
    three to five times longer. An int8 activation passes through Q/DQ nodes, which onnxruntime
    computes exactly with its optimizations off; run it so.

    Raises:
        UserError, ValueError: as ``lower``.
    """
    model = weave(prepared, quantized, Weaver(_activation, _weight))
    check(model, prepared.source)
    return model


def _weight(scope: Scope, source: ir.Value, scale: TensorScale) -> tuple[list[ir.Node], ir.Value]:
    assert source.const_value is not None
    wanted = f"{source.name}/emulated"
    return [], scope.initializer(wanted, emulated_tensor(source.const_value, scale, wanted))


def _activation(scope: Scope, value: ir.Value, scale: TensorScale, name: str) -> list[ir.Node]:
    if scale.storage != "fp8_e4m3":
        return activation_qdq(scope, value, scale, name)
    return _round_to_e4m3(scope, value, scale, name)


def _round_to_e4m3(scope: Scope, value: ir.Value, scale: TensorScale, name: str) -> list[ir.Node]:
    """Nodes for Mul(e4m3(Clip(Div(x, scale))), scale) in fp32.

    With s = x held to the subnormal range: result = split(x) + (grid(s) - split(s)). Where x is
    normal, s is a power of two, and the bracket is 0. Where it is not, s is x, and split cancels.
    """
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        node = scope.node(op_type, inputs, value, name, dtype=ir.DataType.FLOAT)
        nodes.append(node)
        return node.outputs[0]

    def cast(x: ir.Value, to: ir.DataType) -> ir.Value:
        attributes = [ir.AttrInt64("to", to.value)]
        nodes.append(scope.node("Cast", [x], value, name, attributes, dtype=to))
        return nodes[-1].outputs[0]

    def split(x: ir.Value) -> ir.Value:
        scaled = op("Mul", x, _constant(scope, "splitter", _SPLITTER))
        return op("Sub", scaled, op("Sub", scaled, x))

    def clip(x: ir.Value, largest: float, kind: str) -> ir.Value:
        low = _constant(scope, f"-{kind}", -largest)
        return op("Clip", x, low, _constant(scope, kind, largest))

    dtype = value.dtype or ir.DataType.FLOAT
    step = _constant(scope, f"{name}/scale", float(_as_type(scale, dtype)), shared=False)
    x = value if dtype == ir.DataType.FLOAT else cast(value, ir.DataType.FLOAT)
    x = clip(op("Div", x, step), _LARGEST, "largest")
    small = clip(x, _SMALLEST_NORMAL, "smallest_normal")
    grid = _constant(scope, "grid", _GRID)
    on_grid = op("Sub", op("Add", small, grid), grid)
    rounded = op("Add", split(x), op("Sub", on_grid, split(small)))
    result = op("Mul", rounded, step)
    if dtype != ir.DataType.FLOAT:
        cast(result, dtype)
    return nodes


def _as_type(scale: TensorScale, dtype: ir.DataType) -> np.float32:
    """The scale as Q/DQ nodes would hold it, in the data's float type."""
    return np.float32(np.asarray(scale.scale, dtype=np.float32).astype(dtype.numpy()))


def _constant(scope: Scope, kind: str, number: float, shared: bool = True) -> ir.Value:
    name = f"e4m3/{kind}" if shared else kind
    if shared and name in scope.graph.initializers:
        return scope.graph.initializers[name]
    return scope.initializer(name, ir.tensor(np.array(number, dtype=np.float32)))
