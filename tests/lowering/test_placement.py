from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitworth.lowering.placement import observed_values, output_value
from bitworth.recipe.site import Site
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]

CONSTANTS = {
    "w": np.ones((4, 4), np.float32),
    "b": np.ones(4, np.float32),
    "c": np.array(2, np.float32),
    "half": np.array(0.5, np.float32),
    "one": np.array(1, np.float32),
    "six": np.array(6, np.float32),
    "slope": np.ones(4, np.float32),
    "r": np.array([2, 3], np.int64),
    "three": np.array(3, np.float32),
}

SPELLINGS = {
    "Relu": "a = Relu(v)",
    "LeakyRelu": "a = LeakyRelu(v)",
    "PRelu": "a = PRelu(v, slope)",
    "Clip": "a = Clip(v, c, six)",
    "Sigmoid": "a = Sigmoid(v)",
    "HardSigmoid": "a = HardSigmoid(v)",
    "HardSwish": "a = HardSwish(v)",
    "Tanh": "a = Tanh(v)",
    "Elu": "a = Elu(v)",
    "x * Sigmoid(x)": "s = Sigmoid(v) \n a = Mul(v, s)",
    "Sigmoid(x) * x": "s = Sigmoid(v) \n a = Mul(s, v)",
    "x * HardSigmoid(x)": "s = HardSigmoid(v) \n a = Mul(v, s)",
    "Gelu, factor last": (
        "d = Div(v, c) \n e = Erf(d) \n p = Add(e, one) \n m = Mul(v, p) \n a = Mul(m, half)"
    ),
    "Gelu, factor first": (
        "h = Mul(v, half) \n d = Div(v, c) \n e = Erf(d) \n p = Add(one, e) \n a = Mul(h, p)"
    ),
    "Gelu, factor in the middle": (
        "d = Mul(v, c) \n e = Erf(d) \n p = Add(e, one) \n h = Mul(p, half) \n a = Mul(v, h)"
    ),
    "Gelu by Tanh": (
        "q = Mul(v, v) \n k = Mul(v, q) \n l = Mul(k, c) \n n = Add(v, l) \n o = Mul(n, c)"
        "\n t = Tanh(o) \n p = Add(t, one) \n m = Mul(v, p) \n a = Mul(m, half)"
    ),
    "Gelu by Tanh and Pow": (
        "k = Pow(v, three) \n l = Mul(k, c) \n n = Add(v, l) \n o = Mul(n, c) \n t = Tanh(o)"
        "\n p = Add(t, one) \n h = Mul(v, half) \n a = Mul(h, p)"
    ),
    "x * Sigmoid(c * x)": "d = Mul(v, c) \n s = Sigmoid(d) \n a = Mul(v, s)",
    "x / (1 + Exp(-x))": "n = Neg(v) \n e = Exp(n) \n p = Add(e, one) \n a = Div(v, p)",
    "x * Tanh(Softplus(x))": "s = Softplus(v) \n t = Tanh(s) \n a = Mul(v, t)",
    "HardSwish by factor": (
        "p = Add(v, three) \n k = Clip(p, c, six) \n d = Div(k, six) \n a = Mul(v, d)"
    ),
    "HardSwish by Clip": (
        "p = Add(v, three) \n k = Clip(p, c, six) \n m = Mul(v, k) \n a = Div(m, six)"
    ),
}
KINDS = {
    "x * Sigmoid(x)": "Swish",
    "Sigmoid(x) * x": "Swish",
    "x * HardSigmoid(x)": "HardSwish",
    "HardSwish by Clip": "HardSwish",
    "HardSwish by factor": "HardSwish",
    "x * Sigmoid(c * x)": "Swish",
    "x / (1 + Exp(-x))": "Swish",
    "x * Tanh(Softplus(x))": "Mish",
}
# Operators that came later than the opset of the others.
LATER = {"Gelu": 20, "Mish": 18, "Swish": 24}


def _model(make: Make, body: str, end: str = "y = ReduceMax(a)") -> PreparedModel:
    used = {k: a for k, a in CONSTANTS.items() if k in body + end or k == "w"}
    return make(f"g (float[N, 4] x) => (float[A, B] y) {{ {body} \n {end} }}", used)


def _value(
    prepared: PreparedModel, placement: str, fused: tuple[str, ...] | None = None
) -> str | None:
    site = find_sites(prepared).sites[0]
    return output_value(prepared.model, site, placement, fused)  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("bias", [False, True])
def test_an_activation_function_is_followed(make: Make, spelling: str, bias: bool) -> None:
    start = "u = MatMul(x, w) \n v = Add(b, u)" if bias else "v = MatMul(x, w)"
    prepared = _model(make, f"{start} \n {SPELLINGS[spelling]}")
    own = "u" if bias else "v"
    assert _value(prepared, "after_activation") == "a"
    assert _value(prepared, "before_activation") == own
    assert _value(prepared, "input_only") is None
    kind = KINDS.get(spelling, spelling.split(",")[0].split(" ")[0])
    assert _value(prepared, "after_activation", (kind,)) == "a"
    assert _value(prepared, "after_activation", ("None",)) == own
    (site,) = find_sites(prepared).sites
    assert observed_values(prepared.model, (site, site)) == ("x", own, "a")


