"""How far a quantized graph may be from its float original, from the scales alone.

Every step of the bound is sound for one sample, and elementwise. With v the float value and e the
bound of its error: rounding to a scale s whose range holds v adds at most half a step, and never
more than |v| + e, since zero is exact; what lies outside the range is pulled towards v, by no more
than v's own distance from the range. A product then is off by |W| (e + dx) + dW (|v| + e + dx).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from bitworth.lowering.scaling import ActivationScale, QuantizedSite, TensorScale
from bitworth.recipe import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize

from .tools import Array, Arrays, run_exact

#: Largest slope of each activation function.
_SLOPES = {"Relu": 1.0, "Clip": 1.0, "Neg": 1.0, "HardSwish": 1.5, "Cast": 1.0, "Identity": 1.0}
_MOVES = ("Reshape", "Flatten", "Transpose", "Gather", "Concat", "Unsqueeze", "Squeeze")
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}
#: Relative half spacing of normal numbers, half the smallest number, and the largest.
_FLOATS = {
    "fp8_e4m3": (2.0**-4, 2.0**-10, 448.0),
    "fp8_e5m2": (2.0**-3, 2.0**-17, 57344.0),
    "fp4_e2m1": (2.0**-2, 0.25, 6.0),
}


@dataclass(frozen=True)
class Bounded:
    """A float value and the largest error of each of its elements."""

    value: Array
    error: Array


def output_bounds(
    prepared: PreparedModel, quantized: Sequence[QuantizedSite], sample: Arrays
) -> dict[str, Bounded]:
    """Every output of the graph, with how far the quantized graph may be from it."""
    sites = {q.site.node: q for q in quantized}
    outputs = {q.output_value: q for q in quantized if q.output_value is not None}
    exact = _all_values(prepared, sample)
    env: dict[str, Bounded] = {
        name: Bounded(value, np.zeros(value.shape)) for name, value in sample.items()
    }
    for name, value in prepared.model.graph.initializers.items():
        assert value.const_value is not None
        array = value.const_value.numpy()
        env[name] = Bounded(array, np.zeros(array.shape))
    noise = _noise(prepared)
    _requantize(env, env.keys() & outputs.keys(), outputs, noise)
    for node in prepared.model.graph:
        if str(node.name) in sites:
            errors = [_site_error(node, sites[str(node.name)], env, outputs, noise)]
        else:
            errors = _errors(node, env, noise)
        for value, error in zip(node.outputs, errors, strict=True):
            name = str(value.name)
            env[name] = Bounded(exact[name], error)
            _requantize(env, {name} & outputs.keys(), outputs, noise)
    return {name: env[name] for name in prepared.outputs}


def site_excess(
    prepared: PreparedModel, lowered: ir.Model, quantized: Sequence[QuantizedSite], sample: Arrays
) -> dict[str, float]:
    """By site, its largest error over its bound, taken alone: over 1 breaks the bound.

    Alone: both are computed from the activation that the quantized graph really has in front of
    the site, so that nothing of what happened before loosens the bound.
    """
    taps = [n for q in quantized for n in (q.site.activation, q.site.output)]
    seen = _tapped(lowered, dict.fromkeys(n for n in taps if n not in sample), sample)
    seen.update(sample)
    outputs = {q.output_value: q for q in quantized if q.output_value is not None}
    nodes = {str(n.name): n for n in prepared.model.graph}
    noise = _noise(prepared)
    excess = {}
    for q in quantized:
        node, x = nodes[q.site.node], seen[q.site.activation]
        env = {q.site.activation: Bounded(x, np.zeros(x.shape))}
        for value in node.inputs:
            if value is not None and value.const_value is not None:
                array = value.const_value.numpy()
                env[str(value.name)] = Bounded(array, np.zeros(array.shape))
        _requantize(env, {q.site.activation} & outputs.keys(), outputs, noise)
        bound = _site_error(node, q, env, outputs, noise)
        inputs = [None if v is None else env[str(v.name)].value for v in node.inputs]
        off = np.abs(seen[q.site.output].astype(np.float64) - _evaluate(node, inputs))
        excess[q.site.id] = float(np.max(off / np.maximum(bound, 1e-30)))
    return excess


def rounding(scale: ActivationScale | None, value: Array, error: Array, dtype: str) -> Array:
    """Largest error of quantizing anything within ``error`` of ``value``, elementwise."""
    magnitude = np.abs(value.astype(np.float64)) + error
    if scale is None:
        return np.zeros(value.shape)
    if not isinstance(scale, TensorScale):
        return np.minimum(_dynamic(scale.storage, scale.block, value, error), magnitude)
    step = _spread(scale, value.shape)
    used = step.astype(dtype).astype(np.float64)
    # Where a scale is stored narrower than it was computed, every step is off by the difference.
    drift = np.abs(used - step)
    if scale.storage in _INTEGERS:
        low, high = _INTEGERS[scale.storage]
        if scale.limit is not None:
            low, high = (
                max(low, scale.zero_point - scale.limit),
                min(high, scale.zero_point + scale.limit),
            )
        half, largest = used / 2, max(-low, high)
        low_end, high_end = (low - scale.zero_point) * step, (high - scale.zero_point) * step
    else:
        relative, smallest, largest = _FLOATS[scale.storage]
        half = np.maximum(magnitude * relative, used * smallest)
        low_end, high_end = -largest * step, largest * step
    v = value.astype(np.float64)
    outside = np.maximum(0.0, np.maximum(low_end - v, v - high_end))
    return np.minimum(half + drift * largest, magnitude) + outside


def _dynamic(storage: str, block: int | None, value: Array, error: Array) -> Array:
    v = value.astype(np.float64)
    if block is None:
        # One step from the extremes at run time, and half a step more for the zero point.
        low, high = min(0.0, float((v - error).min())), max(0.0, float((v + error).max()))
        return np.full(v.shape, (high - low) / 255)
    relative, smallest, largest = _FLOATS[storage]
    amax = _block_max(np.abs(v) + error, block)
    # A scale that is rounded itself may stand an eighth off, and cut as much from the largest.
    return np.maximum(np.abs(v) * relative, amax / largest * smallest) * 1.25 + amax / 8


def _block_max(magnitude: Array, block: int) -> Array:
    size = magnitude.shape[-1]
    pad = [(0, 0)] * (magnitude.ndim - 1) + [(0, -size % block)]
    padded = np.pad(magnitude, pad)
    blocks = padded.reshape(*padded.shape[:-1], -1, block).max(axis=-1)
    return np.repeat(blocks, block, axis=-1)[..., :size]


def _spread(scale: TensorScale, shape: tuple[int, ...]) -> Array:
    """The scale of each element of a tensor of this shape, in float64."""
    step = np.asarray(scale.scale, np.float64) * (scale.tensor_scale or 1.0)
    if scale.axis is None:
        return np.broadcast_to(step.reshape(()), shape)
    if scale.block is not None:
        wide = np.repeat(step, scale.block, axis=scale.axis)
        return np.take(wide, range(shape[scale.axis]), axis=scale.axis)
    axis = scale.axis % len(shape)
    return np.broadcast_to(step.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _requantize(
    env: dict[str, Bounded],
    names: Iterable[str],
    outputs: Mapping[str, QuantizedSite],
    noise: float,
) -> None:
    """What all readers of a value get where a site's output is quantized."""
    for name in list(names):
        found, entry = env[name], outputs[name]
        added = rounding(entry.output, found.value, found.error, entry.site.dtype)
        env[name] = Bounded(found.value, found.error + added + noise * np.abs(found.value))


