"""Brings constants to where sites are looked for: into initializers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray
from onnxscript import optimizer

from bitworth.subject.tensors import is_constant, static_shape, unmap, unused_name

Array = NDArray[np.generic]

# Operators that only rearrange or cast: folded for every size, and without being computed before
# someone reads the weight, so that a model of several GB stays on disk.
_REARRANGING = ("Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
# These make large tensors of small ones.
_GROWING = ("ConstantOfShape", "Expand", "Tile", "Range", "EyeLike", "Resize", "Upsample", "Pad")
_LARGEST_GROWN = 4096


def fold(model: ir.Model) -> None:
    """Fold constants of ``model`` in place; every weight ends as an initializer."""
    passes.RemoveInitializersFromInputsPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.IdentityEliminationPass()(model)
    _fold_rearranged(model)
    optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=_should_fold)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.IdentityEliminationPass()(model)
    _fold_rearranged(model)
    passes.RemoveUnusedNodesPass()(model)


def _should_fold(node: ir.Node) -> bool | None:
    if node.op_type in _GROWING:
        shape = node.outputs[0].shape
        dims = [d for d in shape if isinstance(d, int)] if shape is not None else []
        small = shape is not None and len(dims) == len(shape) and prod(dims) <= _LARGEST_GROWN
        # None leaves the choice to onnxscript.
        return None if small else False
    return None


def _fold_rearranged(model: ir.Model) -> None:
    for node in tuple(model.graph):
        if node.domain or node.op_type not in _REARRANGING or len(node.outputs) != 1:
            continue
        source, output = node.inputs[0], node.outputs[0]
        if source is None or source.const_value is None or output.is_graph_output():
            continue
        if source.is_graph_output() or not all(is_constant(v) for v in node.inputs if v):
            continue
        tensor = _rearranged(node, source.const_value)
        if tensor is None:
            continue
        only_user = len(source.uses()) == 1
        # A parameter that is only seen rearranged keeps its name: it is what its owner calls it.
        name = str(source.name) if only_user else f"{source.name}/{node.op_type}"
        graph = source.graph
        assert isinstance(graph, ir.Graph)
        if only_user:
            del graph.initializers[name]
        name = unused_name(name, graph)
        tensor.name = name
        folded = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        graph.register_initializer(folded)
        output.replace_all_uses_with(folded)
        model.graph.remove(node, safe=True)


def _rearranged(node: ir.Node, source: ir.TensorProtocol) -> ir.LazyTensor | None:
    """The node's output as a tensor that is computed when it is read, or None if left alone."""
    shape = static_shape(source)
    constants = [v.const_value.numpy() for v in node.inputs[1:] if v is not None and v.const_value]
    dtype = source.dtype
    new: tuple[int, ...]
    act: Callable[[Array], Array]
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm") or tuple(reversed(range(len(shape))))
        new, act = tuple(shape[i] for i in perm), (lambda a: np.transpose(a, perm))
    elif node.op_type == "Cast":
        to = ir.DataType(node.attributes["to"].as_int())
        if not (_plain_float(dtype) and _plain_float(to)):
            return None
        new, dtype, act = shape, to, _cast_to(to)
    elif node.op_type == "Identity":
        new, act = shape, (lambda a: a)
    else:
        target = _target_shape(node, shape, constants)
        if target is None:
            return None
        new, act = target, (lambda a: a.reshape(new))

    def compute() -> ir.TensorProtocol:
        array = np.ascontiguousarray(act(source.numpy()))
        unmap([source])  # a transposed or cast weight is a copy
        return ir.Tensor(array, dtype=dtype)

    return ir.LazyTensor(compute, dtype=dtype, shape=ir.Shape(new), name=source.name)


def _target_shape(
    node: ir.Node, shape: tuple[int, ...], constants: list[Array]
) -> tuple[int, ...] | None:
    if node.op_type == "Reshape":
        target = [int(d) for d in constants[0]]
        if 0 in target and not node.attributes.get_int("allowzero", 0):
            target = [shape[i] if d == 0 else d for i, d in enumerate(target)]
        if -1 in target:
            rest = prod(d for d in target if d != -1)
            target[target.index(-1)] = prod(shape) // max(rest, 1)
        return tuple(target)
    axes_attribute = node.attributes.get_ints("axes")
    axes = [int(a) for a in constants[0]] if constants else list(axes_attribute or ())
    if node.op_type == "Squeeze":
        axes = axes or [i for i, d in enumerate(shape) if d == 1]
        drop = {a % len(shape) for a in axes}
        return tuple(d for i, d in enumerate(shape) if i not in drop)
    if node.op_type == "Unsqueeze":
        rank = len(shape) + len(axes)
        added = {a % rank for a in axes}
        rest_dims = iter(shape)
        return tuple(1 if i in added else next(rest_dims) for i in range(rank))
    axis = node.attributes.get_int("axis", 1) or 0  # Flatten
    axis = axis + len(shape) if axis < 0 else axis
    return prod(shape[:axis]), prod(shape[axis:])


def _cast_to(to: ir.DataType) -> Callable[[Array], Array]:
    def act(array: Array) -> Array:
        # A value too large for the narrower type becomes infinite, as ONNX says; no warning.
        with np.errstate(over="ignore"):
            return array.astype(to.numpy())

    return act


def _plain_float(dtype: ir.DataType) -> bool:
    return dtype in (
        ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE
    )  # fmt: skip