@pytest.mark.parametrize("op", LATER)
def test_an_activation_function_with_an_operator_of_its_own(make: Make, op: str) -> None:
    text = "g (float[N, 4] x) => (float[A, B] y) {{ v = MatMul(x, w) \n a = {}(v) \n y = Abs(a) }}"
    prepared = make(text.format(op), {"w": CONSTANTS["w"]}, opset=LATER[op])
    assert _value(prepared, "after_activation", (op,)) == "a"
    assert _value(prepared, "after_activation", ("None",)) == "v"


@pytest.mark.parametrize(
    "branch",
    ["p = Relu(v)", "s = Sigmoid(v) \n p = Mul(v, s)", "p = Add(v, b)", "p = Softmax(v)"],
)
def test_what_stands_in_a_body_does_not_follow(make: Make, branch: str) -> None:
    # Its values are not of this graph, and what it yields goes on outside.
    prepared = make(
        "g (float[N, 4] x, bool t) => (float[A, B] y)"
        f"{{ v = MatMul(x, w) \n a = If (t) <then_branch = h () => (float[N, 4] p) {{ {branch} }},"
        f"else_branch = l () => (float[N, 4] p) {{ {branch} }}> \n y = Exp(a) }}",
        {k: CONSTANTS[k] for k in "wb"},
    )
    assert _value(prepared, "after_activation") == "v"
    assert _value(prepared, "before_activation") == "v"


def test_both_activations_of_a_product_are_observed(make: Make) -> None:
    prepared = make(
        "g (float[2, 3, 4] q, float[2, 4, 3] k) => (float[A, B, C] y)"
        "{ l = Neg(k) \n v = MatMul(q, l) \n y = Exp(v) }"
    )
    node = next(n for n in prepared.model.graph if n.op_type == "MatMul")
    site = Site("@matmul:/0", str(node.name), "MatMul", "", (), 0, 0, "q", "v", second="l")
    assert observed_values(prepared.model, (site,)) == ("q", "l", "v")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("v = MatMul(x, w) \n a = Add(v, x)", "v"),  # a residual is no bias
        ("v = MatMul(x, w) \n a = Softmax(v)", "v"),
        ("v = MatMul(x, w) \n s = Relu(v) \n a = Add(s, v)", "a"),  # closes again: one function
        ("v = MatMul(x, w) \n s = Relu(v) \n t = Tanh(v) \n a = Concat<axis = 0>(s, t)", "v"),
        ("v = MatMul(x, w) \n s = Sigmoid(v) \n a = Mul(x, s)", "s"),  # a gate for something else
        ("v = MatMul(x, w) \n s = Relu(v) \n a = Sigmoid(s)", "s"),  # one function only
        ("v = MatMul(x, w) \n s = Relu(v) \n a = Mul(s, c)", "s"),
        ("v = MatMul(x, w) \n a = Mul(v, c)", "v"),
        ("u = MatMul(x, w) \n v = Add(u, b) \n a = Add(v, u)", "u"),  # used beside the bias
        ("v = MatMul(x, w) \n a = PRelu(v, x)", "v"),  # the slope is no constant
    ],
)
def test_what_is_not_followed(make: Make, body: str, expected: str) -> None:
    assert _value(_model(make, body), "after_activation") == expected


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",
        "v = MatMul(x, w) \n y = Add(v, b)",
        "v = MatMul(x, w) \n y = Softmax(v)",
        "v = MatMul(x, w) \n y = Sigmoid(v)",
        "u = MatMul(x, w) \n v = Add(u, b) \n t = Transpose(v) \n y = Softmax(t)",
    ],
)
def test_a_head_stays_in_float(make: Make, body: str) -> None:
    prepared = _model(make, body, end="")
    assert _value(prepared, "after_activation") is None
    if "Add" not in body:
        assert _value(prepared, "before_activation") is None


def test_an_intermediate_graph_output_is_not_passed(make: Make) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] s, float[A, B] y)"
        "{ v = MatMul(x, w) \n s = Relu(v) \n y = ReduceMax(s) }",
        {"w": CONSTANTS["w"]},
    )
    # s is returned as well as used; what is quantized would be returned.
    (site,) = find_sites(prepared).sites
    value = output_value(prepared.model, site, "after_activation")
    assert value != "s"


def test_only_float_values_are_observed(make: Make) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] y)"
        "{ v = MatMul(x, w) \n r = Relu(v) \n u = MatMul(r, w) \n s = Tanh(u) \n y = Exp(s) }",
        {"w": CONSTANTS["w"]},
    )
    sites = find_sites(prepared).sites
    assert observed_values(prepared.model, sites) == ("x", "v", "r", "u", "s")


def test_the_recognisers_functions(ocr_model: Path) -> None:
    prepared = prepare(load(ocr_model), 13)
    sites = find_sites(prepared).sites
    ends = [output_value(prepared.model, s, "after_activation") for s in sites]
    producers = {str(v.name): n.op_type for n in prepared.model.graph for v in n.outputs}
    kinds = [producers[v] for v in ends if v]
    expected = (
        {"Relu": 10, "HardSigmoid": 5, "Mul": 18}
        if "rec" in ocr_model.name
        else {"Relu": 20, "HardSigmoid": 13, "Mul": 13}
    )
    assert {k: kinds.count(k) for k in expected} == expected
    assert ends.count(None) == 1  # the head


def test_names_do_not_depend_on_the_order_of_sites(ocr_model: Path) -> None:
    prepared = prepare(load(ocr_model), 13)
    sites = find_sites(prepared).sites
    forward = observed_values(prepared.model, sites)
    assert sorted(forward) == sorted(observed_values(prepared.model, sites[::-1]))
    assert len(set(forward)) == len(forward)