def _site_error(
    node: ir.Node,
    q: QuantizedSite,
    env: Mapping[str, Bounded],
    outputs: Mapping[str, QuantizedSite],
    noise: float,
) -> Array:
    site = q.site
    x, w = env[site.activation], env[site.weight]
    error = x.error
    through = outputs.get(site.activation)
    if through is None or not _same(through.output, q.activation):
        error = error + rounding(q.activation, x.value, x.error, site.dtype)
    assert q.weight is not None
    dw = rounding(q.weight, w.value, np.zeros(w.value.shape), site.dtype)
    return _linear_error(node, site, Bounded(x.value, error), Bounded(w.value, dw), env, noise)


def _linear_error(
    node: ir.Node,
    site: Site | None,
    x: Bounded,
    w: Bounded,
    env: Mapping[str, Bounded],
    noise: float,
) -> Array:
    turned = site is not None and site.weight_input == 0

    def product(a: Array, b: Array) -> Array:
        pair = [a, b] if not turned else [b, a]
        return _evaluate(node, [np.asarray(p, np.float32) for p in pair]).astype(np.float64)

    size, weight = np.abs(x.value) + x.error, np.abs(w.value.astype(np.float64))
    error = product(x.error, weight) + product(size, w.error)
    total = product(size, weight + w.error)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = np.abs(env[str(node.inputs[2].name)].value.astype(np.float64))
        if node.op_type != "Gemm":
            bias = bias.reshape(-1, *[1] * (total.ndim - 2))
        total = total + bias
    return error + noise * total


