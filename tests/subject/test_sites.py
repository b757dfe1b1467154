from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import SiteScan, Uncovered, find_sites

Write = Callable[..., Path]


def _rand(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _scan(path: Path) -> SiteScan:
    return find_sites(prepare(load(path), 17))


@pytest.mark.parametrize(
    ("op", "weight", "x", "axis", "channels"),
    [
        ("Conv", (6, 4, 3), (1, 4, 9), 0, (4, 6)),
        ("Conv", (6, 4, 3, 3), (1, 4, 9, 9), 0, (4, 6)),
        ("Conv<group = 2>", (6, 2, 3, 3), (1, 4, 9, 9), 0, (2, 6)),
        ("Conv", (6, 4, 3, 3, 3), (1, 4, 9, 9, 9), 0, (4, 6)),
        ("ConvTranspose", (4, 6, 3, 3), (1, 4, 9, 9), 1, (4, 6)),
        ("ConvTranspose<group = 2>", (4, 3, 3, 3), (1, 4, 9, 9), 1, (2, 6)),
        ("Gemm", (4, 6), (2, 4), 1, (4, 6)),
        ("Gemm<transB = 1>", (6, 4), (2, 4), 0, (4, 6)),
        ("MatMul", (4, 6), (2, 4), 1, (4, 6)),
        ("MatMul", (3, 4, 6), (3, 2, 4), 2, (4, 6)),
    ],
)
def test_kinds(
    write: Write, op: str, weight: tuple[int, ...], x: tuple[int, ...], axis: int,
    channels: tuple[int, int],
) -> None:  # fmt: skip
    dims = ", ".join(map(str, x))
    free = ", ".join("abcde"[: len(x)])
    scan = _scan(
        write(
            f"g (float[{dims}] x) => (float[{free}] y) {{ y = {op}(x, w) }}", {"w": _rand(*weight)}
        )
    )
    (site,) = scan.sites
    assert site.id == site.weight == "w"
    assert (site.weight_axis, site.weight_input) == (axis, 1)
    assert (site.in_channels, site.out_channels) == channels
    assert (site.activation, site.output, site.weight_shape) == ("x", "y", weight)


@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4)])
def test_a_weight_on_the_left(write: Write, shape: tuple[int, ...]) -> None:
    free = ", ".join("abc"[: len(shape)])
    text = f"g (float[{free}] x) => (float[{free.upper()}] y) {{ y = MatMul(w, x) }}"
    (site,) = _scan(write(text, {"w": _rand(*shape)})).sites
    assert (site.weight_input, site.weight_axis) == (0, len(shape) - 2)
    assert (site.in_channels, site.out_channels) == (4, 6)
    assert site.activation == "x"


def test_shared_weights_are_numbered_in_order(write: Write) -> None:
    text = (
        "g (float[N, 4] x) => (float[N, 4] y)"
        "{ a = MatMul(x, w) \n b = MatMul(a, v) \n c = MatMul(b, w) \n y = Gemm(c, w) }"
    )
    scan = _scan(write(text, {"w": _rand(4, 4), "v": _rand(4, 4)}))
    assert [s.id for s in scan.sites] == ["w", "v", "w#2", "w#3"]


def test_attention_matmuls_are_listed_apart(write: Write) -> None:
    text = "g (float[N, 4] x, float[4, N] z) => (float[N, N] y) { y = MatMul(x, z) }"
    scan = _scan(write(text))
    assert scan.sites == ()
    assert scan.attention_nodes == ("MatMul",)
    assert scan.uncovered == ()


# NODE reads w, whatever stands between the weight and it.
CONSUMERS = {
    "Conv": ("Conv(x, {w})", "float[1, 4, 6, 6] x", (5, 4, 3, 3)),
    "ConvTranspose": ("ConvTranspose(x, {w})", "float[1, 4, 6, 6] x", (4, 5, 3, 3)),
    "Gemm": ("Gemm(x, {w})", "float[3, 4] x", (4, 5)),
    "MatMul": ("MatMul(x, {w})", "float[3, 4] x", (4, 5)),
    "MatMul left": ("MatMul({w}, x)", "float[4, 3] x", (5, 4)),
}


