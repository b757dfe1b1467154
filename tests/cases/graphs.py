"""Random graphs, of the operators and the wiring that real models have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


class Choose(Protocol):
    """Picks one of several; by hypothesis, or by a seeded generator."""

    def __call__(self, options: Sequence[Any], /) -> Any: ...


@dataclass(frozen=True)
class Value:
    """A float value: (N, C, H, W) or (N, K), with N free."""

    name: str
    dims: tuple[int, ...]

    @property
    def image(self) -> bool:
        return len(self.dims) == 3


@dataclass(frozen=True)
class RandomGraph:
    """A model and one sample for it."""

    model: onnx.ModelProto
    sample: dict[str, Array]

    def write(self, path: Path) -> Path:
        onnx.save(self.model, path)
        return path


@dataclass
class _Builder:
    choose: Choose
    opset: int
    half: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)

    @property
    def dtype(self) -> Any:
        return np.float16 if self.half else np.float32

    @property
    def onnx_type(self) -> int:
        return int(TensorProto.FLOAT16 if self.half else TensorProto.FLOAT)

    def emit(
        self, op: str, inputs: Sequence[str], dims: tuple[int, ...], **attributes: object
    ) -> Value:
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op, list(inputs), [name], name=f"{op}_{len(self.nodes)}")
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.nodes.append(node)
        self.values.append(Value(name, dims))
        return self.values[-1]

    def constant(self, array: Array) -> str:
        name = f"k{len(self.weights)}"
        self.weights[name] = array
        return name

    def weight(self, shape: tuple[int, ...], axis: int) -> str:
        """A weight whose output channels differ in range; one of that shape may be used again."""
        known = [n for n, w in self.weights.items() if w.shape == shape and w.dtype == self.dtype]
        if known and self.choose([True, False]):
            return str(self.choose(known))
        rng = np.random.default_rng((len(self.weights), *shape))
        fan_in = max(1, int(np.prod(shape)) // shape[axis])
        spread = np.geomspace(1.0, 8.0, shape[axis]).reshape(
            [-1 if i == axis else 1 for i in range(len(shape))]
        )
        array = rng.standard_normal(shape) * spread / (2 * np.sqrt(fan_in))
        if self.choose([True, False, False]):
            array[(slice(None),) * axis + (0,)] = 0  # a dead channel
        return self.constant(array.astype(self.dtype))

    def bias(self, channels: int) -> list[str]:
        if self.choose([True, False]):
            return []
        rng = np.random.default_rng((len(self.weights), channels))
        return [self.constant((rng.standard_normal(channels) / 4).astype(self.dtype))]

    def pick(self, fits: Callable[[Value], bool]) -> Value | None:
        # Late values more often: graphs get deep, and still branch.
        found = [v for v in self.values if fits(v)]
        return self.choose([*found[-1:], *found[-2:], *found]) if found else None


def _conv(b: _Builder) -> None:
    if (x := b.pick(lambda v: v.image)) is None:
        return
    channels, height, width = x.dims
    kernel = b.choose([1, 3]) if min(height, width) >= 3 else 1
    groups = b.choose([1, 1, channels, 2 if channels % 2 == 0 else 1])
    out = channels if groups > 1 else b.choose([2, 4, channels])
    w = b.weight((out, channels // groups, kernel, kernel), 0)
    pad = b.choose([0, kernel // 2])
    dims = (out, height + 2 * pad - kernel + 1, width + 2 * pad - kernel + 1)
    b.emit("Conv", [x.name, w, *b.bias(out)], dims, pads=[pad] * 4, group=groups)


def _conv_transpose(b: _Builder) -> None:
    if (x := b.pick(lambda v: v.image and max(v.dims[1:]) <= 4)) is None:
        return
    channels, height, width = x.dims
    groups = b.choose([1, 2 if channels % 2 == 0 else 1])
    out = b.choose([2, 3])
    stride = b.choose([1, 2])
    w = b.weight((channels, out, 2, 2), 1)
    dims = (out * groups, (height - 1) * stride + 2, (width - 1) * stride + 2)
    b.emit(
        "ConvTranspose", [x.name, w, *b.bias(out * groups)], dims, strides=[stride] * 2,
        group=groups,
    )  # fmt: skip


def _gemm(b: _Builder) -> None:
    if (x := b.pick(lambda v: not v.image)) is None:
        return
    (k,) = x.dims
    out, turned = b.choose([3, 5, k if k < 12 else 5]), b.choose([0, 1])
    w = b.weight((out, k), 0) if turned else b.weight((k, out), 1)
    b.emit("Gemm", [x.name, w, *b.bias(out)], (out,), transB=turned)


def _matmul(b: _Builder) -> None:
    """On a matrix, or along the last axis of an image; the weight may stand on the left."""
    if (x := b.pick(lambda v: True)) is None:
        return
    if x.image and b.choose([True, False]):
        out = b.choose([2, 4])
        b.emit("MatMul", [b.weight((out, x.dims[1]), 0), x.name], (x.dims[0], out, x.dims[2]))
        return
    k = x.dims[-1]
    out = b.choose([3, 4, k if k < 12 else 4])
    w = b.weight((k, out), 1)
    if b.choose([True, False, False]):
        # As exporters write it: stored the other way round, behind a Transpose.
        stored = b.constant(np.ascontiguousarray(b.weights[w].T))
        w = f"{stored}t{len(b.nodes)}"
        b.nodes.append(helper.make_node("Transpose", [stored], [w], perm=[1, 0]))
    b.emit("MatMul", [x.name, w], (*x.dims[:-1], out))


def _add(b: _Builder) -> None:
    x = b.pick(lambda v: True)
    assert x is not None
    y = b.pick(lambda v: v.dims == x.dims)
    if y is None or b.choose([True, False, False]):
        shape = (x.dims[0], 1, 1) if x.image else x.dims
        rng = np.random.default_rng((len(b.weights), *shape))
        b.emit("Add", [x.name, b.constant(rng.standard_normal(shape).astype(b.dtype))], x.dims)
    else:
        b.emit("Add", [x.name, y.name], x.dims)


def _concat(b: _Builder) -> None:
    x = b.pick(lambda v: v.dims[0] <= 8)
    if x is None:
        return
    y = b.pick(lambda v: len(v.dims) == len(x.dims) and v.dims[1:] == x.dims[1:])
    assert y is not None
    if x.dims[0] + y.dims[0] <= 12:
        b.emit("Concat", [x.name, y.name], (x.dims[0] + y.dims[0], *x.dims[1:]), axis=1)


def _reshape(b: _Builder) -> None:
    x = b.pick(lambda v: (np.prod(v.dims) <= 64) if v.image else v.dims[0] % 4 == 0)
    if x is None:
        return
    dims = (int(np.prod(x.dims)),) if x.image else (x.dims[0] // 4, 2, 2)
    if x.image and b.choose([True, False]):
        b.emit("Flatten", [x.name], dims)
        return
    target = b.constant(np.array([0, -1] if x.image else [0, *dims], np.int64))
    b.emit("Reshape", [x.name, target], dims)


def _transpose(b: _Builder) -> None:
    if (x := b.pick(lambda v: v.image)) is not None:
        b.emit("Transpose", [x.name], (x.dims[0], x.dims[2], x.dims[1]), perm=[0, 1, 3, 2])


def _activation(b: _Builder) -> None:
    x = b.pick(lambda v: True)
    assert x is not None
    kind = b.choose(["Relu", "Clip", "HardSwish" if b.opset >= 14 else "Relu"])
    bounds = []
    if kind == "Clip":
        bounds = [b.constant(np.array(v, b.dtype)) for v in b.choose([(0, 6), (-1, 1)])]
    b.emit(kind, [x.name, *bounds], x.dims)


def _gather(b: _Builder) -> None:
    """Indices are an int64 input."""
    if (x := b.pick(lambda v: 2 <= v.dims[0] <= 8)) is not None:
        b.emit("Gather", [x.name, "i"], (3, *x.dims[1:]), axis=1)


def _if(b: _Builder) -> None:
    """Both bodies read an outer value; one of them may read a weight that is outside, too."""
    x = b.pick(lambda v: True)
    assert x is not None
    out = f"b{len(b.nodes)}"
    then, shared = [x.name], "Relu"
    if not x.image and x.dims[0] <= 6 and b.choose([True, False]):
        then, shared = [x.name, b.weight((x.dims[0], x.dims[0]), 1)], "MatMul"
    result = [helper.make_tensor_value_info(f"{out}{s}", b.onnx_type, None) for s in "te"]
    bodies = [
        helper.make_graph(
            [helper.make_node(op, inputs, [r.name], name=f"{op}_{r.name}")],
            f"body_{r.name}",
            [],
            [r],
        )
        for op, inputs, r in (
            (shared, then, result[0]),
            (b.choose(["Neg", "Relu"]), [x.name], result[1]),
        )
    ]
    b.emit("If", ["c"], x.dims, then_branch=bodies[0], else_branch=bodies[1])


_STEPS = (
    _conv, _conv, _conv, _conv_transpose, _gemm, _gemm, _matmul, _matmul, _add, _concat, _reshape,
    _transpose, _activation, _activation, _gather, _if,
)  # fmt: skip


def random_graph(choose: Choose, *, float32: bool = False) -> RandomGraph:
    """A graph of 4 to 9 steps over an image, a matrix, a half precision matrix, indices, a flag.

    Inputs that no step came to read are left out.
    """
    opset = choose([11, 13, 17, 19])
    b = _Builder(choose, opset, half=not float32 and choose([True, False, False]))
    batch = choose([1, 2, 3])
    channels, height, width = choose([2, 3, 4]), choose([3, 4]), choose([3, 5])
    offered = {
        "x": (b.onnx_type, ("N", channels, height, width)),
        "m": (b.onnx_type, ("N", 6)),
        "h": (int(TensorProto.FLOAT16), ("N", 8)),
        "i": (int(TensorProto.INT64), (3,)),
        "c": (int(TensorProto.BOOL), ()),
    }
    b.values += [Value("m", (6,)), Value("x", (channels, height, width))]
    if choose([True, False, False]):
        b.emit("Cast", ["h"], (8,), to=b.onnx_type)
    for _ in range(choose(range(4, 10))):
        choose(_STEPS)(b)
    if all(n.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") for n in b.nodes):
        _matmul(b)
    return _finished(b, batch, offered)


def _finished(
    b: _Builder, batch: int, offered: dict[str, tuple[int, tuple[str | int, ...]]]
) -> RandomGraph:
    inner = [n for node in b.nodes for a in node.attribute for n in a.g.node]
    read = {name for node in (*b.nodes, *inner) for name in node.input}
    made = [v for v in b.values if v.name.startswith("v")]
    outputs = [v for v in made if v.name not in read] + [
        v for v in made[:-1] if v.name in read and b.choose([True, *[False] * 5])
    ]
    inputs = {name: spec for name, spec in offered.items() if name in read}
    graph = helper.make_graph(
        b.nodes,
        "random",
        [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(v.name, b.onnx_type, ["N", *v.dims]) for v in outputs],
        [numpy_helper.from_array(a, n) for n, a in b.weights.items() if n in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=9)
    rng = np.random.default_rng(len(b.nodes))
    sample: dict[str, Array] = {}
    for name, (kind, shape) in inputs.items():
        dims = [batch if d == "N" else int(d) for d in shape]
        if kind == TensorProto.INT64:
            sample[name] = np.array([1, 0, 1])
        elif kind == TensorProto.BOOL:
            sample[name] = np.array(bool(b.choose([True, False])))
        else:
            floats = rng.standard_normal(dims)
            sample[name] = floats.astype(np.float16 if kind == TensorProto.FLOAT16 else np.float32)
    return RandomGraph(model, sample)
