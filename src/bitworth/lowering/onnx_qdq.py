"""Lowers a recipe's sites to QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir
from ml_dtypes import float8_e4m3fn, float8_e8m0fnu

from bitworth.errors import UserError
from bitworth.lowering.checks import check_sites
from bitworth.lowering.dynamic_int8 import is_dynamic_int8, output_alone, write_dynamic_int8
from bitworth.lowering.opsets import needed_opset
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.scope import Scope
from bitworth.lowering.weave import Weaver, weave
from bitworth.lowering.weights import STORAGE, quantized_tensor
from bitworth.subject.prepare import PreparedModel, check


def lower(
    prepared: PreparedModel,
    quantized: Sequence[QuantizedSite],
    everywhere: Collection[str] = (),
) -> ir.Model:
    """Return a copy of the graph in which the given sites read and write quantized tensors.

    Weights are stored quantized, with a DequantizeLinear before their consumers; one a set of
    consumers with equal scales, and the float weight stays for others. Scales per block stand in
    one DequantizeLinear (opset 21); E4M3 scales under a tensor's scale have one of their own (opset
    23); powers of two are E8M0 (opset 24). Activations pass through one QuantizeLinear and
    DequantizeLinear a value and scale; those with dynamic int8 scales through
    DynamicQuantizeLinear into an integer product (see ``dynamic_int8``). Where a site computes in
    another float type, its DequantizeLinear yields that. Biases stay in float. With no site the
    graph is the prepared one. The same arguments give the same bytes.

    Args:
        prepared: the graph; it is not changed.
        quantized: its sites, with their scales.
        everywhere: activation inputs that all their readers get quantized, not the sites alone (see
            ``placement.residual_inputs``).

    Raises:
        UserError: the opset is too low for a format; a scale is not finite and positive; ONNX has
            no form for what is asked (activations in blocks with dynamic scales).
        ValueError: sites or scales that do not belong to this graph (see ``weave``); a weight whose
            axis is not a multiple of its block; a dynamic int8 site that is no matrix product.
    """
    for entry in quantized:
        _check_form(entry, prepared)
    dynamic = [q for q in quantized if is_dynamic_int8(q)]
    check_sites(dynamic, {str(n.name): n for n in prepared.model.graph})
    written = {q.site.node for q in dynamic}
    others = [output_alone(q) if q.site.node in written else q for q in quantized]
    model = weave(prepared, others, Weaver(activation_qdq, _weight, _convert), everywhere)
    write_dynamic_int8(model, dynamic)
    check(model, prepared.source)
    return model


def activation_qdq(
    scope: Scope, value: ir.Value, scale: ActivationScale, name: str
) -> list[ir.Node]:
    """Return QuantizeLinear and DequantizeLinear for ``value``; the scale takes its float type.

    Raises:
        ValueError: the scale is dynamic.
    """
    if isinstance(scale, DynamicScale):
        raise ValueError(f"value '{name}': Q/DQ nodes need a static scale")
    step, zero = _parameters(scope, scale, value.dtype, name)
    storage, attributes = STORAGE[scale.storage], _attributes(scale)
    inputs = [value, step, zero]
    quantize = scope.node("QuantizeLinear", inputs, value, name, attributes, dtype=storage)
    inputs = [quantize.outputs[0], step, zero]
    return [quantize, scope.node("DequantizeLinear", inputs, value, name, attributes)]


def _weight(scope: Scope, source: ir.Value, scale: TensorScale) -> tuple[list[ir.Node], ir.Value]:
    name = str(source.name)
    assert source.const_value is not None
    dtype = source.const_value.dtype
    wanted = f"{name}/quantized"
    stored = scope.initializer(wanted, quantized_tensor(source.const_value, scale, wanted))
    attributes = _attributes(scale, dtype)
    like = ir.Value(shape=stored.shape, type=ir.TensorType(dtype))
    nodes: list[ir.Node] = []
    if scale.scale_storage == "fp8_e4m3":
        nodes.append(_block_scales(scope, scale, name))
        inputs = [stored, nodes[0].outputs[0]]
    elif scale.block is None:
        inputs = [stored, *_parameters(scope, scale, source.dtype, name)]
    else:
        # Blocks are symmetric: zero points would be as many numbers as there are scales.
        inputs = [stored, _scale(scope, scale, source.dtype, name)]
    nodes.append(scope.node("DequantizeLinear", inputs, like, name, attributes))
    return nodes, nodes[-1].outputs[0]


def _block_scales(scope: Scope, scale: TensorScale, name: str) -> ir.Node:
    """DequantizeLinear of E4M3 scales, to fp32: a 16-bit float would lose the small ones."""
    numbers = np.asarray(scale.scale, dtype=np.float32).astype(float8_e4m3fn)
    stored = scope.initializer(f"{name}/block_scale", ir.Tensor(numbers))
    above = np.array(scale.tensor_scale, dtype=np.float32)
    tensor_scale = scope.initializer(f"{name}/tensor_scale", ir.Tensor(above))
    dtype = ir.DataType.FLOAT
    return scope.node(
        "DequantizeLinear", [stored, tensor_scale], stored, f"{name}/scale", (), dtype
    )


def _convert(
    scope: Scope, value: ir.Value, scale: ActivationScale, dtype: ir.DataType, name: str
) -> list[ir.Node]:
    """Another DequantizeLinear of the same stored or quantized tensor, which yields ``dtype``."""
    del name
    node = value.producer()
    assert node is not None
    assert isinstance(scale, TensorScale)
    assert value.dtype is not None
    stored, step, *zero = (v for v in node.inputs if v is not None)
    stem = f"{str(node.name).removesuffix('/DequantizeLinear')}/{dtype.name.lower()}"
    if scale.scale_storage == "float":
        numbers = np.asarray(scale.scale, dtype=np.float32)
        if not stored.is_initializer():
            # What divided the activation is a number of the graph's type.
            numbers = numbers.astype(value.dtype.numpy())
        tensor = ir.Tensor(numbers.astype(dtype.numpy()), dtype=dtype)
        step = scope.initializer(f"{stem}/scale", tensor)
    inputs = [stored, step, *zero]
    return [scope.node("DequantizeLinear", inputs, value, stem, _attributes(scale, dtype), dtype)]


def _attributes(scale: TensorScale, dtype: ir.DataType = ir.DataType.FLOAT) -> list[ir.Attr]:
    attributes = [] if scale.axis is None else [ir.AttrInt64("axis", scale.axis)]
    if scale.block is not None:
        attributes.append(ir.AttrInt64("block_size", scale.block))
    # Where it is not the scale's own type.
    if scale.scale_storage == "e8m0" or (
        scale.scale_storage == "fp8_e4m3" and dtype != ir.DataType.FLOAT
    ):
        attributes.append(ir.AttrInt64("output_dtype", dtype.value))
    return attributes


def _parameters(
    scope: Scope, scale: TensorScale, dtype: ir.DataType | None, name: str
) -> tuple[ir.Value, ir.Value]:
    """Initializers of the scale, in the data's own float type, and of the typed zero point."""
    step = _scale(scope, scale, dtype, name)
    storage = STORAGE[scale.storage]
    zero = np.full(np.shape(scale.scale), scale.zero_point, dtype=np.float32)
    tensor = ir.Tensor(zero.astype(storage.numpy()), dtype=storage)
    return step, scope.initializer(f"{name}/zero_point", tensor)


