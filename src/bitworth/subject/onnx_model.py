"""Reads an ONNX file: what it is, what it takes, and that all of it is there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from bitworth.errors import UserError

# Operators that exist only in quantized graphs; a graph with one of them has been quantized.
_QUANTIZED_OPS = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
    "MatMulNBits", "QGemm", "QAttention", "GatherBlockQuantized",
)  # fmt: skip


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: its name in the graph.
        dtype: numpy's name of its element type, such as ``float32``.
        shape: an int for a fixed dimension, a name or None for a free one; None when the model
            does not say its rank.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file as it was read. Weights in external files stay there until they are used.

    Attributes:
        path: the file.
        model: its graph; never changed by anything here.
        sha256: of the file's bytes.
        external_sha256: of each external data file, by its path relative to the model's folder.
        metadata: the file's own key-value metadata.
        opset: version of the default operator set.
        inputs: what a caller must give; initializers listed as inputs are left out.
        outputs: names of the outputs.
    """

    path: Path
    model: ir.Model
    sha256: str
    external_sha256: Mapping[str, str]
    metadata: Mapping[str, str]
    opset: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]

    @cached_property
    def identity_sha256(self) -> str:
        """Hash of the whole model: the file, and its external data where there is any."""
        if not self.external_sha256:
            return self.sha256
        parts = "\n".join(f"{k} {v}" for k, v in sorted(self.external_sha256.items()))
        return hashlib.sha256(f"{self.sha256}\n{parts}".encode()).hexdigest()

    @cached_property
    def has_qdq(self) -> bool:
        """Whether the model is already quantized, in the graph or in any body inside it."""
        return has_quantized_ops(self.model)


def load(path: str | Path) -> OnnxModel:
    """Read the ONNX model at ``path``.

    Raises:
        UserError: no such file, a folder, not ONNX, truncated, an external data file that is
            missing or too short, or an input that is not a tensor.
    """
    path = Path(path)
    model = _parse(path)
    external = _external_files(path, model)
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if opset is None:
        raise UserError(f"{path}: imports no default operator set; export it as standard ONNX")
    return OnnxModel(
        path=path,
        model=model,
        sha256=_file_sha256(path),
        external_sha256=MappingProxyType({k: _file_sha256(path.parent / k) for k in external}),
        metadata=MappingProxyType(dict(model.metadata_props)),
        opset=opset,
        inputs=input_specs(model, where=str(path)),
        outputs=tuple(str(v.name) for v in model.graph.outputs),
    )


def input_specs(model: ir.Model, where: str = "model") -> tuple[InputSpec, ...]:
    """Return the inputs that a caller must give, in order.

    Raises:
        UserError: an input is a sequence, a map or an optional value.
    """
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise UserError(
                f"{where}: input '{value.name}' is no tensor ({value.type}); export the model with "
                "tensor inputs"
            )
        dtype = (value.dtype or ir.DataType.FLOAT).numpy().name
        shape = None
        if value.shape is not None:
            shape = tuple(d if isinstance(d, int) else d.value for d in value.shape)
        specs.append(InputSpec(str(value.name), dtype, shape))
    return tuple(specs)


def has_quantized_ops(model: ir.Model) -> bool:
    """Whether any node, in the graph, in a body or in a function, is a quantized operator."""
    return any(
        node.op_type in _QUANTIZED_OPS or node.op_type.startswith("QLinear")
        for node in all_nodes(model)
    )


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of the graph, of the bodies inside it and of the model's functions."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def _parse(path: Path) -> ir.Model:
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give the .onnx file inside it")
    if not path.exists():
        raise UserError(f"{path}: no such file; check the path")
    try:
        proto = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError:
        raise UserError(f"{path}: {_what_is_wrong(path)}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not proto.ir_version or not proto.graph.node:
        # An empty file and much that is not ONNX decode to an empty message.
        raise UserError(f"{path}: {_what_is_wrong(path)}")
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # the deserializer raises many kinds for a damaged graph
        raise UserError(f"{path}: damaged ONNX graph ({_one_line(error)}); export again") from None
    ir.external_data.set_base_dir(model.graph, str(path.parent))
    return model


def _what_is_wrong(path: Path) -> str:
    with path.open("rb") as file:
        first = file.read(1)
    # A ModelProto starts with field 1, ir_version, as a varint.
    if first == b"\x08":
        return "truncated or damaged ONNX file; copy or export it again"
    return "not an ONNX file; give a model exported as .onnx"


def _external_files(path: Path, model: ir.Model) -> dict[str, None]:
    """Names of the external data files, each checked to be there and long enough."""
    names: dict[str, None] = {}
    for name, tensor in external_tensors(model):
        location = str(tensor.location)
        parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
        if PurePosixPath(location).is_absolute() or ".." in parts:
            raise UserError(
                f"{path}: weight '{name}' points outside the model's folder ('{location}'); "
                "save the model again with its data beside it"
            )
        file = path.parent / location
        if not file.is_file():
            raise UserError(
                f"{path}: external data file '{location}' is missing (weight '{name}'); put it "
                "beside the model"
            )
        end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        if file.stat().st_size < end:
            raise UserError(
                f"{path}: external data file '{location}' is truncated (weight '{name}' ends at "
                f"byte {end}); copy it again"
            )
        names[location] = None
    return names


def external_tensors(model: ir.Model) -> Iterator[tuple[str, ir.ExternalTensor]]:
    """Yield name and tensor of every weight or constant whose data lies in another file."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield name, value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if isinstance(attribute.value, ir.ExternalTensor):
                yield node.name or node.op_type, attribute.value


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
