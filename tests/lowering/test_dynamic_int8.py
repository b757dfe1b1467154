"""Dynamic int8 activations: one quantization a value, integer products, onnxruntime's fusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
RunOptimized = Callable[..., tuple[list[NDArray[np.generic]], Counter[str]]]
Floats = NDArray[np.float32]

DYNAMIC = DynamicScale("uint8")
# So that no CPU's 16-bit sums saturate, whatever the activations are.
LIMIT = 63


def _rand(*shape: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng((seed, *shape))
    return rng.standard_normal(shape).astype(np.float32)


def _fake(x: Floats) -> Floats:
    """What ONNX's DynamicQuantizeLinear and its scale make of ``x``."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = np.float32((high - low) / np.float32(255))
    zero = int(np.clip(np.rint(-low / step), 0, 255))
    scale = TensorScale("uint8", step, zero)  # type: ignore[arg-type]
    return dequantize(quantize(x, scale), scale)


def _weight(weight: Floats, site: Site, per_channel: bool) -> TensorScale:
    axes = tuple(i for i in range(weight.ndim) if i != site.weight_axis)
    amax = np.abs(weight).astype(np.float32).max(axis=axes if per_channel else None)
    step = np.asarray(amax / np.float32(LIMIT), np.float32)
    return TensorScale("int8", step, 0, site.weight_axis if per_channel else None, LIMIT)


def _all(prepared: PreparedModel, per_channel: bool = True) -> list[QuantizedSite]:
    made = []
    for site in find_sites(prepared).sites:
        tensor = prepared.model.graph.initializers[site.weight].const_value
        assert tensor is not None
        made.append(QuantizedSite(site, _weight(tensor.numpy(), site, per_channel), DYNAMIC))
    return made


def _ops(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph)


