"""Integer products whose activations are quantized by the scale of their own values.

ONNX: DynamicQuantizeLinear (opset 11), MatMulInteger (opset 10). onnxruntime fuses the form that is
written here to DynamicQuantizeMatMul, or MatMulIntegerToFloat where several read one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.scope import FLOAT_TYPES, Scope
from bitworth.lowering.weave import activation_inputs, scale_key
from bitworth.lowering.weights import quantized_tensor
from bitworth.subject.tensors import static_shape

# onnxruntime multiplies u8 by u8 or s8, but not s8 by u8: a weight on the left is stored as u8.
_SHIFT = 128


def is_dynamic_int8(entry: QuantizedSite) -> bool:
    """Whether activations of the site get an int8 scale from their values.

    Raises:
        ValueError: they do, and the site has no such form: a convolution, a weight that is not int8
            with one scale or one a channel, or two activations of which one is not dynamic.
    """
    site, inputs = entry.site, activation_inputs(entry)
    dynamic = [s for _, _, s in inputs if isinstance(s, DynamicScale)]
    if not dynamic:
        return False
    reason = None
    if site.op_type not in ("MatMul", "Gemm"):
        reason = f"a {site.op_type} has no dynamic int8 form"
    elif any(s.storage != "uint8" or s.block is not None for s in dynamic):
        reason = "a dynamic activation is uint8, with one scale"
    elif site.weight and not _is_int8(entry.weight):
        reason = "beside a dynamic activation a weight is int8, with one scale or one a channel"
    elif not site.weight and len(dynamic) != 2:
        reason = "either both activations of a product are dynamic, or none"
    if reason is not None:
        raise ValueError(f"site '{site.id}': {reason}")
    return True


def output_alone(entry: QuantizedSite) -> QuantizedSite:
    """Return the site with nothing quantized but its output: its inputs are written here."""
    return replace(entry, weight=None, activation=None, second=None, compute=None)


def write_dynamic_int8(model: ir.Model, quantized: Sequence[QuantizedSite]) -> None:
    """Replace the operations of these sites, in place, by integer products.

    y = Cast(MatMulInteger(q, w)) * (x_scale * w_scale) + bias, with q, x_scale and the zero point
    from one DynamicQuantizeLinear a value. Integers are summed in 32 bits; scales, products and
    biases are fp32, and the result returns to the graph's type. A Gemm's transposed weight is
    stored the other way round, its alpha is part of the weight's scale, its beta of the bias. A
    weight on the left is stored as uint8 with zero point 128.

    Args:
        model: with the nodes of the sites as they were found, whatever surrounds them.
        quantized: sites for which ``is_dynamic_int8``.
    """
    scope = Scope.of(model)
    nodes = {str(n.name): n for n in model.graph}
    order = {name: i for i, name in enumerate(nodes)}
    operands = _Operands(scope)
    # In the order of the graph: what sites share stands before the first of them.
    for entry in sorted(quantized, key=lambda q: order[q.site.node]):
        node = nodes[entry.site.node]
        pair = operands.of(entry, node)
        chain = _integer_product(scope, entry, node, pair)
        ir.convenience.replace_nodes_and_values(
            scope.graph, node, [node], chain.nodes, list(node.outputs), chain.nodes[-1].outputs
        )
    scope.drop_unused(q.site.weight for q in quantized if q.site.weight)


@dataclass(frozen=True)
class _Operand:
    """An 8-bit tensor with its zero point and its fp32 scale."""

    data: ir.Value
    zero_point: ir.Value
    scale: ir.Value


@dataclass
class _Chain:
    """Nodes that stand for one operation, in order."""

    scope: Scope
    name: str
    nodes: list[ir.Node] = field(default_factory=list)

    def op(self, op_type: str, like: ir.Value, *inputs: ir.Value) -> ir.Value:
        kind = ir.DataType.INT32 if op_type == "MatMulInteger" else ir.DataType.FLOAT
        self.nodes.append(self.scope.node(op_type, inputs, like, self.name, dtype=kind))
        return self.nodes[-1].outputs[0]

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        self.nodes.append(self.scope.cast(value, dtype, self.name))
        return self.nodes[-1].outputs[0]


def _integer_product(
    scope: Scope, entry: QuantizedSite, node: ir.Node, pair: tuple[_Operand, _Operand]
) -> _Chain:
    chain = _Chain(scope, str(node.name))
    result, (a, b) = node.outputs[0], pair
    data = (a.data, b.data, a.zero_point, b.zero_point)
    product = chain.cast(chain.op("MatMulInteger", result, *data), ir.DataType.FLOAT)
    left = entry.site.weight_input == 0 and bool(entry.site.weight)
    scales = (b.scale, a.scale) if left else (a.scale, b.scale)
    # A scalar times a scale: what is not the scalar gives the shape.
    scale = chain.op("Mul", scales[1], *scales)
    value = chain.op("Mul", result, product, scale)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        addend = chain.cast(bias, ir.DataType.FLOAT)
        beta = node.attributes.get_float("beta", 1.0)
        if beta != 1.0:
            factor = ir.tensor(np.array(beta, np.float32))
            factor_value = scope.initializer(f"{chain.name}/beta", factor)
            addend = chain.op("Mul", bias, addend, factor_value)
        value = chain.op("Add", result, value, addend)
    chain.cast(value, FLOAT_TYPES[entry.site.dtype])
    return chain


class _Operands:
    """Quantized values and stored weights, each once for all that read it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._activations: dict[ir.Value, _Operand] = {}
        self._weights: dict[object, tuple[ir.Value, ir.Value]] = {}

    def of(self, entry: QuantizedSite, node: ir.Node) -> tuple[_Operand, _Operand]:
        first, second = (self._operand(entry, node, index) for index in (0, 1))
        return first, second

    def _operand(self, entry: QuantizedSite, node: ir.Node, index: int) -> _Operand:
        value = node.inputs[index]
        assert value is not None
        if entry.weight is not None and index == entry.site.weight_input:
            return self._weight(entry, entry.weight, node, value)
        # Without shape inference a type can be unknown; it is the one that the site works in.
        value.type = value.type or ir.TensorType(FLOAT_TYPES[entry.site.dtype])
        if value not in self._activations:
            self._activations[value] = self._activation(value, node)
        return self._activations[value]

    def _activation(self, value: ir.Value, node: ir.Node) -> _Operand:
        scope = self._scope
        chain = _Chain(scope, str(value.name))
        # DynamicQuantizeLinear takes nothing but fp32.
        source = chain.cast(value, ir.DataType.FLOAT)
        name = scope.name(f"{value.name}/DynamicQuantizeLinear")
        kinds = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
        outputs = [
            ir.Value(
                name=scope.name(f"{name}:{i}"),
                shape=value.shape if i == 0 else ir.Shape([]),
                type=ir.TensorType(kind),
            )
            for i, kind in enumerate(kinds)
        ]
        chain.nodes.append(
            ir.Node("", "DynamicQuantizeLinear", [source], outputs=outputs, name=name)
        )
        scope.graph.insert_before(node, chain.nodes)
        data, scale, zero_point = outputs
        return _Operand(data, zero_point, scale)

    def _weight(
        self, entry: QuantizedSite, scale: TensorScale, node: ir.Node, value: ir.Value
    ) -> _Operand:
        name, step = entry.site.weight, np.asarray(scale.scale, np.float32)
        left, gemm = entry.site.weight_input == 0, node.op_type == "Gemm"
        turned = gemm and bool(node.attributes.get_int("transB", 0))
        key = (name, turned, left, scale_key(scale))
        if key not in self._weights:
            assert value.const_value is not None
            tensor = _stored(value.const_value, scale, turned, left)
            zero = ir.tensor(np.array(_SHIFT, np.uint8) if left else np.array(0, np.int8))
            self._weights[key] = (
                self._scope.initializer(f"{name}/quantized", tensor),
                self._scope.initializer(f"{name}/zero_point", zero),
            )
        data, zero_point = self._weights[key]
        if gemm:
            step = step * np.float32(node.attributes.get_float("alpha", 1.0))
        if left and step.ndim == 1 and not _is_vector(node.inputs[1]):
            # Of W @ x the output channels are rows.
            step = step[:, np.newaxis]
        return _Operand(data, zero_point, self._scope.initializer(f"{name}/scale", ir.tensor(step)))


def _stored(
    source: ir.TensorProtocol, scale: TensorScale, turned: bool, left: bool
) -> ir.LazyTensor:
    """The quantized weight, computed each time it is read: int8, or uint8 on the left."""
    tensor = quantized_tensor(source, scale, str(source.name))
    shape = static_shape(tensor)
    dtype = ir.DataType.UINT8 if left else ir.DataType.INT8

    def compute() -> ir.TensorProtocol:
        array = tensor.numpy()
        if left:
            array = (array.astype(np.int16) + _SHIFT).astype(np.uint8)
        return ir.Tensor(np.ascontiguousarray(array.T if turned else array), dtype=dtype)

    return ir.LazyTensor(compute, dtype=dtype, shape=ir.Shape(shape[::-1] if turned else shape))


def _is_int8(scale: TensorScale | None) -> bool:
    if scale is None or scale.storage != "int8":
        return False
    return scale.block is None and scale.zero_point == 0


def _is_vector(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 1
