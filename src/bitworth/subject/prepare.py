"""Makes the graph in which sites are looked for: folded, named, at the opset that is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from bitworth.errors import UserError
from bitworth.subject.folding import fold
from bitworth.subject.fusing import fuse
from bitworth.subject.onnx_model import (
    InputSpec,
    OnnxModel,
    all_nodes,
    has_quantized_ops,
    input_specs,
)
from bitworth.subject.opset import raise_opset
from bitworth.subject.tensors import static_shape, tensor_sha256


@dataclass(frozen=True)
class PreparedModel:
    """A model whose graph is ready for sites, calibration and lowering.

    Attributes:
        model: the graph; not to be changed by its users (``model.clone()`` first).
        source: name of the file it came from, for messages.
        source_sha256: of that file.
        metadata: the file's own key-value metadata.
        opset: version of the default operator set, now.
        inputs: what a caller must give.
        outputs: names of the outputs.
        has_qdq: whether it was quantized before it came here.
    """

    model: ir.Model
    source: str
    source_sha256: str
    metadata: Mapping[str, str]
    opset: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    has_qdq: bool


def prepare(model: OnnxModel, opset: int) -> PreparedModel:
    """Return ``model`` at operator set ``opset`` or its own, whichever is higher, and folded.

    Constants are initializers, Identity nodes are gone, batch normalizations and per-channel
    additions are part of the weights and biases, every node has a unique name. Inputs and outputs
    keep their names and free dimensions; outputs stay equal up to rounding. ``model`` is not
    changed, and the same file gives the same bytes.

    Raises:
        UserError: the opset cannot be raised, or the result is not valid ONNX.
    """
    where = str(model.path)
    graph_model = model.model.clone()
    _read_inner_data(graph_model)
    graph_model = raise_opset(graph_model, opset, where)
    passes.InlinePass()(graph_model)
    _name_nodes(graph_model)
    fold(graph_model)
    _name_nodes(graph_model)
    fuse(graph_model)
    _tidy(graph_model)
    check(graph_model, where)
    return PreparedModel(
        model=graph_model,
        source=where,
        source_sha256=model.sha256,
        metadata=model.metadata,
        opset=graph_model.opset_imports[""],
        inputs=input_specs(graph_model, where),
        outputs=tuple(str(v.name) for v in graph_model.graph.outputs),
        has_qdq=has_quantized_ops(graph_model),
    )


def raised(prepared: PreparedModel, opset: int) -> PreparedModel:
    """Return ``prepared`` at operator set ``opset``, or itself where it is that high already.

    For a variant that needs a higher opset than the rest of its study. What hangs on names holds
    for the raised graph as well: nodes, values and initializers keep theirs, nodes their metadata;
    a converter may add some. Large weights are shared with ``prepared``, which is not changed.

    Raises:
        UserError: the opset cannot be raised, a name was lost on the way, or the result is not
            valid ONNX.
    """
    if prepared.opset >= opset:
        return prepared
    model = raise_opset(prepared.model.clone(), opset, prepared.source)
    # Converters write attributes that became inputs as Constant nodes.
    _lift_constants(model.graph)
    _restore_node_names(prepared.model, model)
    _name_new_nodes(model, opset)
    _keep_names(prepared, model, opset)
    check(model, prepared.source)
    return replace(prepared, model=model, opset=opset)


def _lift_constants(graph: ir.Graph) -> None:
    for node in tuple(graph):
        value = node.outputs[0]
        if node.op_type == "Constant" and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            constant = ir.Value(
                shape=ir.Shape(static_shape(tensor)),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            value.replace_all_uses_with(constant)
            graph.remove(node, safe=True)
            constant.name, tensor.name = value.name, value.name
            graph.register_initializer(constant)


def _restore_node_names(before: ir.Model, model: ir.Model) -> None:
    """Name nodes that a converter made anew as those that wrote the same values."""
    old = {n.name for n in ir.traversal.RecursiveGraphIterator(before.graph)}
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    there = {n.name for n in nodes}
    made = {n.outputs[0].name: n for n in nodes if n.outputs and n.name not in old}
    for node in ir.traversal.RecursiveGraphIterator(before.graph):
        again = made.get(node.outputs[0].name) if node.outputs else None
        if node.name not in there and again is not None and again.op_type == node.op_type:
            again.name = node.name


def _keep_names(prepared: PreparedModel, model: ir.Model, opset: int) -> None:
    """Check that every name is still there, and give nodes the metadata that they had."""
    nodes = {n.name: n for n in ir.traversal.RecursiveGraphIterator(model.graph)}
    values = _value_names(model)
    where = f"{prepared.source}: opset {prepared.opset} cannot be raised to {opset} alone"
    for node in ir.traversal.RecursiveGraphIterator(prepared.model.graph):
        if node.name not in nodes or nodes[node.name].op_type != node.op_type:
            raise UserError(
                f"{where}: node '{node.name}' ({node.op_type}) is lost; prepare the model for "
                f"opset {opset}"
            )
        nodes[node.name].metadata_props.update(node.metadata_props)
    for name in _value_names(prepared.model):
        if name not in values:
            raise UserError(f"{where}: value '{name}' is lost; prepare the model for opset {opset}")


def _value_names(model: ir.Model) -> dict[str | None, None]:
    names: dict[str | None, None] = {}
    for graph in model.graphs():
        names.update((v.name, None) for v in (*graph.inputs, *graph.initializers.values()))
        names.update((v.name, None) for node in graph for v in node.outputs)
    return names


def _name_new_nodes(model: ir.Model, opset: int) -> None:
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    taken = {n.name for n in nodes}
    for node in nodes:
        number, stem = 1, f"{node.op_type}/opset{opset}"
        while not node.name:
            name = stem if number == 1 else f"{stem}_{number}"
            number += 1
            if name not in taken:
                node.name = name
                taken.add(name)


def check(model: ir.Model, where: str) -> None:
    """Check that ``model`` is valid ONNX; weights are not read.

    Raises:
        UserError: with the checker's first complaint.
    """
    bare = skeleton(model)
    for graph in _graphs(bare.graph):
        for value in (*graph.input, *graph.output):
            # The checker wants a shape; engines do not, and exporters leave it out of bodies.
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(bare, full_check=False)
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where}: not valid ONNX ({reason}); export it again") from None


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return ``model`` as a message in which weights are inputs: structure without data."""
    bare = model.clone()
    for graph in bare.graphs():
        for value in tuple(graph.initializers.values()):
            if graph is bare.graph and value.const_value is not None and value.name:
                tensor = value.const_value
                value.shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else value.shape
                value.type = value.type or ir.TensorType(tensor.dtype)
                value.const_value = None
                del graph.initializers[value.name]
                graph.inputs.append(value)
    return ir.to_proto(bare)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _graphs(body)


def graph_sha256(model: ir.Model) -> str:
    """Return a hash of the graph and of every weight's bytes, wherever they are stored."""
    digest = hashlib.sha256(skeleton(model).SerializeToString(deterministic=True))
    for name, value in model.graph.initializers.items():
        digest.update(name.encode())
        if value.const_value is not None:
            digest.update(tensor_sha256(value.const_value).encode())
    return digest.hexdigest()


def _read_inner_data(model: ir.Model) -> None:
    """Read what Constant nodes and the bodies of If, Loop and Scan keep in other files.

    Weights of the main graph stay on disk. The rest is part of every message that a converter, the
    checker or onnxruntime is given, and a message knows no folder.
    """
    for node in all_nodes(model):
        for name, attribute in tuple(node.attributes.items()):
            if isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.value.numpy()))
    for graph in model.graphs():
        if graph is not model.graph:
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)


def _tidy(model: ir.Model) -> None:
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.TopologicalSortPass()(model)
    _name_nodes(model)
    # Folding leaves notes on values that differ between versions of its library.
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for output in node.outputs:
            output.metadata_props.clear()


def _name_nodes(model: ir.Model) -> None:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.name = node.name or node.op_type
    passes.NameFixPass()(model)
