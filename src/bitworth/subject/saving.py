"""Writes a graph to a file, whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir

from bitworth.errors import UserError
from bitworth.subject.onnx_model import external_tensors
from bitworth.subject.tensors import tensor_sha256

# A protobuf message ends at 2 GB; below this, one file is easier to copy and to keep.
EXTERNAL_ABOVE_BYTES = 1_500_000_000


def save(model: ir.Model, path: str | Path, external_above: int = EXTERNAL_ABOVE_BYTES) -> None:
    """Write ``model`` to ``path``; weights over ``external_above`` bytes go to ``path`` + .data.

    What was written is read back and compared before it takes its name. ``model`` is not changed.

    Raises:
        UserError: the disk is full, the folder cannot be written, or what was written does not
            read back; nothing is left behind and files of that name are as they were.
    """
    path = Path(path)
    data = path.with_name(path.name + ".data")
    for name, tensor in external_tensors(model):
        if Path(tensor.path).resolve() in (data.resolve(), path.resolve()):
            raise UserError(f"{data}: holds weight '{name}' of the model itself; save elsewhere")
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        _write(model, part / path.name, external=_weight_bytes(model) > external_above)
        _compare(model, part / path.name, path)
        if (part / data.name).exists():
            (part / data.name).chmod((part / path.name).stat().st_mode)
            (part / data.name).replace(data)
        (part / path.name).replace(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); free some space or choose "
            "another folder"
        ) from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def serialize(model: ir.Model) -> bytes:
    """Return ``model`` as bytes, with all its weights inside; the same model, the same bytes.

    For models under 2 GB. ``model`` is not changed.
    """
    whole = model.clone()
    for graph in whole.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    data: bytes = ir.to_proto(whole).SerializeToString(deterministic=True)
    return data


def _write(model: ir.Model, path: Path, external: bool) -> None:
    if external:
        ir.save(model.clone(), path, format="protobuf", external_data=f"{path.name}.data")
    else:
        path.write_bytes(serialize(model))


def _compare(model: ir.Model, written: Path, path: Path) -> None:
    proto = onnx.load(written, format="protobuf", load_external_data=False)
    again = ir.serde.deserialize_model(proto)
    ir.external_data.set_base_dir(again.graph, str(written.parent))
    for name, value in model.graph.initializers.items():
        other = again.graph.initializers.get(name)
        if value.const_value is None:
            continue
        if (
            other is None
            or other.const_value is None
            or tensor_sha256(other.const_value) != tensor_sha256(value.const_value)
        ):
            raise UserError(f"{path}: weight '{name}' does not read back; check the disk")
        if isinstance(other.const_value, ir.ExternalTensor):
            # Unmapped at once: a model of several GB must not be in memory twice.
            other.const_value.release()


def _weight_bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )
