"""Lowers a recipe's sites to QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.lowering.weave import Scope, Weaver, weave
from bitworth.lowering.weights import STORAGE, quantized_tensor
from bitworth.subject.prepare import PreparedModel, check


def lower(prepared: PreparedModel, quantized: Sequence[QuantizedSite]) -> ir.Model:
    """Return a copy of the graph in which the given sites read and write quantized tensors.

    Weights are stored quantized, with a DequantizeLinear before their consumers; one a set of
    consumers with equal scales, and the float weight stays for others. Activations pass through
    one QuantizeLinear and DequantizeLinear a value and scale. Biases stay in float. With no site
    the graph is the prepared one. The same arguments give the same bytes.

    Raises:
        UserError: the opset is too low for a format; a scale is not finite and positive.
        ValueError: sites or scales that do not belong to this graph (see ``weave``).
    """
    model = weave(prepared, quantized, Weaver(activation_qdq, _weight))
    check(model, prepared.source)
    return model


def activation_qdq(scope: Scope, value: ir.Value, scale: TensorScale, name: str) -> list[ir.Node]:
    """Return QuantizeLinear and DequantizeLinear for ``value``; the scale takes its float type."""
    step, zero = _parameters(scope, scale, value.dtype, name)
    storage = STORAGE[scale.storage]
    quantize = scope.node("QuantizeLinear", [value, step, zero], value, name, dtype=storage)
    inputs = [quantize.outputs[0], step, zero]
    return [quantize, scope.node("DequantizeLinear", inputs, value, name)]


def _weight(scope: Scope, source: ir.Value, scale: TensorScale) -> tuple[list[ir.Node], ir.Value]:
    name = str(source.name)
    assert source.const_value is not None
    wanted = f"{name}/quantized"
    stored = scope.initializer(wanted, quantized_tensor(source.const_value, scale, wanted))
    step, zero = _parameters(scope, scale, source.dtype, name)
    attributes = [] if scale.axis is None else [ir.AttrInt64("axis", scale.axis)]
    like = ir.Value(shape=stored.shape, type=ir.TensorType(source.const_value.dtype))
    node = scope.node("DequantizeLinear", [stored, step, zero], like, name, attributes)
    return [node], node.outputs[0]


def _parameters(
    scope: Scope, scale: TensorScale, dtype: ir.DataType | None, name: str
) -> tuple[ir.Value, ir.Value]:
    """Initializers of the scale, in the data's own float type, and of the typed zero point."""
    kind = dtype or ir.DataType.FLOAT
    step = np.asarray(scale.scale, dtype=np.float32).astype(kind.numpy())
    storage = STORAGE[scale.storage]
    zero = np.full(step.shape, scale.zero_point, dtype=np.float32).astype(storage.numpy())
    return (
        scope.initializer(f"{name}/scale", ir.Tensor(step, dtype=kind)),
        scope.initializer(f"{name}/zero_point", ir.Tensor(zero, dtype=storage)),
    )
