"""Small float graphs of all kinds, with weights and inputs, as ONNX text without its header."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]


def rand(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


IMAGE: Arrays = {"x": rand(1, 4, 6, 6)}
ROWS: Arrays = {"x": rand(2, 3, 8)}
IDS: Arrays = {"i": np.array([[1, 5, 2]], np.int64)}
IN = "g (float[1, 4, 6, 6] x) => (float[A, B, C, D] y)"
ROW = "g (float[2, 3, 8] x) => (float[A, B, C] y)"

# Graph, weights, inputs.
KINDS: dict[str, tuple[str, Arrays, Arrays]] = {
    "Conv": (f"{IN} {{ y = Conv(x, w, b) }}", {"w": rand(5, 4, 3, 3), "b": rand(5)}, IMAGE),
    "ConvTranspose": (f"{IN} {{ y = ConvTranspose(x, w) }}", {"w": rand(4, 3, 2, 2)}, IMAGE),
    "Gemm": (
        "g (float[2, 8] x) => (float[2, 4] y) { y = Gemm<transB = 1>(x, w, b) }",
        {"w": rand(4, 8), "b": rand(4)},
        {"x": rand(2, 8)},
    ),
    "MatMul": (f"{ROW} {{ y = MatMul(x, w) }}", {"w": rand(8, 5)}, ROWS),
    "LayerNormalization": (
        f"{ROW} {{ y = LayerNormalization(x, s, b) }}", {"s": rand(8), "b": rand(8)}, ROWS,
    ),
    "LayerNormalization with its mean": (
        f"{ROW} {{ v, m = LayerNormalization(x, s) \n y = Sub(v, m) }}", {"s": rand(8)}, ROWS,
    ),
    "BatchNormalization": (
        f"{IN} {{ r = Relu(x) \n y = BatchNormalization(r, s, s, s, v) }}",
        {"s": rand(4), "v": np.abs(rand(4)) + 1}, IMAGE,
    ),
    "Softmax": (f"{ROW} {{ y = Softmax(x) }}", {}, ROWS),
    "Pool": (
        f"{IN} {{ a = MaxPool<kernel_shape = [2, 2]>(x)"
        " \n y = AveragePool<kernel_shape = [2, 2]>(a) }", {}, IMAGE,
    ),
    "Resize with scales": (
        f'{IN} {{ y = Resize<mode = "linear">(x, , s) }}',
        {"s": np.array([1, 1, 2, 2], np.float32)}, IMAGE,
    ),
    "Resize with sizes": (
        f'{IN} {{ y = Resize<mode = "nearest">(x, , , s) }}',
        {"s": np.array([1, 4, 9, 12], np.int64)}, IMAGE,
    ),
    "Resize to a computed size": (
        f'{IN} {{ d = Shape(x) \n f = Cast<to = 1>(d) \n g = Mul(f, s) \n h = Cast<to = 7>(g)'
        '\n y = Resize<mode = "nearest">(x, , , h) }',
        {"s": np.array([1, 1, 1.5, 1.5], np.float32)}, IMAGE,
    ),
    "Resize with a region": (
        f'{IN} {{ y = Resize<mode = "linear",'
        ' coordinate_transformation_mode = "tf_crop_and_resize">(x, r, , s) }',
        {
            "s": np.array([1, 4, 5, 5], np.int64),
            "r": np.array([0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9], np.float32),
        },
        IMAGE,
    ),
    "Where with a mask": (
        "g (float[2, 4, 4] x, bool[2, 4, 4] m) => (float[A, B, C] y)"
        "{ v = Where(m, x, low) \n y = Softmax(v) }",
        {"low": np.array(np.finfo(np.float32).min)},
        {"x": rand(2, 4, 4), "m": rand(2, 4, 4) > 0.3},
    ),
    "a mask of numbers": (
        "g (float[1, 4] x, int64[1, 4] m) => (float[A, B] y)"
        "{ f = Cast<to = 1>(m) \n n = Sub(one, f) \n a = Mul(n, low) \n v = Add(x, a)"
        "\n y = Softmax(v) }",
        {"one": np.float32(1), "low": np.array(np.finfo(np.float32).min)},
        {"x": rand(1, 4), "m": np.array([[1, 0, 1, 0]], np.int64)},
    ),
    "Gather": (
        "g (int64[1, 3] i) => (float[A, B, C] y) { e = Gather(t, i) \n y = MatMul(e, w) }",
        {"t": rand(9, 8), "w": rand(8, 4)}, IDS,
    ),
    "Range": (
        "g (float[3] x) => (float[A] y) { r = Range(zero, three, one) \n y = Add(x, r) }",
        {"zero": np.float32(0), "three": np.float32(3), "one": np.float32(1)},
        {"x": rand(3)},
    ),
    "Cast": (
        "g (float[3] x, int32[3] k) => (float[A] y, int64[B] z, double[C] d)"
        "{ f = Cast<to = 1>(k) \n y = Mul(f, x) \n z = Cast<to = 7>(y) \n d = Cast<to = 11>(y) }",
        {},
        {"x": rand(3), "k": np.array([1, 2, 3], np.int32)},
    ),
    "CastLike": (
        "g (float[3] x, int32[3] k) => (float[A] y) { f = CastLike(k, x) \n y = Mul(f, x) }",
        {}, {"x": rand(3), "k": np.array([1, 2, 3], np.int32)},
    ),
    "Concat and Split": (
        f"{ROW} {{ a, b = Split<axis = 2>(x, half) \n r = Relu(a) \n y = Concat<axis = 1>(r, b, a)"
        " }", {"half": np.array([4, 4], np.int64)}, ROWS,
    ),
    "ConstantOfShape": (
        f"{ROW} {{ s = Shape(x) \n c = ConstantOfShape<value = float[1] {{2.5}}>(s)"
        " \n z = ConstantOfShape(s) \n a = Mul(x, c) \n y = Add(a, z) }", {}, ROWS,
    ),
    "EyeLike": (
        "g (float[4, 4] x) => (float[A, B] y) { e = EyeLike(x) \n y = Mul(x, e) }",
        {}, {"x": rand(4, 4)},
    ),
    "Random numbers": (
        f"{ROW} {{ r = RandomUniformLike<low = 1.0, high = 1.001>(x) \n s = Mul(r, x)"
        " \n n = RandomNormal<shape = [8], mean = 1.0, scale = 0.0001>() \n y = Add(s, n) }",
        {}, ROWS,
    ),
    "Clip, Pow, Max and Compare": (
        f"{ROW} {{ c = Clip(x, low, high) \n p = Pow(c, two) \n m = Max(p, x) \n g = Greater(m, c)"
        " \n y = Where(g, m, p) }",
        {"low": np.float32(-1), "high": np.float32(1), "two": np.float32(2)}, ROWS,
    ),
    "ReduceMean and TopK": (
        f"{ROW} {{ m = ReduceMean(x, one) \n v, k = TopK(m, three)"
        " \n f = Cast<to = 1>(k) \n y = Add(v, f) }",
        {"one": np.array([1], np.int64), "three": np.array([3], np.int64)}, ROWS,
    ),
    "OneHot": (
        "g (float[3, 5] x, int64[3] i) => (float[A, B] y)"
        "{ h = OneHot(i, five, v) \n y = Mul(h, x) }",
        {"five": np.array(5, np.int64), "v": np.array([0, 1], np.float32)},
        {"x": rand(3, 5), "i": np.array([0, 4, 2], np.int64)},
    ),
    "LSTM": (
        "g (float[3, 1, 4] x) => (float[A, B, C, D] y) { y = LSTM<hidden_size = 2>(x, w, r) }",
        {"w": rand(1, 8, 4), "r": rand(1, 8, 2)}, {"x": rand(3, 1, 4)},
    ),
    "double": (
        "g (float[3] x, double[3] d) => (double[A] y)"
        "{ f = Cast<to = 11>(x) \n s = Add(f, d) \n y = Mul(s, k) }",
        {"k": np.array([0.1, 0.2, 0.3])},
        {"x": rand(3), "d": rand(3).astype(np.float64)},
    ),
    "an input and a weight that are outputs": (
        "g (float[3] x) => (float[A] y, float[B] z) { y = Add(x, w) \n z = Mul(y, w) }",
        {"w": rand(3)}, {"x": rand(3)},
    ),
    "If": (
        f"{ROW} {{ t = ReduceSum<keepdims = 0>(x) \n c = Greater(t, zero) \n r = Relu(x)"
        " \n v = If(c) <then_branch = yes () => (float[A, B, C] u) { u = MatMul(r, w) },"
        " else_branch = no () => (float[A, B, C] n) { k = Constant<value = float[1] {2.5}>()"
        " \n s = Mul(x, k) \n n = MatMul(s, w) }> \n y = Relu(v) }",
        {"zero": np.float32(0), "w": rand(8, 8)}, ROWS,
    ),
    "Loop": (
        f"{ROW} {{ v, q = Loop(n, , x) <body = b (int64 i, bool ok, float[A, B, C] a)"
        " => (bool again, float[A, B, C] a2, float[A, B, C] each)"
        " { again = Identity(ok) \n f = Cast<to = 1>(i) \n d = Div(a, two) \n a2 = Add(d, f)"
        " \n each = Mul(a2, x) }> \n s = ReduceSum<keepdims = 0>(q, axis) \n y = Add(v, s) }",
        {"n": np.array(3, np.int64), "two": np.float32(2), "axis": np.array([0], np.int64)}, ROWS,
    ),
    "Scan": (
        "g (float[3, 4] x) => (float[A] y, float[B, C] z)"
        "{ start = Constant<value = float[4] {0.0, 1.0, 2.0, 3.0}>()"
        " \n y, z = Scan<num_scan_inputs = 1, body = b (float[4] a, float[4] e)"
        " => (float[4] a2, float[4] o) { h = Mul(e, half) \n a2 = Add(a, h) \n o = Relu(a2) }>"
        "(start, x) }",
        {"half": np.float32(0.5)}, {"x": rand(3, 4)},
    ),
    "Loop inside If": (
        f"{ROW} {{ t = ReduceSum<keepdims = 0>(x) \n c = Greater(t, zero)"
        " \n y = If(c) <then_branch = yes () => (float[A, B, C] u)"
        " { u = Loop(n, , x) <body = b (int64 i, bool ok, float[A, B, C] a)"
        " => (bool again, float[A, B, C] a2) { again = Identity(ok) \n a2 = MatMul(a, w) }> },"
        " else_branch = no () => (float[A, B, C] m) { m = MatMul(x, w) }> }",
        {"n": np.array(2, np.int64), "zero": np.float32(-9), "w": rand(8, 8) / 4}, ROWS,
    ),
    "Sequence": (
        f"{ROW} {{ r = Relu(x) \n s = SequenceConstruct(r, x)"
        " \n y = ConcatFromSequence<axis = 1>(s) }", {}, ROWS,
    ),
    "a quantized part": (
        f"{ROW} {{ r = Relu(x) \n q = QuantizeLinear(r, s, z) \n d = DequantizeLinear(q, s, z)"
        " \n y = MatMul(d, w) }",
        {"s": np.float32(0.02), "z": np.array(3, np.int8), "w": rand(8, 4)}, ROWS,
    ),
    "NonMaxSuppression": (
        "g (float[1, 3, 4] x, float[1, 1, 3] p) => (int64[A, B] y)"
        "{ r = Mul(x, two) \n y = NonMaxSuppression(r, p, k, t) }",
        {"two": np.float32(2), "k": np.array([2], np.int64), "t": np.array([0.5], np.float32)},
        {
            "x": np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]], np.float32),
            "p": np.array([[[0.9, 0.8, 0.7]]], np.float32),
        },
    ),
}  # fmt: skip
# What OpenVINO cannot read, in fp32 either.
NOT_IN_OPENVINO = {"Resize with a region"}
