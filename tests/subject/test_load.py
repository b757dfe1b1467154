from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bitworth.errors import UserError
from bitworth.subject.onnx_model import InputSpec, load

Write = Callable[..., Path]

LINEAR = "agraph (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_load_tells_what_the_file_is(write: Write) -> None:
    path = write(LINEAR, {"w": W})
    model = load(path)
    assert model.path == path
    assert model.inputs == (InputSpec("x", "float32", ("N", 4)),)
    assert model.outputs == ("y",)
    assert model.opset == 17
    assert not model.has_qdq
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_metadata_and_input_types(write: Write) -> None:
    path = write(
        "g (float16[B, T] a, int64[B] n, bool[2] m, float[] s) => (float16[B, T] y)"
        "{ y = Identity(a) }"
    )
    proto = onnx.load(path)
    helper.set_model_props(proto, {"character": "abc"})
    onnx.save(proto, path)
    model = load(path)
    assert model.metadata == {"character": "abc"}
    assert [(s.name, s.dtype, s.shape) for s in model.inputs] == [
        ("a", "float16", ("B", "T")),
        ("n", "int64", ("B",)),
        ("m", "bool", (2,)),
        ("s", "float32", None),  # in ONNX text, [] is an unknown rank
    ]


def test_initializers_listed_as_inputs_are_no_inputs(write: Write) -> None:
    path = write(
        "g (float[N, 4] x, float[4, 3] w) => (float[N, 3] y) { y = MatMul(x, w) }", {"w": W}
    )
    assert [s.name for s in load(path).inputs] == ["x"]


def test_a_quantized_model_is_told(write: Write) -> None:
    path = write(
        "g (float[N] x) => (float[N] y)"
        "{ q = QuantizeLinear(x, s, z) \n y = DequantizeLinear(q, s, z) }",
        {"s": np.float32(0.1) * np.ones((), np.float32), "z": np.zeros((), np.int8)},
    )
    assert load(path).has_qdq


def _bad_files(tmp_path: Path, write: Write) -> dict[str, tuple[Path, str]]:
    whole = write(LINEAR, {"w": np.ones((400, 300), np.float32)}).read_bytes()
    files = {"empty": b"", "text": b"hello, this is text\n", "zip": b"PK\x03\x04" + bytes(100)}
    made = {}
    for name, data in {**files, "cut": whole[: len(whole) // 2], "head": whole[:3]}.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        made[name] = path
    (tmp_path / "folder.onnx").mkdir()
    return {
        "missing": (tmp_path / "none.onnx", "no such file"),
        "folder": (tmp_path / "folder.onnx", "is a folder"),
        "empty": (made["empty"], "not an ONNX file"),
        "text": (made["text"], "not an ONNX file"),
        "zip": (made["zip"], "not an ONNX file"),
        "cut": (made["cut"], "truncated"),
        "head": (made["head"], "truncated"),
    }


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "zip", "cut", "head"])
def test_a_bad_file_is_named_in_one_line(kind: str, tmp_path: Path, write: Write) -> None:
    path, says = _bad_files(tmp_path, write)[kind]
    with pytest.raises(UserError, match=says) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def _external(tmp_path: Path, write: Write) -> Path:
    path = write(LINEAR.replace("4]", "64]").replace("3]", "32]"), {"w": np.ones((64, 32), "f4")})
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_is_hashed_and_stays_on_disk(tmp_path: Path, write: Write) -> None:
    model = load(_external(tmp_path, write))
    data = (tmp_path / "weights.bin").read_bytes()
    assert model.external_sha256 == {"weights.bin": hashlib.sha256(data).hexdigest()}
    tensor = model.model.graph.initializers["w"].const_value
    assert type(tensor).__name__ == "ExternalTensor"


def test_missing_external_data_is_named(tmp_path: Path, write: Write) -> None:
    path = _external(tmp_path, write)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UserError, match=r"'weights.bin' is missing \(weight 'w'\)"):
        load(path)


def test_short_external_data_is_named(tmp_path: Path, write: Write) -> None:
    path = _external(tmp_path, write)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    with pytest.raises(UserError, match=r"'weights.bin' is truncated"):
        load(path)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd", "a/../../b"])
def test_external_data_outside_the_folder_is_refused(
    location: str, tmp_path: Path, write: Write
) -> None:
    path = _external(tmp_path, write)
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match="outside the model's folder"):
        load(path)


def test_an_input_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["y"])], "g", [sequence], [out]
    )
    path = tmp_path / "sequence.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with pytest.raises(UserError, match="input 's' is no tensor"):
        load(path)
