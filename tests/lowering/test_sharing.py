from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bitworth.lowering.sharing import shared_groups
from bitworth.subject.prepare import PreparedModel

Make = Callable[..., PreparedModel]
Groups = Callable[..., tuple[frozenset[str], ...]]

CONSTANTS = {
    "w": np.ones((4, 4), np.float32),
    "shape": np.array([-1, 2, 2], np.int64),
    "one": np.array([1], np.int64),
    "zero": np.array([0], np.int64),
    "two": np.array([2], np.int64),
    "slope": np.ones(4, np.float32),
}


@pytest.fixture
def groups(make: Make) -> Groups:
    """Shared groups of a body between x, y, z: float[4, 4] and an end that reads ``r``."""

    def find(body: str, values: str, *ops: str, end: str = "r") -> tuple[frozenset[str], ...]:
        used = {k: a for k, a in CONSTANTS.items() if k in body}
        text = (
            "g (float[4, 4] x, float[4, 4] y, float[4, 4] z, bool t) => (float[A, B] e)"
            f"{{ {body} \n e = Exp({end}) }}"
        )
        model = make(text, used, opset=13).model
        return shared_groups(model, values.split(), ops or ("Add", "Concat"))

    return find


def _sets(*groups: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(g.split()) for g in groups)


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Max", "Concat<axis = 0>", "Sum"])
def test_the_inputs_of_one_node(groups: Groups, op: str) -> None:
    kind = op.split("<")[0]
    body = f"a = MatMul(x, w) \n b = Relu(y) \n r = {op}(a, b)"
    assert groups(body, "a b r", kind) == _sets("a b r" if kind == "Concat" else "a b")
    assert groups(body, "a b r", "Pow") == ()
    # One alone shares with nobody.
    assert groups(body, "a", kind) == ()
    assert groups(body, "", kind) == ()


@pytest.mark.parametrize(
    "keeping",
    [
        "k = Transpose(a)",
        "k = Reshape(a, shape)",
        "k = Flatten(a)",
        "k = Unsqueeze(a, one)",
        "h = Unsqueeze(a, one) \n k = Squeeze(h, one)",
        "k = Slice(a, zero, one)",
        "k, l = Split(a)",
        "h = Unsqueeze(a, zero) \n k = MaxPool<kernel_shape = [2]>(h)",
        "h = Transpose(a) \n g = Reshape(h, shape) \n k = Flatten(g)",
    ],
)
def test_what_keeps_numbers_is_seen_through(groups: Groups, keeping: str) -> None:
    extra = "\n lost = Neg(l)" if " l " in keeping else ""
    body = f"a = MatMul(x, w) \n b = Relu(y) \n {keeping}{extra} \n r = Concat<axis = 0>(k, b)"
    assert groups(body, "a b", "Concat") == _sets("a b")
    assert groups(body, "a k b", "Concat") == _sets("a k b")


@pytest.mark.parametrize(
    "changing",
    ["k = Relu(a)", "k = Sigmoid(a)", "k = Mul(a, slope)", "k = MatMul(a, w)", "k = Softmax(a)"],
)
def test_what_changes_numbers_is_not(groups: Groups, changing: str) -> None:
    body = f"a = MatMul(x, w) \n b = Relu(y) \n {changing} \n r = Add(k, b)"
    assert groups(body, "a b", "Add") == ()
    assert groups(body, "a k b", "Add") == _sets("k b")


def test_nodes_that_read_one_value_share_its_scale(groups: Groups) -> None:
    body = (
        "a = Relu(x) \n b = Relu(y) \n c = Relu(z) \n p = Add(a, b) \n q = Concat<axis = 0>(c, b)"
        "\n n = Neg(p) \n r = MatMul(q, n)"
    )
    assert groups(body, "a b c", end="r") == _sets("a b c")
    assert groups(body, "a b c", "Add") == _sets("a b")
    # b itself need not be quantized to hold the others together.
    assert groups(body, "a c") == _sets("a c")


def test_groups_are_apart_and_in_the_order_of_the_graph(groups: Groups) -> None:
    body = (
        "a = Relu(x) \n b = Relu(y) \n c = Relu(z) \n d = Neg(z) \n q = Concat<axis = 0>(c, d)"
        "\n p = Add(a, b) \n n = Neg(p) \n r = MatMul(q, n)"
    )
    assert groups(body, "d c b a") == _sets("a b", "c d")
    assert groups(body, "a b c d q p") == _sets("a b", "c d q")


def test_a_sum_is_no_part_of_its_group_but_of_the_next(groups: Groups) -> None:
    body = "a = Relu(x) \n b = Neg(y) \n s = Add(a, b) \n c = Neg(z) \n r = Add(s, c)"
    assert groups(body, "a b s c") == _sets("a b", "s c")


def test_concats_of_concats(groups: Groups) -> None:
    body = (
        "a = Relu(x) \n b = Neg(y) \n k = Concat<axis = 0>(a, b) \n c = Neg(z)"
        "\n m = Transpose(k) \n t2 = Transpose(c) \n r = Concat<axis = 1>(m, t2)"
    )
    assert groups(body, "a b c r", "Concat") == _sets("a b c r")
    assert groups(body, "a b c r", "Add") == ()


def test_graph_inputs_belong_to_groups_and_constants_do_not(groups: Groups) -> None:
    assert groups("r = Add(x, y)", "x y") == _sets("x y")
    assert groups("a = Add(x, slope) \n r = Add(y, slope)", "x y a") == ()


def test_bodies_bind_nothing(groups: Groups) -> None:
    body = (
        "a = Relu(x) \n b = Neg(y) \n r = If (t) <"
        "then_branch = h () => (float[4, 4] p) { p = Add(a, b) },"
        "else_branch = l () => (float[4, 4] q) { q = Sub(a, b) }>"
    )
    assert groups(body, "a b") == ()


def test_operators_of_other_domains_bind_nothing(groups: Groups, make: Make) -> None:
    model = make("g (float[4] x, float[4] y) => (float[4] z) { z = Add(x, y) }", opset=13).model
    clone = model.clone()
    (node,) = clone.graph
    node.domain = "com.example"
    assert shared_groups(model, ["x", "y"], ["Add"]) == _sets("x y")
    assert shared_groups(clone, ["x", "y"], ["Add"]) == ()
