from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bitworth.recipe import Site
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import SiteScan, Uncovered, find_sites

Write = Callable[..., Path]


def _scan(path: Path) -> SiteScan:
    return find_sites(prepare(load(path), 17))


def attention(number: int, middle: str = "p{n} = Softmax<axis = -1>(s{n})", q: str = "q") -> str:
    """Text of one attention over q, k, v: its nodes are called after their values."""
    n = number
    return (
        f"k{n} = Transpose<perm = [0, 1, 3, 2]>(k)\n qk{n} = MatMul({q}, k{n})\n "
        f"s{n} = Mul(qk{n}, c)\n {middle.format(n=n)}\n o{n} = MatMul(p{n}, v)\n"
    )


SIGNATURE = (
    "g (float[1, 2, L, 4] q, float[1, 2, L, 4] k, float[1, 2, L, 4] v, float[1, 1, L, L] m)"
    " => (float[1, 2, L, 4] y)"
)
SCALE = {"c": np.array(0.5, np.float32)}


def _named(path: Path, scopes: dict[str, str]) -> Path:
    """Give nodes the names of their outputs, and the modules that an exporter tells."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = node.output[0]
        if node.output[0] in scopes:
            modules = [*scopes[node.output[0]].split("|"), "matmul"]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(modules))
    onnx.save(model, path)
    return path


def test_a_product_of_an_attention(write: Write) -> None:
    path = _named(write(f"{SIGNATURE} {{ {attention(1)} y = Relu(o1) }}", SCALE), {})
    scan = _scan(path)
    assert scan.sites == ()
    first, second = scan.attention
    assert first == Site(
        id="@matmul:qk1/1", node="qk1", op_type="MatMul", weight="", weight_shape=(),
        weight_axis=0, weight_input=1, activation="q", output="qk1", second="k1", scope="qk1",
    )  # fmt: skip
    assert (second.id, second.node, second.activation, second.second) == (
        "@matmul:qk1/2", "o1", "p1", "v",
    )  # fmt: skip
    assert scan.attention_nodes == ("qk1", "o1")
    assert scan.uncovered == ()


@pytest.mark.parametrize(
    "middle",
    [
        "p{n} = Softmax<axis = -1>(s{n})",
        "t{n} = Add(s{n}, m)\n p{n} = Softmax<axis = -1>(t{n})",
        "t{n} = Div(s{n}, c)\n u{n} = Tanh(t{n})\n w{n} = Mul(u{n}, c)\n"
        "p{n} = Softmax<axis = -1>(w{n})",
        "b{n} = Greater(m, c)\n t{n} = Where(b{n}, s{n}, m)\n p{n} = Softmax<axis = -1>(t{n})",
        "t{n} = Cast<to = 11>(s{n})\n u{n} = Softmax<axis = -1>(t{n})\n p{n} = Cast<to = 1>(u{n})",
        "t{n} = Softmax<axis = -1>(s{n})\n p{n} = Dropout(t{n})",
        "t{n} = Softmax<axis = -1>(s{n})\n b{n} = IsNaN(t{n})\n p{n} = Where(b{n}, c, t{n})",
        "t{n} = Transpose<perm = [1, 0, 2, 3]>(s{n})\n u{n} = Softmax<axis = -1>(t{n})\n"
        "p{n} = Transpose<perm = [1, 0, 2, 3]>(u{n})",
        # A relative position's product is a part of its attention.
        "r{n} = MatMul(q, v4)\n t{n} = Add(s{n}, r{n})\n p{n} = Softmax<axis = -1>(t{n})",
    ],
)
def test_what_stands_around_the_softmax(write: Write, middle: str) -> None:
    extra = "v4 = Transpose<perm = [0, 1, 3, 2]>(v)\n" if "v4" in middle else ""
    text = (
        f"{SIGNATURE} {{ {extra} {attention(1, middle)} {attention(2, middle)} y = Add(o1, o2) }}"
    )
    scan = _scan(_named(write(text, SCALE), {}))
    by_scope: dict[str, list[str]] = {}
    for site in scan.attention:
        by_scope.setdefault(site.scope, []).append(site.id)
    assert {scope: len(ids) for scope, ids in by_scope.items()} == {
        "qk1": 3 if extra else 2,
        "qk2": 3 if extra else 2,
    }
    for scope, ids in by_scope.items():
        assert ids == [f"@matmul:{scope}/{i + 1}" for i in range(len(ids))]


def test_one_after_the_other_are_two(write: Write) -> None:
    # The residual runs past the first product of the second attention to its Softmax's side.
    text = (
        f"{SIGNATURE} {{ {attention(1)} r = Add(o1, q) \n {attention(2, q='r')} y = Add(o2, r) }}"
    )
    scan = _scan(_named(write(text, SCALE), {}))
    assert [s.scope for s in scan.attention] == ["qk1", "qk1", "qk2", "qk2"]


@pytest.mark.parametrize(
    ("modules", "scope"),
    [
        (("|enc|enc.layer.0|enc.layer.0.attn",) * 2, "enc.layer.0.attn"),
        (("|enc|enc.layer.0|enc.layer.0.attn.qk", "|enc|enc.layer.0|enc.layer.0.attn.pv"),
         "enc.layer.0.attn"),
        (("|enc.attn", "|dec.attn"), "qk1"),
        (("", ""), "qk1"),
        (("|enc|enc.attn", ""), "qk1"),
    ],
)  # fmt: skip
def test_the_scope_is_the_module_around_both(
    write: Write, modules: tuple[str, str], scope: str
) -> None:
    path = write(f"{SIGNATURE} {{ {attention(1)} y = Relu(o1) }}", SCALE)
    scan = _scan(_named(path, dict(zip(("qk1", "o1"), modules, strict=True))))
    assert [s.id for s in scan.attention] == [f"@matmul:{scope}/1", f"@matmul:{scope}/2"]


def test_torchscript_names_hold_the_module(write: Write) -> None:
    path = write(f"{SIGNATURE} {{ {attention(1)} y = Relu(o1) }}", SCALE)
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = f"/enc/layer.0/attn/{node.output[0]}"
    onnx.save(model, path)
    assert [s.id for s in _scan(path).attention] == [
        "@matmul:enc.layer.0.attn/1",
        "@matmul:enc.layer.0.attn/2",
    ]


def test_two_attentions_of_one_module_are_told_apart(write: Write) -> None:
    text = "".join(attention(n) for n in (1, 2, 3))
    path = write(f"{SIGNATURE} {{ {text} a = Add(o1, o2)\n y = Add(a, o3) }}", SCALE)
    nodes = [f"{kind}{n}" for n in (1, 2, 3) for kind in ("qk", "o")]
    scan = _scan(_named(path, dict.fromkeys(nodes, "|enc|enc.attn")))
    assert [s.id for s in scan.attention] == [
        f"@matmul:enc.attn{again}/{n}" for again in ("", "#2", "#3") for n in (1, 2)
    ]
    assert len({s.scope for s in scan.attention}) == 3


@pytest.mark.parametrize(
    "text",
    [
        "t = Transpose<perm = [0, 1, 3, 2]>(k)\n a = MatMul(q, t)\n y = MatMul(a, v)",  # no Softmax
        "p = Softmax<axis = -1>(m)\n a = MatMul(p, v)\n y = MatMul(m, a)",  # fed by no product
        "t = Transpose<perm = [0, 1, 3, 2]>(k)\n a = MatMul(q, t)\n s = Softmax<axis = -1>(a)\n"
        "r = ReduceSum(s)\n z = Mul(v, r)\n y = MatMul(m, z)",  # a gate
    ],
)
def test_products_outside_an_attention_stand_alone(write: Write, text: str) -> None:
    scan = _scan(_named(write(f"{SIGNATURE} {{ {text} }}", SCALE), {}))
    assert [s.id for s in scan.attention] == [f"@matmul:{s.node}/1" for s in scan.attention]
    assert len({s.scope for s in scan.attention}) == len(scan.attention) == 2


def test_a_name_that_another_scope_has_taken(write: Write) -> None:
    # The module is called like the node of a product outside it.
    text = f"{attention(1)} t = Transpose<perm = [0, 1, 3, 2]>(k)\n a = MatMul(q, t)\n"
    path = _named(
        write(f"{SIGNATURE} {{ {text} y = MatMul(a, o1) }}", SCALE), {"qk1": "|a", "o1": "|a"}
    )
    ids = [s.id for s in _scan(path).attention]
    assert ids == ["@matmul:a/1", "@matmul:a/2", "@matmul:a#2/1", "@matmul:y/1"]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16")]
)
def test_float_types(write: Write, kind: str, dtype: str) -> None:
    text = f"g ({kind}[N, 4] x, {kind}[4, N] z) => ({kind}[N, N] y) {{ y = MatMul(x, z) }}"
    (site,) = _scan(write(text)).attention
    assert site.dtype == dtype


@pytest.mark.parametrize(("kind", "name"), [("double", "double"), ("int32", "int32")])
def test_other_types_are_reported(write: Write, kind: str, name: str) -> None:
    text = f"g ({kind}[N, 4] x, {kind}[4, N] z) => ({kind}[N, N] y) {{ y = MatMul(x, z) }}"
    scan = _scan(write(text))
    assert scan.attention == ()
    assert scan.uncovered == (Uncovered("MatMul", "MatMul", f"multiplies {name}"),)


def test_a_value_by_itself(write: Write) -> None:
    text = "g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }"
    (site,) = _scan(write(text)).attention
    assert site.activation == site.second == "x"


def test_a_weight_that_is_computed_is_no_activation(write: Write) -> None:
    # What no input changes, though folding leaves it: a large random or dequantized weight.
    text = (
        "g (float[N, 4] x) => (float[N, 4] y) { d = DequantizeLinear(w, s, z)\n"
        "t = Transpose(d)\n y = MatMul(x, t) }"
    )
    weights: dict[str, NDArray[np.generic]] = {
        "w": np.ones((4, 4), np.int8), "s": np.array(0.1, "f4"), "z": np.array(0, "i1"),
    }  # fmt: skip
    scan = _scan(write(text, weights))
    assert scan.attention == ()
    assert [u.reason for u in scan.uncovered] == ["weight is computed at run time"]
    assert scan.already_quantized


def _one_node(path: Path, node: onnx.NodeProto, inputs: int, opset: int) -> Path:
    shape = [1, 2, 8, 4] if opset == 23 else [1, 8, 8]
    values = [helper.make_tensor_value_info(f"i{n}", TensorProto.FLOAT, shape)
              for n in range(inputs)]  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [output])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), path)
    return path


@pytest.mark.parametrize(
    ("op_type", "domain", "opset"),
    [
        ("Attention", "", 23),
        ("MultiHeadAttention", "com.microsoft", 18),
        ("Attention", "com.microsoft", 18),
        ("GroupQueryAttention", "com.microsoft", 18),
    ],
)
def test_a_fused_attention_is_reported(
    tmp_path: Path, op_type: str, domain: str, opset: int
) -> None:
    node = helper.make_node(op_type, ["i0", "i1", "i2"], ["y"], "fused", domain=domain)
    scan = _scan(_one_node(tmp_path / "m.onnx", node, 3, opset))
    assert scan.attention == scan.sites == ()
    ((name, kind, reason),) = [(u.node, u.op_type, u.reason) for u in scan.uncovered]
    assert (name, kind) == ("fused", op_type)
    assert reason.startswith("a whole attention in one operator")


def test_an_einsum_of_two_activations_is_reported(write: Write) -> None:
    text = (
        'g (float[4, 4] x, float[4, 4] z) => (float y) { y = Einsum<equation = "ij,jk->ik">(x, z) }'
    )
    scan = _scan(write(text))
    assert [(u.op_type, u.reason) for u in scan.uncovered] == [
        ("Einsum", "operator is not covered")
    ]


def test_ids_are_the_same_every_time(write: Write) -> None:
    text = "".join(attention(n) for n in (1, 2))
    path = write(f"{SIGNATURE} {{ {text} y = Add(o1, o2) }}", SCALE)
    assert _scan(path).attention == _scan(path).attention
    assert len({s.id for s in _scan(path).attention}) == 4
