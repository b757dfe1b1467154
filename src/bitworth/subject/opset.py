"""Raises a model's operator set version."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnxscript import version_converter

from bitworth.errors import UserError

# onnxscript's converter starts here; what is older goes through ONNX's own converter first.
_ONNXSCRIPT_FIRST = 18
# Larger initializers stay out of the message that ONNX's converter gets: it needs the values of
# axes, pads and the like only, and a protobuf message ends at 2 GB.
_SMALL_ELEMENTS = 1024


def raise_opset(model: ir.Model, opset: int, where: str) -> ir.Model:
    """Return ``model`` at operator set ``opset`` at least; a higher one is kept.

    ``model`` may be changed in place. ``where`` names the model in messages.

    Raises:
        UserError: a converter fails, or leaves the version as it was; the message names the op.
    """
    domain = "" if "" in model.opset_imports else "ai.onnx"
    current = model.opset_imports[domain]
    if domain:
        model.opset_imports[""] = model.opset_imports.pop(domain)
    target = max(current, opset)
    if current < target and current < _ONNXSCRIPT_FIRST:
        model = _by_onnx(model, min(target, _ONNXSCRIPT_FIRST), where)
    if model.opset_imports[""] < target:
        try:
            version_converter.ConvertVersionPass(target_version=target)(model)
        except Exception as error:  # each adapter raises what it likes
            raise _failure(where, model.opset_imports[""], target, error) from None
    if model.opset_imports[""] != target:
        raise UserError(
            f"{where}: opset {current} could not be raised to {target}; export the model with "
            f"opset {target}"
        )
    model.ir_version = max(model.ir_version, _ir_version(target))
    return model


def _by_onnx(model: ir.Model, target: int, where: str) -> ir.Model:
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    large = [n for n, t in tensors.items() if t is not None and t.size > _SMALL_ELEMENTS]
    slim = model.clone()
    for name in large:
        # A weight becomes an input for the conversion: its type and shape stay, its data leaves.
        value = slim.graph.initializers.pop(name)
        value.const_value = None
        if value not in slim.graph.inputs:
            slim.graph.inputs.append(value)
    for value in slim.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    source = ir.to_proto(slim)
    try:
        proto = onnx.version_converter.convert_version(source, target)
    except Exception as error:  # the C++ converter raises RuntimeError and its own kinds
        current = model.opset_imports[""]
        raise _failure(where, current, target, error, _culprit(source, target)) from None
    converted = ir.from_proto(proto)
    kept = {value.name for value in model.graph.inputs}
    for value in [v for v in converted.graph.inputs if v.name in large]:
        value.const_value = tensors[str(value.name)]
        if value.name not in kept:
            converted.graph.inputs.remove(value)
        converted.graph.register_initializer(value)
    converted.metadata_props.update(model.metadata_props)
    converted.graph.sort()
    return converted


def _culprit(model: onnx.ModelProto, target: int) -> str:
    """The first node that cannot be converted on its own: the converter's message rarely says."""
    graph = model.graph
    known = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    for node in graph.node:
        alone = onnx.ModelProto()
        alone.CopyFrom(model)
        alone.graph.ClearField("node")
        alone.graph.ClearField("input")
        alone.graph.ClearField("output")
        alone.graph.node.append(node)
        alone.graph.input.extend(known[n] for n in dict.fromkeys(node.input) if n in known)
        alone.graph.output.extend(known[n] for n in node.output if n in known)
        try:
            onnx.version_converter.convert_version(alone, target)
        except Exception:  # as above
            return f"node '{node.name}' ({node.op_type}): "
    return ""


def _failure(
    where: str, current: int, target: int, error: Exception, culprit: str = ""
) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(
        f"{where}: {culprit}opset {current} could not be raised to {target} ({reason}); export the "
        f"model with opset {target}"
    )


def _ir_version(opset: int) -> int:
    """Lowest IR version that allows ``opset``."""
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], True))