def _errors(node: ir.Node, env: Mapping[str, Bounded], noise: float) -> list[Array]:
    """Errors of the outputs of a node that is no quantized site."""
    found = [env[str(v.name)] for v in node.inputs if v is not None]
    if node.op_type == "If":
        branch = "then_branch" if found[0].value else "else_branch"
        return _body_errors(node.attributes[branch].as_graph(), env, noise)
    if node.op_type in _LINEAR:
        x, w = found[0], found[1]
        return [_linear_error(node, None, x, w, env, noise)]
    if node.op_type in _MOVES:
        data = found if node.op_type == "Concat" else found[:1]
        inputs = [np.asarray(f.error, np.float32) for f in data]
        return [_evaluate(node, [*inputs, *(f.value for f in found[len(data) :])])]
    if node.op_type == "Add":
        size = np.abs(found[0].value.astype(np.float64)) + np.abs(found[1].value)
        return [found[0].error + found[1].error + noise * size]
    slope = _SLOPES[node.op_type]
    return [slope * found[0].error + noise * np.abs(found[0].value)]


def _body_errors(body: ir.Graph, env: Mapping[str, Bounded], noise: float) -> list[Array]:
    inside = dict(env)
    for node in body:
        inputs = [inside[str(v.name)].value for v in node.inputs if v is not None]
        value = _evaluate(node, inputs)
        for output, error in zip(node.outputs, _errors(node, inside, noise), strict=True):
            inside[str(output.name)] = Bounded(value, error)
    return [inside[str(v.name)].error for v in body.outputs]


def _same(one: TensorScale | None, other: ActivationScale | None) -> bool:
    return (
        isinstance(one, TensorScale)
        and isinstance(other, TensorScale)
        and (one.storage, one.zero_point) == (other.storage, other.zero_point)
        and np.array_equal(one.scale, other.scale)
    )


def _noise(prepared: PreparedModel) -> float:
    """Rounding of the float arithmetic itself, over the sum of magnitudes."""
    half = any(
        v.dtype == ir.DataType.FLOAT16 for node in prepared.model.graph for v in node.outputs
    )
    return 2.0**-8 if half else 2.0**-18


def _evaluate(node: ir.Node, inputs: Sequence[Array | None]) -> Array:
    """The node alone, on these arrays; its attributes as they are."""
    names = [f"i{k}" for k in range(len(inputs))]
    proto = ir.to_proto(node)
    alone = onnx.NodeProto(op_type=node.op_type, attribute=proto.attribute, output=["o"])
    alone.input.extend(n for n, a in zip(names, inputs, strict=True) if a is not None)
    known = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True) if a is not None}
    graph = helper.make_graph(
        [alone],
        "alone",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in known.items()
        ],
        [onnx.ValueInfoProto(name="o")],
    )
    opset = node.graph.opset_imports.get("", 19) if isinstance(node.graph, ir.Graph) else 19
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset or 19)])
    model.ir_version = 10
    result: Array = run_exact(model.SerializeToString(), known)["o"]
    return result


def _all_values(prepared: PreparedModel, sample: Arrays) -> dict[str, Array]:
    names = dict.fromkeys(str(v.name) for node in prepared.model.graph for v in node.outputs)
    return _tapped(prepared.model, names, sample)


def _tapped(model: ir.Model, names: Iterable[str], sample: Arrays) -> dict[str, Array]:
    proto = onnx.load_from_string(serialize(model))
    wanted = list(names)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
    return run_exact(proto.SerializeToString(), sample) if wanted else {}