def _turned(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(array.T)


# What stands between a stored weight and its consumer: the node, and what is stored for it.
Step = tuple[str, Callable[[NDArray[np.generic]], NDArray[np.generic]]]
STEPS: dict[str, Step] = {
    "Identity": ("Identity({0})", lambda a: a),
    "Cast": ("Cast<to = 1>({0})", lambda a: a.astype(np.float16)),
    "Transpose": ("Transpose({0})", _turned),
    "Reshape": ("Reshape({0}, shape)", lambda a: a.reshape(-1)),
    "Squeeze": ("Squeeze({0}, axes)", lambda a: a[np.newaxis]),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("steps", [*([s] for s in STEPS), ["Cast", "Transpose", "Identity"], []])
@pytest.mark.parametrize("constant_node", [False, True])
def test_a_weight_behind_what_only_rearranges_it(
    write: Write, consumer: str, steps: list[str], constant_node: bool
) -> None:
    text, signature, shape = CONSUMERS[consumer]
    stored: NDArray[np.generic] = _rand(*shape)
    nodes, name = [f"y = {text.format(w='w0')}"], "w0"
    for number, step in enumerate(reversed(steps), 1):
        node, make = STEPS[step]
        nodes.insert(0, f"{name} = {node.format(f'w{number}')}")
        stored, name = make(stored), f"w{number}"
    weights: dict[str, NDArray[np.generic]] = {
        "shape": np.array(shape, np.int64), "axes": np.array([0], np.int64), name: stored,
    }  # fmt: skip
    body = "\n ".join(nodes)
    used = {k: v for k, v in weights.items() if k == name or f", {k})" in body}
    path = write(f"g ({signature}) => (float y) {{ {body} }}", used)
    if constant_node:
        model = onnx.load(path)
        value = next(t for t in model.graph.initializer if t.name == name)
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=value))
        model.graph.initializer.remove(value)
        onnx.save(model, path)
    scan = _scan(path)
    assert scan.uncovered == scan.attention == ()
    (site,) = scan.sites
    assert site.weight_shape == shape
    assert (site.op_type, site.dtype) == (consumer.split()[0], "float32")