KINDS = {
    "MatMul": ("MatMul(x, w)", (8, 6), (3, 8), lambda x, w, b: x @ w),
    "batched MatMul": ("MatMul(x, w)", (2, 8, 6), (2, 3, 8), lambda x, w, b: x @ w),
    "MatMul of a vector": ("MatMul(x, w)", (8, 6), (8,), lambda x, w, b: x @ w),
    "MatMul from the left": ("MatMul(w, x)", (6, 8), (8, 3), lambda x, w, b: w @ x),
    "batched from the left": ("MatMul(w, x)", (2, 6, 8), (2, 8, 3), lambda x, w, b: w @ x),
    "vector from the left": ("MatMul(w, x)", (6, 8), (8,), lambda x, w, b: w @ x),
    "Gemm": ("Gemm(x, w)", (8, 6), (3, 8), lambda x, w, b: x @ w),
    "Gemm with bias": ("Gemm(x, w, b)", (8, 6), (3, 8), lambda x, w, b: x @ w + b),
    "Gemm, all attributes": (
        "Gemm<transB = 1, alpha = 0.5, beta = -2.0>(x, w, b)", (6, 8), (3, 8),
        lambda x, w, b: np.float32(0.5) * (x @ w.T) - 2 * b,
    ),
    "Gemm, no alpha": (
        "Gemm<alpha = 0.0>(x, w, b)", (8, 6), (3, 8), lambda x, w, b: 0 * (x @ w) + b
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("half", [False, True])
def test_integer_products(
    make: Make,
    run: Run,
    run_optimized: RunOptimized,
    run_openvino: Run,
    kind: str,
    per_channel: bool,
    half: bool,
) -> None:
    op, w_shape, x_shape, meaning = KINDS[kind]
    dtype, word, opset = (np.float16, "float16", 19) if half else (np.float32, "float", 13)
    weight, bias = _rand(*w_shape).astype(dtype), _rand(6, seed=4).astype(dtype)
    weights = {"w": weight, "b": bias} if "b)" in op else {"w": weight}
    dims = ", ".join(map(str, x_shape))
    free = ", ".join("abc"[: len(x_shape)])
    prepared = make(
        f"g ({word}[{dims}] x) => ({word}[{free}] y) {{ y = {op} }}", weights, opset=opset
    )
    (entry,) = _all(prepared, per_channel)
    model = lower(prepared, [entry])
    data = serialize(model)
    onnx.checker.check_model(data, full_check=True)

    x = _rand(*x_shape, seed=3).astype(dtype)
    assert entry.weight is not None
    fake = dequantize(quantize(weight, entry.weight), entry.weight)
    want = meaning(_fake(x.astype(np.float32)), fake, bias.astype(np.float32))
    close = {"rtol": 2e-3, "atol": 2e-3} if half else {"rtol": 1e-5, "atol": 1e-5}
    (y,) = run(data, x=x)
    assert y.dtype == dtype
    assert y.shape == want.shape
    assert np.allclose(y, want, **close)
    assert np.allclose(run_optimized(data, x=x)[0][0], want, **close)
    if kind != "Gemm, no alpha":
        assert np.allclose(run_openvino(data, x=x)[0], want, **close)


@pytest.mark.parametrize("op", ["MatMul(x, w)", "Gemm(x, w, b)", "Gemm<transB = 1>(x, v, b)"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_onnxruntime_fuses_the_form(
    make: Make, run_optimized: RunOptimized, op: str, per_channel: bool
) -> None:
    weights = {"w": _rand(64, 32), "v": _rand(32, 64), "b": _rand(32)}
    used = {k: a for k, a in weights.items() if f" {k}" in op}
    prepared = make(f"g (float[N, 64] x) => (float[N, 32] y) {{ y = {op} }}", used, opset=13)
    model = lower(prepared, _all(prepared, per_channel))
    _, ops = run_optimized(serialize(model), x=_rand(5, 64))
    assert ops == Counter(DynamicQuantizeMatMul=1)


SEVERAL = (
    "g (float[N, 8] x) => (float[N, 8] a, float[N, 8] b, float[N, 8] c)"
    "{ a = MatMul(x, w) \n r = Relu(x) \n b = MatMul(x, v) \n c = MatMul(r, w) }"
)


def test_one_quantization_a_value_and_one_stored_weight(
    make: Make, run: Run, run_optimized: RunOptimized
) -> None:
    prepared = make(SEVERAL, {"w": _rand(8, 8), "v": _rand(8, 8, seed=1)})
    model = lower(prepared, _all(prepared))
    assert _ops(model)["DynamicQuantizeLinear"] == 2
    stored = [n for n in model.graph.initializers if n.endswith("/quantized")]
    assert sorted(stored) == ["v/quantized", "w/quantized"]
    assert "w" not in model.graph.initializers
    x = _rand(5, 8)
    fused, ops = run_optimized(serialize(model), x=x)
    assert "MatMulInteger" not in ops
    for got, want in zip(fused, run(serialize(model), x=x), strict=True):
        assert np.allclose(got, want, atol=1e-5)


def test_a_site_in_the_middle(make: Make, run: Run) -> None:
    # The value that a dynamic site reads is the quantized output of a static one, and what it
    # writes is quantized, shared, and returned through another name.
    prepared = make(
        "g (float[N, 8] x) => (float[N, 8] y, float[N, 8] z)"
        "{ a = MatMul(x, w) \n b = MatMul(a, v) \n y = MatMul(b, u) \n z = Exp(b) }",
        {k: _rand(8, 8, seed=i) for i, k in enumerate("wvu")},
    )
    static = TensorScale("uint8", np.float32(0.05), 128)  # type: ignore[arg-type]
    first, second, third = _all(prepared)
    first = replace(first, activation=static, output_value="a", output=static)
    second = replace(second, output_value="b", output=static)
    third = replace(third, activation=static)
    model = lower(prepared, [first, second, third])
    x = _rand(5, 8)

    def static_fake(value: Floats) -> Floats:
        return dequantize(quantize(value, static), static)

    w, v, u = (
        dequantize(quantize(_rand(8, 8, seed=i), q.weight), q.weight)
        for i, q in enumerate((first, second, third))
    )
    b = static_fake(_fake(static_fake(static_fake(x) @ w)) @ v)
    y, z = run(serialize(model), x=x)
    assert np.allclose(y, b @ u, atol=1e-4)
    assert np.allclose(z, np.exp(b), rtol=1e-4)


def test_the_float_weight_stays_for_others(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 8] x, int64[M] i) => (float[N, 8] y, float[M, 8] z)"
        "{ y = MatMul(x, w) \n z = Gather(w, i) }",
        {"w": _rand(8, 8)},
    )
    model = lower(prepared, _all(prepared))
    i = np.array([7, 0])
    _, z = run(serialize(model), x=_rand(2, 8), i=i)
    assert np.array_equal(z, _rand(8, 8)[i])


def test_readers_in_a_body(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 8] x, bool c) => (float[N, 8] y)"
        "{ a = MatMul(x, w) \n y = If (c) <"
        "then_branch = t () => (float[N, 8] p) { p = Exp(a) },"
        "else_branch = e () => (float[N, 8] q) { q = Neg(a) }> }",
        {"w": _rand(8, 8)},
    )
    (entry,) = _all(prepared)
    x = _rand(3, 8)
    assert entry.weight is not None
    want = _fake(x) @ dequantize(quantize(_rand(8, 8), entry.weight), entry.weight)
    (y,) = run(serialize(lower(prepared, [entry])), x=x, c=np.array(False))
    assert np.allclose(y, -want, atol=1e-5)