def _scale(scope: Scope, scale: TensorScale, dtype: ir.DataType | None, name: str) -> ir.Value:
    numbers = np.asarray(scale.scale, dtype=np.float32)
    if scale.scale_storage == "e8m0":
        powers = ir.Tensor(numbers.astype(float8_e8m0fnu), dtype=ir.DataType.FLOAT8E8M0)
        return scope.initializer(f"{name}/scale", powers)
    kind = dtype or ir.DataType.FLOAT
    return scope.initializer(f"{name}/scale", ir.Tensor(numbers.astype(kind.numpy()), dtype=kind))


def _check_form(entry: QuantizedSite, prepared: PreparedModel) -> None:
    """Whether ONNX can say at all, and at the graph's opset, what is asked of the site."""
    site, weight = entry.site, entry.weight
    for scale in (entry.activation, entry.second):
        if isinstance(scale, DynamicScale) and scale.block is not None:
            raise UserError(
                f"{prepared.source}: site '{site.id}': ONNX has no operator that quantizes blocks "
                f"of activations to {scale.storage} by their own values; emulate the recipe, or "
                "quantize weights only"
            )
    if weight is not None and weight.block is not None and weight.axis is not None:
        length = site.weight_shape[weight.axis]
        if length % weight.block:
            raise ValueError(
                f"site '{site.id}': axis {weight.axis} of its weight has {length} elements, no "
                f"multiple of the block of {weight.block}"
            )
    needed = needed_opset(entry)
    if prepared.opset < needed:
        raise UserError(
            f"{prepared.source}: site '{site.id}' needs opset {needed}, the graph has "
            f"{prepared.opset}; prepare it for opset {needed}"
        )