@pytest.mark.parametrize("gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_reported(write: Write, gates: tuple[str, int]) -> None:
    op, count = gates
    text = f"g (float[T, B, 4] x) => (float[T, 1, B, 5] y) {{ y = {op}<hidden_size = 5>(x, w, r) }}"
    scan = _scan(write(text, {"w": _rand(1, 5 * count, 4), "r": _rand(1, 5 * count, 5)}))
    assert scan.sites == ()
    assert scan.uncovered == (Uncovered(op, op, "operator is not covered"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('y = Einsum<equation = "nk,km->nm">(x, w)', "operator is not covered"),
        ("y = Gemm<transA = 1>(x, w)", "transposed"),
        ("y = Gemm(w, x)", "input A"),
        ("v = Relu(x) \n y = Conv(z, v)", "computed at run time"),
        ("y = MatMul(x, b)", "vector"),
    ],
)
def test_what_is_left_out_has_a_reason(write: Write, text: str, reason: str) -> None:
    graph = f"g (float[4, 4] x, float[1, 4, 4, 4] z) => (float y) {{ {text} }}"
    if "Conv" in text:
        graph = graph.replace("float[4, 4] x", "float[4, 4, 1, 1] x")
    scan = _scan(write(graph, {"w": _rand(4, 4), "b": _rand(4)}))
    assert scan.sites == ()
    (left,) = scan.uncovered
    assert reason in left.reason


def test_an_engines_own_operator_is_reported(write: Write) -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { y = com.microsoft.FusedMatMul(x, w) }"
    scan = _scan(write(text, {"w": _rand(4, 4)}, domains=', "com.microsoft" : 1'))
    assert [(u.op_type, u.reason) for u in scan.uncovered] == [
        ("FusedMatMul", "operator of domain com.microsoft")
    ]


def test_sites_in_bodies_are_reported(tmp_path: Path) -> None:
    def body(name: str) -> onnx.GraphProto:
        y = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
        node = helper.make_node("MatMul", ["x", f"w_{name}"], ["o"])
        weight = numpy_helper.from_array(_rand(4, 4), f"w_{name}")
        return helper.make_graph([node], name, [], [y], [weight])

    node = helper.make_node(
        "If", ["c"], ["y"], "choice", then_branch=body("t"), else_branch=body("e")
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "if.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    scan = _scan(path)
    assert scan.sites == ()
    assert [u.reason for u in scan.uncovered] == ["inside a body of If 'choice'"] * 2


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_weight_types(write: Write, dtype: str) -> None:
    kind = {"float16": "float16", "float64": "double"}[dtype]
    text = f"g ({kind}[N, 4] x) => ({kind}[N, 4] y) {{ y = MatMul(x, w) }}"
    scan = _scan(write(text, {"w": _rand(4, 4).astype(dtype)}))
    assert [s.dtype for s in scan.sites] == (["float16"] if dtype == "float16" else [])
    assert len(scan.uncovered) == (0 if dtype == "float16" else 1)


@pytest.mark.parametrize(
    ("text", "sites", "left"),
    [
        # The activation alone, the weight alone, both.
        ("q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n y = MatMul(d, w)", 1, 0),
        ("d = DequantizeLinear(i, s, z)\n y = MatMul(x, d)", 0, 1),
        ("d = DequantizeLinear(i, s, z)\n y = Gemm(x, d)", 0, 1),
        ("d = DequantizeLinear(i4, s, z)\n a = Conv(x4, d)\n y = Relu(a)", 0, 1),
        ("q = QuantizeLinear(x, s, z)\n p = QLinearMatMul(q, s, z, i, s, z, s, z)\n"
         "y = DequantizeLinear(p, s, z)", 0, 1),
        ("q, t, u = DynamicQuantizeLinear(x)\n p = MatMulInteger(q, i, u)\n"
         "y = Cast<to = 1>(p)", 0, 1),
        ("q, t, u = DynamicQuantizeLinear(x)\n y = DequantizeLinear(q, t, u)", 0, 0),
    ],
)  # fmt: skip
def test_a_quantized_model_is_told(write: Write, text: str, sites: int, left: int) -> None:
    weights: dict[str, NDArray[np.generic]] = {
        "w": _rand(4, 4), "s": np.array(0.1, "f4"), "z": np.array(0, "i1"),
        "i": np.ones((4, 4), "i1"), "i4": np.ones((4, 4, 1, 1), "i1"),
    }  # fmt: skip
    used = {k: v for k, v in weights.items() if f"{k}," in text or f"{k})" in text}
    graph = f"g (float[N, 4] x, float[1, 4, 3, 3] x4) => (float y) {{ {text} }}"
    scan = _scan(write(graph, used))
    assert scan.already_quantized
    assert (len(scan.sites), len(scan.uncovered), len(scan.attention)) == (sites, left, 0)


@pytest.mark.parametrize(
    ("weight", "node", "scopes", "expected"),
    [
        ("encoder.layer.0.weight", "node_1", None, "encoder.layer.0.weight"),
        ("conv2d_68.w_0", "Conv.0", None, "conv2d_68.w_0"),
        ("val_19", "node_linear", "['', 'encoder', 'encoder.fc1', 'linear']", "encoder.fc1.weight"),
        ("val_19", "node_linear", None, "node_linear.weight"),
        ("val_19", "node_linear", "broken [", "node_linear.weight"),
        ("onnx::MatMul_123", "/encoder/layer.0/query/MatMul", None, "encoder.layer.0.query.weight"),
        ("auto.cast.95", "ConvTranspose.0", None, "ConvTranspose.0.weight"),
        ("t_3", "MatMul_7", None, "MatMul_7.weight"),
        ("/layer/Constant_3_output_0", "/layer/MatMul", None, "layer.weight"),
    ],
)
def test_names(tmp_path: Path, weight: str, node: str, scopes: str | None, expected: str) -> None:
    matmul = helper.make_node("MatMul", ["x", weight], ["y"], node)
    if scopes:
        matmul.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    graph = helper.make_graph(
        [matmul],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(_rand(4, 4), weight)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    (site,) = find_sites(prepare(load(tmp_path / "m.onnx"), 19)).sites
    assert site.id == expected
    assert site.weight == weight


def test_real_models(ocr_model: Path) -> None:
    scan = _scan(ocr_model)
    kinds = [s.op_type for s in scan.sites]
    counts = {k: kinds.count(k) for k in ("Conv", "MatMul", "ConvTranspose")}
    expected = {"rec": (57, 9, 0, 4), "det": (83, 0, 2, 0)}[
        "rec" if "rec" in ocr_model.name else "det"
    ]
    assert (*counts.values(), len(scan.attention)) == expected
    assert len({s.id for s in scan.sites}) == len(scan.sites)
    assert scan.uncovered == ()
