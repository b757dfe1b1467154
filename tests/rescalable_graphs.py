"""Graphs in which channels can be rescaled, and graphs in which they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def _rand(*shape: int) -> Floats:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


SHAPES = {
    "heads": np.array([0, 0, 2, 3]),
    "merged": np.array([0, 0, 6]),
    "flat": np.array([-1, 24]),
}


@dataclass(frozen=True)
class Case:
    """A graph from ``x`` to ``y`` and what is to be found in it.

    ``pairs``: kind, value, number of channels, ids of the consumers. ``axes``: the values that are
    divided, with the axis that holds their channels.
    """

    shape: str
    nodes: str
    weights: Mapping[str, Floats]
    pairs: tuple[tuple[str, str, int, tuple[str, ...]], ...] = ()
    axes: Mapping[str, int | None] = field(default_factory=dict)
    opset: int = 17

    @property
    def text(self) -> str:
        """The graph in ONNX text."""
        return f"g (float[{self.shape}] x) => (float[] y) {{{self.nodes}}}"

    @property
    def initializers(self) -> dict[str, NDArray[np.generic]]:
        """Weights, and the shapes that the nodes name."""
        return {**self.weights, **{k: v for k, v in SHAPES.items() if k in self.nodes}}

    def x(self, seed: int = 0) -> Floats:
        """An input."""
        sizes = [int(d) if d.isdigit() else 5 for d in self.shape.split(",")]
        return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


CONV = {"v": _rand(6, 3, 3, 3), "w": _rand(5, 6, 1, 1)}
DENSE = {"v": _rand(4, 6), "w": _rand(6, 5)}
FOUND = {
    "convolutions": Case(
        "N,3,8,8",
        "a = Conv(x, v, b) c = Relu(a) y = Conv(c, w)",
        {**CONV, "b": _rand(6)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "c": -3},
    ),
    "chain with groups": Case(
        "N,4,8,8",
        """a = Conv<group = 2>(x, v) c = LeakyRelu(a) d = Conv<group = 6>(c, u)
        e = PRelu(d, s) f = MaxPool<kernel_shape = [2, 2]>(e) y = Conv<group = 3>(f, w)""",
        {
            "v": _rand(6, 2, 3, 3),
            "u": _rand(12, 1, 3, 3),
            "s": _rand(12, 1, 1),
            "w": _rand(9, 4, 1, 1),
        },
        (("linear", "a", 6, ("u",)), ("linear", "d", 12, ("w",))),
        {"a": -3, "c": -3, "d": -3, "e": -3, "f": -3},
    ),
    "transposed convolutions": Case(
        "N,4,8",
        "a = ConvTranspose<group = 2>(x, v) c = Relu(a) y = ConvTranspose<group = 3>(c, w)",
        {"v": _rand(4, 3, 2), "w": _rand(6, 2, 2)},
        (("linear", "a", 6, ("w",)),),
        {"a": -2, "c": -2},
    ),
    "gemms": Case(
        "N,4",
        "a = Gemm<transB = 1>(x, v, b) c = PRelu(a, s) y = Gemm(c, w)",
        {"v": _rand(6, 4), "b": _rand(6), "s": _rand(1), "w": _rand(6, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -1, "c": -1},
    ),
    "weight on the left": Case(
        "N,4,7",
        "a = MatMul(v, x) c = Add(a, b) d = Relu(c) y = MatMul(w, d)",
        {"v": _rand(6, 4), "b": _rand(6, 1), "w": _rand(5, 6)},
        (("linear", "a", 6, ("w",)),),
        {"a": -2, "c": -2, "d": -2},
    ),
    "normalization": Case(
        "N,7,4",
        "a = LayerNormalization(x, g, b) c = MatMul(a, w) d = MatMul(a, v) y = Mul(c, d)",
        {"g": _rand(4), "b": _rand(4), "w": _rand(4, 5), "v": _rand(4, 5)},
        (("norm", "a", 4, ("w", "v")),),
        {"a": -1},
    ),
    "normalization in pieces": Case(
        "N,7,4",
        """m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Mul(d, d) r = ReduceMean<axes = [-1]>(q)
        s = Sqrt(r) n = Div(d, s) a = Mul(n, g) c = Add(b, a) y = MatMul(c, w)""",
        {"g": _rand(4), "b": _rand(4), "w": _rand(4, 5)},
        (("norm", "a", 4, ("w",)),),
        {"a": -1, "c": -1},
    ),
    "normalizations of images": Case(
        "N,4,6,6",
        """a = BatchNormalization(x, g, b, m, r) c = Relu(a) d = Conv(c, w)
        e = InstanceNormalization(d, h, i) y = Conv(e, u)""",
        {
            "g": _rand(4),
            "b": _rand(4),
            "m": _rand(4),
            "r": np.abs(_rand(4)) + 1,
            "w": _rand(5, 4, 3, 3),
            "h": _rand(5),
            "i": _rand(5),
            "u": _rand(3, 5, 1, 1),
        },
        (("norm", "a", 4, ("w",)), ("norm", "e", 5, ("u",))),
        {"a": -3, "c": -3, "e": -3},
    ),
    "gate": Case(
        "N,7,4",
        "g = MatMul(x, u) s = Sigmoid(g) h = Mul(g, s) a = MatMul(x, v) p = Mul(h, a) "
        "y = MatMul(p, w)",
        {"u": _rand(4, 6), **DENSE},
        (("linear", "a", 6, ("w",)),),
        {"a": -1, "p": -1},
    ),
    "two linear sides of a gate": Case(
        "N,7,4",
        "a = MatMul(x, v) c = MatMul(x, u) d = Relu(a) e = Mul(d, c) y = MatMul(e, w)",
        {"u": _rand(4, 6), **DENSE},
        (("linear", "c", 6, ("w",)),),
        {"c": -1, "e": -1},
    ),
    "classifier behind a pool": Case(
        "N,3,8,8",
        "a = Conv(x, v) c = Relu(a) d = GlobalAveragePool(c) e = Flatten(d) y = Gemm(e, w)",
        {"v": _rand(6, 3, 3, 3), "w": _rand(6, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "c": -3, "d": -3, "e": -1},
    ),
    "classifier behind a mean": Case(
        "N,3,H,W",
        "a = Conv(x, v) d = ReduceMean<axes = [2, 3], keepdims = 0>(a) y = MatMul(d, w)",
        {"v": _rand(6, 3, 3, 3), "w": _rand(6, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "d": -1},
    ),
    "flattened pixels": Case(
        "N,3,4,4",
        "a = Conv(x, v) c = Relu(a) d = Flatten(c) y = Gemm(d, w)",
        {"v": _rand(6, 3, 3, 3), "w": _rand(24, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "c": -3, "d": -1},
    ),
    "channels last": Case(
        "N,3,H,W",
        "a = Conv(x, v) c = Transpose<perm = [0, 2, 3, 1]>(a) y = MatMul(c, w)",
        {"v": _rand(6, 3, 3, 3), "w": _rand(6, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "c": -1},
    ),
    "values of an attention": Case(
        "N,S,4",
        """q = MatMul(x, u) r = Reshape(q, heads) k = Transpose<perm = [0, 2, 1, 3]>(r)
        l = Transpose<perm = [0, 2, 3, 1]>(r) s = MatMul(k, l) p = Softmax(s)
        a = MatMul(x, v) h = Reshape(a, heads) t = Transpose<perm = [0, 2, 1, 3]>(h)
        o = MatMul(p, t)
        z = Transpose<perm = [0, 2, 1, 3]>(o) m = Reshape(z, merged) y = MatMul(m, w)""",
        {"u": _rand(4, 6), **DENSE},
        (("linear", "a", 6, ("w",)),),
        {"a": -1, "h": None, "t": None, "o": None, "z": None, "m": -1},
    ),
    "pixels flattened behind channels last": Case(
        "N,3,4,4",
        "a = Conv(x, v) c = Transpose<perm = [0, 2, 3, 1]>(a) d = Reshape(c, flat) y = Gemm(d, w)",
        {"v": _rand(6, 3, 3, 3), "w": _rand(24, 5)},
        (("linear", "a", 6, ("w",)),),
        {"a": -3, "c": -1, "d": -1},
    ),
    "constants on either side": Case(
        "N,4",
        """a = MatMul(x, v) c = Sub(b, a) d = Relu(c) e = Mul(two, d) f = Sub(e, b) g = Add(one, f)
        h = Div(g, two) y = MatMul(h, w)""",
        {"b": _rand(6), "one": _rand(1), "two": np.array(2, np.float32), **DENSE},
        (("linear", "a", 6, ("w",)),),
        dict.fromkeys("acdefgh", -1),
    ),
    "root mean square": Case(
        "N,7,4",
        "a = RMSNormalization(x, g) y = MatMul(a, w)",
        {"g": _rand(4), "w": _rand(4, 5)},
        (("norm", "a", 4, ("w",)),),
        {"a": -1},
        opset=23,
    ),
    "groups of channels": Case(
        "N,4,6,6",
        "a = GroupNormalization<num_groups = 2>(x, g, b) y = Conv(a, w)",
        {"g": _rand(4), "b": _rand(4), "w": _rand(5, 4, 1, 1)},
        (("norm", "a", 4, ("w",)),),
        {"a": -3},
        opset=21,
    ),
    "a norm that a residual reads, one that none does": Case(
        "N,7,4",
        """a = LayerNormalization(x, g) c = MatMul(a, w) r = Add(a, c) d = LayerNormalization(r, g)
        e = MatMul(d, v) f = Softmax(e) y = Add(r, f)""",
        {"g": _rand(4), "w": _rand(4, 4), "v": _rand(4, 4)},
        (("norm", "d", 4, ("v",)),),
        {"d": -1},
    ),
}

_OTHERS: dict[str, tuple[str, str, dict[str, Floats]]] = {
    "clipped": ("N,3,8,8", "a = Conv(x, v) c = Clip(a, lo, hi) y = Conv(c, w)", CONV),
    "another function": ("N,3,8,8", "a = Conv(x, v) c = Sigmoid(a) y = Conv(c, w)", CONV),
    "read by a residual": (
        "N,3,8,8",
        "a = Conv(x, v) c = Conv(a, w) y = Add(a, c)",
        {"v": _rand(6, 3, 1, 1), "w": _rand(6, 6, 1, 1)},
    ),
    "read twice by one node": ("N,4", "a = MatMul(x, v) c = Mul(a, a) y = MatMul(c, w)", DENSE),
    "gated by itself": (
        "N,4",
        "a = MatMul(x, v) c = Relu(a) d = Mul(a, c) y = MatMul(d, w)",
        DENSE,
    ),
    "read by no site": ("N,4", "a = MatMul(x, v) y = Relu(a)", DENSE),
    "one of two consumers is no site": (
        "N,4",
        "a = MatMul(x, v) c = MatMul(a, w) d = Softmax(a) e = MatMul(d, u) y = Add(c, e)",
        {**DENSE, "u": _rand(6, 5)},
    ),
    "pooled over channels": (
        "N,6,6",
        "a = MatMul(v, x) c = ReduceMean<axes = [1], keepdims = 1>(a) y = MatMul(w, c)",
        {"v": _rand(4, 6), "w": _rand(5, 1)},
    ),
    "summed by a product of activations": (
        "6,4",
        "a = MatMul(x, v) q = MatMul(x, u) t = Transpose(q) s = Softmax(t) c = MatMul(a, s) "
        "y = MatMul(c, w)",
        {**DENSE, "u": _rand(4, 6)},
    ),
    "normalized over channels": ("N,4", "a = MatMul(x, v) c = Softmax(a) y = MatMul(c, w)", DENSE),
    "scale of a channel and position": (
        "N,7,4",
        "a = Mul(x, g) y = MatMul(a, w)",
        {"g": _rand(7, 4), "w": _rand(4, 5)},
    ),
    "one scale": ("N,7,4", "a = Mul(x, g) y = MatMul(a, w)", {"g": _rand(1), "w": _rand(4, 5)}),
    "bias of each position": (
        "N,7,4",
        "a = MatMul(x, v) c = Add(a, b) y = MatMul(c, w)",
        {**DENSE, "b": _rand(7, 1)},
    ),
    "bias computed at run time": (
        "N,4",
        "b = MatMul(x, u) a = Gemm(x, v, b) y = Gemm(a, w)",
        {**DENSE, "u": _rand(4, 6)},
    ),
    "weight of two producers": (
        "N,4",
        "a = MatMul(x, v) c = MatMul(a, w) d = MatMul(x, v) e = Softmax(d) y = Mul(c, e)",
        {"v": _rand(4, 5), "w": _rand(5, 5)},
    ),
    "weight of two consumers": (
        "N,4",
        "a = MatMul(x, v) c = MatMul(a, w) d = Sigmoid(x) e = MatMul(d, w) y = Add(c, e)",
        {"v": _rand(4, 4), "w": _rand(4, 4)},
    ),
    "pooled along the channels": (
        "N,7,4",
        "a = MatMul(x, v) c = AveragePool<kernel_shape = [3], pads = [1, 1]>(a) y = MatMul(c, w)",
        DENSE,
    ),
    "flattened pixels of free sizes": (
        "N,3,H,W",
        "a = Conv(x, v) c = Flatten(a) y = Gemm(c, w)",
        {**CONV, "w": _rand(24, 5)},
    ),
    "channels over several axes": (
        "N,S,4",
        "a = MatMul(x, v) c = Reshape(a, heads) y = MatMul(c, w)",
        {**DENSE, "w": _rand(3, 5)},
    ),
}
LIMITS = {"lo": np.array(0, np.float32), "hi": np.array(6, np.float32)}
NOT_FOUND = {
    name: Case(shape, nodes, {**weights, **(LIMITS if "lo" in nodes else {})})
    for name, (shape, nodes, weights) in _OTHERS.items()
}