def _attention(make: Make, dtype: str = "float") -> tuple[PreparedModel, Site]:
    prepared = make(
        f"g ({dtype}[2, 3, 8] q, {dtype}[2, 8, 5] k) => ({dtype}[2, 3, 5] y) {{ y = MatMul(q, k) }}"
    )
    (node,) = prepared.model.graph
    site = Site(
        "@matmul:/0", str(node.name), "MatMul", "", (), 0, 0, "q", "y", second="k",
        dtype="float16" if dtype == "float16" else "float32",
    )  # fmt: skip
    return prepared, site


def test_a_product_of_two_dynamic_activations(
    make: Make, run: Run, run_optimized: RunOptimized
) -> None:
    prepared, site = _attention(make)
    model = lower(prepared, [QuantizedSite(site, None, DYNAMIC, second=DYNAMIC)])
    assert _ops(model)["DynamicQuantizeLinear"] == 2
    q, k = _rand(2, 3, 8), _rand(2, 8, 5)
    for y in (run(serialize(model), q=q, k=k)[0], run_optimized(serialize(model), q=q, k=k)[0][0]):
        assert np.allclose(y, _fake(q) @ _fake(k), atol=1e-5)


def test_zeros_stay_zero(make: Make, run: Run) -> None:
    prepared = make("g (float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, w) }", {"w": _rand(8, 8)})
    (y,) = run(serialize(lower(prepared, _all(prepared))), x=np.zeros((2, 8), np.float32))
    assert np.array_equal(y, np.zeros((2, 8)))


def test_the_same_bytes(make: Make) -> None:
    prepared = make(SEVERAL, {"w": _rand(8, 8), "v": _rand(8, 8, seed=1)})
    before = serialize(prepared.model)
    first = serialize(lower(prepared, _all(prepared)))
    assert serialize(lower(prepared, _all(prepared))) == first
    assert serialize(prepared.model) == before


def test_what_has_no_such_form_is_named(make: Make) -> None:
    conv = make(
        "g (float[1, 4, 5, 5] x) => (float[1, 2, 5, 5] y) { y = Conv(x, w) }",
        {"w": _rand(2, 4, 1, 1)},
    )
    text = "g (float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, w) }"
    product = make(text, {"w": _rand(8, 8)}, opset=21)
    attention, site = _attention(make)
    (one,) = _all(product)
    assert one.weight is not None
    static = TensorScale("uint8", np.float32(0.1))  # type: ignore[arg-type]
    blocks = TensorScale("int8", np.ones((2, 8), np.float32), axis=0, block=4)
    fp8 = TensorScale("fp8_e4m3", np.ones(8, np.float32), axis=1)
    bad = [
        (conv, _all(conv)[0], "a Conv has no dynamic int8 form"),
        (product, replace(one, weight=None), "a weight is int8"),
        (product, replace(one, weight=blocks), "a weight is int8"),
        (product, replace(one, weight=fp8), "a weight is int8"),
        (product, replace(one, activation=DynamicScale("int8")), "is uint8, with one scale"),
        (attention, QuantizedSite(site, None, DYNAMIC), "either both activations"),
        (attention, QuantizedSite(site, None, DYNAMIC, second=static), "either both activations"),
    ]
    for prepared, entry, says in bad:
        with pytest.raises(ValueError, match=rf"site '{entry.site.id}': .*{says}"):
            lower(prepared, [entry])


@pytest.mark.parametrize(
    "scale",
    [
        DynamicScale("fp4_e2m1", 16, "fp8_e4m3", 0.01),
        DynamicScale("fp8_e4m3", 32, "e8m0"),
    ],
)
def test_dynamic_blocks_have_no_operator(make: Make, scale: DynamicScale) -> None:
    product = make("g (float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, w) }", {"w": _rand(8, 8)})
    (entry,) = _all(product)
    with pytest.raises(UserError, match=r"site 'w': ONNX has no operator .* quantize weights only"):
        lower(product, [replace(entry, activation=scale)])
    attention, site = _attention(make)
    with pytest.raises(UserError, match=r"site '@matmul:/0': ONNX has no operator"):
        lower(attention, [QuantizedSite(site, None, scale, second=scale)])
