from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import serialize

Write = Callable[..., Path]
Run = Callable[..., list[NDArray[np.generic]]]
RNG = np.random.default_rng(0)


def _rand(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _ops(prepared: PreparedModel) -> list[str]:
    return [n.op_type for n in prepared.model.graph]


def _error(a: NDArray[np.generic], b: NDArray[np.generic]) -> float:
    return float(np.linalg.norm(a.astype("f8") - b.astype("f8")) / np.linalg.norm(b.astype("f8")))


@pytest.mark.parametrize("opset", [11, 13, 19])
def test_real_models_stay_equal(
    ocr_model: Path, ocr_x: NDArray[np.float32], run: Run, opset: int
) -> None:
    prepared = prepare(load(ocr_model), opset)
    assert prepared.opset == opset
    before = run(ocr_model.read_bytes(), x=ocr_x)[0]
    after = run(serialize(prepared.model), x=ocr_x)[0]
    assert _error(after, before) <= 1e-5
    ops = _ops(prepared)
    assert not {"Identity", "Constant", "BatchNormalization"} & set(ops)
    names = [n.name for n in prepared.model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
    assert prepared.inputs == load(ocr_model).inputs
    assert prepared.outputs == load(ocr_model).outputs


def test_the_argument_is_not_changed(ocr_model: Path) -> None:
    model = load(ocr_model)
    before = graph_sha256(model.model)
    prepare(model, 19)
    assert graph_sha256(model.model) == before


def test_bytes_are_the_same_in_every_process(ocr_model: Path) -> None:
    code = (
        "import sys, hashlib\n"
        "from bitworth.subject.onnx_model import load\n"
        "from bitworth.subject.prepare import prepare\n"
        "from bitworth.subject.saving import serialize\n"
        f"print(hashlib.sha256(serialize(prepare(load({str(ocr_model)!r}), 13).model)).hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, text=True, check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(hashes) == 1


def test_a_higher_opset_is_kept(write: Write) -> None:
    path = write("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }", opset=19)
    assert prepare(load(path), 13).opset == 19


@pytest.mark.parametrize(
    ("node", "opset", "op"),
    [
        ("y = Upsample(v, s)", 7, "Upsample"),  # no scales: the converter says only "undefined"
        ("y = NoSuchOp(v)", 11, "NoSuchOp"),
        ("y = GroupNormalization<num_groups = 1>(v, s)", 20, "GroupNormalization"),
    ],
)
def test_a_converter_that_fails_names_the_op(write: Write, node: str, opset: int, op: str) -> None:
    path = write(
        f"g (float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, H, W] y) {{ v = Relu(x) \n {node} }}",
        opset=opset,
    )
    with pytest.raises(UserError, match=op) as caught:
        prepare(load(path), opset + 4)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


CHAINS = {
    "Identity": ("v = Identity(w)", (6, 3)),
    "Transpose": ("v = Transpose<perm = [1, 0]>(w)", (3, 6)),
    "Reshape": ("v = Reshape(w, shape)", (2, 9)),
    "Cast": ("v = Cast<to = 1>(w)", (6, 3)),
    "Cast and Transpose": ("c = Cast<to = 1>(w) \n v = Transpose(c)", (3, 6)),
    "Unsqueeze and Squeeze": ("c = Unsqueeze(w, one) \n v = Squeeze(c, one)", (6, 3)),
    "Flatten": ("v = Flatten<axis = 1>(w)", (6, 3)),
}


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("large", [False, True])
def test_a_weight_behind_other_nodes_becomes_an_initializer(
    write: Write, run: Run, kind: str, large: bool
) -> None:
    text, shape = CHAINS[kind]
    scale = 200 if large else 1  # over and under the size that onnxscript folds
    weight = _rand(shape[0] * scale, shape[1])
    if "Cast" in kind:
        weight = weight.astype(np.float16)
    path = write(
        f"g (float[N, K] x) => (float[N, M] y) {{ {text} \n y = MatMul(x, v) }}",
        {
            "w": weight,
            "shape": np.array([6 * scale, 3], np.int64),
            "one": np.array([1], np.int64),
        },
    )
    prepared = prepare(load(path), 17)
    assert _ops(prepared) == ["MatMul"]
    weight_value = next(iter(prepared.model.graph)).inputs[1]
    assert weight_value is not None
    assert weight_value.is_initializer()
    assert weight_value.name == "w"
    rows = 3 if "Transpose" in kind and shape[0] == 3 else 6
    x = _rand(2, (shape[1] if "Transpose" in kind else rows * scale))
    assert np.allclose(run(serialize(prepared.model), x=x)[0], run(path.read_bytes(), x=x)[0])


def test_a_weight_in_a_constant_becomes_an_initializer(write: Write) -> None:
    path = write(
        "g (float[N, 2] x) => (float[N, 2] y)"
        "{ c = Constant<value = float[2, 2] {1.0, 2.0, 3.0, 4.0}>() \n y = MatMul(x, c) }"
    )
    prepared = prepare(load(path), 17)
    assert _ops(prepared) == ["MatMul"]
    assert "c" in prepared.model.graph.initializers


def test_a_transposed_weight_with_other_users_keeps_both(write: Write, run: Run) -> None:
    path = write(
        "g (int64[N] i) => (float[N, 9] y)"
        "{ e = Gather(w, i) \n t = Transpose<perm = [1, 0]>(w) \n y = MatMul(e, t) }",
        {"w": _rand(9, 4)},
    )
    prepared = prepare(load(path), 17)
    assert list(prepared.model.graph.initializers) == ["w", "w/Transpose"]
    i = np.array([1, 8, 3])
    assert np.allclose(run(serialize(prepared.model), i=i)[0], run(path.read_bytes(), i=i)[0])


def test_nothing_small_grows_large(write: Write) -> None:
    path = write(
        "g (float[N, 9000] x) => (float[N, 9000] y){ c = Expand(one, shape) \n y = Add(x, c) }",
        {"one": np.ones(1, np.float32), "shape": np.array([8, 9000], np.int64)},
    )
    prepared = prepare(load(path), 17)
    assert sum(v.const_value.nbytes for v in prepared.model.graph.initializers.values()) < 100


CONVS = {
    "Conv": ("Conv", (6, 4, 3, 3), (2, 4, 8, 8)),
    "Conv groups": ("Conv<group = 2>", (6, 2, 3, 3), (2, 4, 8, 8)),
    "Conv 1d": ("Conv", (6, 4, 3), (2, 4, 8)),
    "ConvTranspose": ("ConvTranspose", (4, 6, 2, 2), (2, 4, 8, 8)),
    "ConvTranspose groups": ("ConvTranspose<group = 2>", (4, 3, 2, 2), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("bias", ["", ", b"])
@pytest.mark.parametrize("tail", ["add", "norm", "add norm add"])
def test_what_follows_a_convolution_is_folded(
    write: Write, run: Run, kind: str, bias: str, tail: str
) -> None:
    op, shape, x_shape = CONVS[kind]
    ones = (1,) * (len(shape) - 2)
    lines = [f"v0 = {op}(x, w{bias})"]
    for i, step in enumerate(tail.split()):
        nodes = {"add": f"Add(c{i % 2}, v{i})", "norm": f"BatchNormalization(v{i}, g, o, m, s)"}
        lines.append(f"v{i + 1} = {nodes[step]}")
    dims = ", ".join("ABCD"[: len(x_shape)])
    last = f"v{len(lines) - 1}"
    text = "\n".join(lines).replace(f"{last} =", "y =")
    path = write(
        f"g (float[{dims}] x) => (float[{dims.lower()}] y) {{ {text} }}",
        {
            "w": _rand(*shape),
            "b": _rand(6),
            "c0": _rand(1, 6, *ones),
            "c1": _rand(6, *ones),
            **{k: _rand(6) + i for i, k in enumerate("gom")},
            "s": np.abs(_rand(6)) + 0.5,
        },
    )
    prepared = prepare(load(path), 17)
    assert _ops(prepared) == [op.partition("<")[0]]
    node = next(iter(prepared.model.graph))
    assert node.inputs[1] is not None
    assert node.inputs[1].name == "w"
    x = _rand(*x_shape)
    assert _error(run(serialize(prepared.model), x=x)[0], run(path.read_bytes(), x=x)[0]) < 1e-5


def test_a_gemm_takes_a_batch_normalization(write: Write, run: Run) -> None:
    path = write(
        "g (float[N, 4] x) => (float[N, 6] y)"
        "{ v = Gemm<transB = 1>(x, w, b) \n y = BatchNormalization(v, g, b, b, s) }",
        {"w": _rand(6, 4), "b": _rand(6), "g": _rand(6), "s": np.abs(_rand(6)) + 1},
    )
    prepared = prepare(load(path), 17)
    assert _ops(prepared) == ["Gemm"]
    x = _rand(2, 4)
    assert _error(run(serialize(prepared.model), x=x)[0], run(path.read_bytes(), x=x)[0]) < 1e-5


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("v = Conv(x, w) \n y = Add(v, c)", _rand(1, 1, 1, 6)),  # along the width
        ("v = Conv(x, w) \n y = Add(v, c)", _rand(6)),  # along the width too, by broadcasting
        ("v = Conv(x, w) \n z = Add(v, c) \n y = Mul(v, z)", _rand(6, 1, 1)),  # used twice
        ("v = Conv(x, w) \n y = Add(v, v)", _rand(1)),
        ("v = Conv(x, w) \n y = Sub(v, c)", _rand(6, 1, 1)),
        ("v = Conv(x, w) \n y = Add(v, c)", _rand(2, 6, 1, 1)),  # makes the batch larger
    ],
)
def test_what_is_no_bias_is_not_folded(
    write: Write, run: Run, text: str, constant: NDArray[np.float32]
) -> None:
    path = write(
        f"g (float[1, 4, 8, 6] x) => (float[A, 6, B, C] y) {{ {text} }}",
        {"w": _rand(6, 4, 1, 1), "c": constant},
    )
    prepared = prepare(load(path), 17)
    assert len(_ops(prepared)) > 1
    x = _rand(1, 4, 8, 6)
    assert np.array_equal(run(serialize(prepared.model), x=x)[0], run(path.read_bytes(), x=x)[0])


def test_an_intermediate_output_keeps_its_value(write: Write, run: Run) -> None:
    path = write(
        "g (float[1, 4, 8, 6] x) => (float[1, 6, 8, 6] v, float[1, 6, 8, 6] y)"
        "{ v = Conv(x, w) \n y = Add(v, c) }",
        {"w": _rand(6, 4, 1, 1), "c": _rand(6, 1, 1)},
    )
    prepared = prepare(load(path), 17)
    assert prepared.outputs == ("v", "y")
    x = _rand(1, 4, 8, 6)
    for a, b in zip(run(serialize(prepared.model), x=x), run(path.read_bytes(), x=x), strict=True):
        assert np.array_equal(a, b)


def test_a_shared_weight_is_not_changed_by_a_fold(write: Write, run: Run) -> None:
    path = write(
        "g (float[1, 4, 8, 6] x) => (float[1, 4, 8, 6] y)"
        "{ a = Conv(x, w) \n n = BatchNormalization(a, g, g, g, s)"
        "\n b = Conv(n, w) \n y = Add(b, c) }",
        {"w": _rand(4, 4, 1, 1), "c": _rand(4, 1, 1), "g": _rand(4), "s": np.abs(_rand(4)) + 1},
    )
    prepared = prepare(load(path), 17)
    x = _rand(1, 4, 8, 6)
    assert _error(run(serialize(prepared.model), x=x)[0], run(path.read_bytes(), x=x)[0]) < 1e-5


def test_unnamed_nodes_get_names(write: Write) -> None:
    path = write("g (float[N] x) => (float[N] y) { a = Relu(x) \n b = Relu(a) \n y = Exp(b) }")
    assert [n.name for n in prepare(load(path), 17).model.graph] == ["Relu", "Relu_1", "Exp"]


def test_free_dimensions_stay_free(write: Write, run: Run) -> None:
    path = write(
        "g (float[batch, 3, height, width] x) => (float[batch, 3, h, w2] y) { y = Relu(x) }"
    )
    prepared = prepare(load(path), 19)
    assert prepared.inputs[0].shape == ("batch", 3, "height", "width")
    for shape in ((1, 3, 4, 4), (2, 3, 5, 7)):
        assert run(serialize(prepared.model), x=_rand(*shape))[0].shape == shape


def test_a_large_weight_is_not_read_before_it_is_used(write: Write, tmp_path: Path) -> None:
    import onnx

    path = write(
        "g (float[N, 300] x) => (float[N, 400] y)"
        "{ t = Transpose<perm = [1, 0]>(w) \n y = MatMul(x, t) }",
        {"w": _rand(400, 300)},
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="d", size_threshold=0)
    prepared = prepare(load(path), 17)
    tensor = prepared.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert np.array_equal(tensor.numpy(), _rand(400, 300).T)


def test_functions_are_inlined(tmp_path: Path, run: Run) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
        "g (float[N, 2] x) => (float[N, 2] y) { y = local.twice(x) }"
        '<domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }'
    )
    onnx.save(model, tmp_path / "f.onnx")
    prepared = prepare(load(tmp_path / "f.onnx"), 17)
    assert _ops(prepared) == ["Add"]
    assert run(serialize(prepared.model), x=np.ones((1, 2), "f4"))[0].tolist() == [[2, 2]]
