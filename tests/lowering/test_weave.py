"""Where quantized values go: bodies, products of two activations, other float types, shortcuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.placement import residual_inputs
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

U8 = TensorScale("uint8", np.array(0.03125, np.float32), 100)
S8 = TensorScale("int8", np.array(0.0625, np.float32))


def _rand(*shape: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng((seed, *shape))
    return rng.standard_normal(shape).astype(np.float32)


def _fake(x: NDArray[np.generic], scale: TensorScale | None) -> Floats:
    return x.astype(np.float32) if scale is None else dequantize(quantize(x, scale), scale)


def _weight(prepared: PreparedModel, site: Site, limit: int = 63) -> TensorScale:
    """Seven bits a channel, so that no CPU's 16-bit sums saturate."""
    tensor = prepared.model.graph.initializers[site.weight].const_value
    assert tensor is not None
    weight = tensor.numpy().astype(np.float32)
    axes = tuple(i for i in range(weight.ndim) if i != site.weight_axis)
    step = (np.abs(weight).max(axis=axes) / limit).astype(np.float32)
    return TensorScale("int8", step, 0, site.weight_axis, limit)


def _all(prepared: PreparedModel, activation: TensorScale | None = U8) -> list[QuantizedSite]:
    sites = find_sites(prepared).sites
    return [QuantizedSite(s, _weight(prepared, s), activation) for s in sites]


def _ops(graph: ir.Graph) -> Counter[str]:
    return Counter(n.op_type for n in graph)


# --- activations ----------------------------------------------------------------------------------


def test_a_scale_for_each_channel_of_an_activation(make: Make, run: Run, run_openvino: Run) -> None:
    weight = _rand(6, 4, 3, 3)
    text = "g (float[1, 4, 7, 7] x) => (float[a, b, c, d] y) { v = Conv(x, w) \n y = Exp(v) }"
    prepared = make(text, {"w": weight * np.float32(0.1)}, opset=13)
    (site,) = find_sites(prepared).sites
    along = TensorScale("int8", np.array([0.5, 0.1, 0.01, 0.02], np.float32), axis=1)
    behind = TensorScale("int8", np.linspace(0.01, 0.06, 6, dtype=np.float32), axis=-3)
    entry = QuantizedSite(site, _weight(prepared, site), along, "v", behind)
    data = serialize(lower(prepared, [entry]))
    onnx.checker.check_model(data, full_check=True)
    x = _rand(1, 4, 7, 7)
    shape = (1, -1, 1, 1)
    step = along.scale.reshape(shape)
    fake = (np.clip(np.rint(x / step), -128, 127) * step).astype(np.float32)
    model = make(text, {"w": _fake(weight * np.float32(0.1), entry.weight)}, opset=13)
    v = np.log(run(serialize(model.model), x=fake)[0])
    step = behind.scale.reshape(shape)
    want = np.exp(np.clip(np.rint(v / step), -128, 127) * step)
    for y in (run(data, x=x)[0], run_openvino(data, x=x)[0]):
        # A value that is almost half a step may round to the other side.
        assert np.mean(~np.isclose(y, want, rtol=1e-4)) < 0.02


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("which", ["both", "first", "second"])
def test_a_product_of_two_activations(make: Make, run: Run, half: bool, which: str) -> None:
    word, dtype, opset = ("float16", np.float16, 19) if half else ("float", np.float32, 13)
    prepared = make(
        f"g ({word}[2, 3, 8] q, {word}[2, 8, 5] k) => ({word}[2, 3, 5] y)"
        "{ p = MatMul(q, k) \n y = Abs(p) }",
        opset=opset,
    )
    node = next(n for n in prepared.model.graph if n.op_type == "MatMul")
    site = Site("@matmul:/0", str(node.name), "MatMul", "", (), 0, 0, "q", "p", second="k",
                dtype=np.dtype(dtype).name)  # fmt: skip
    first, second = (U8 if which != "second" else None), (S8 if which != "first" else None)
    model = lower(prepared, [QuantizedSite(site, None, first, "p", S8, second=second)])
    onnx.checker.check_model(serialize(model), full_check=True)
    q, k = _rand(2, 3, 8).astype(dtype), _rand(2, 8, 5).astype(dtype)
    (y,) = run(serialize(model), q=q, k=k)
    want = np.abs(_fake((_fake(q, first) @ _fake(k, second)).astype(dtype), S8))
    assert np.abs(y - want).max() <= S8.scale * (1.01 if half else 0.001)


def test_a_product_of_a_value_with_itself(make: Make, run: Run) -> None:
    prepared = make("g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }", opset=13)
    (node,) = prepared.model.graph
    site = Site("@matmul:/0", str(node.name), "MatMul", "", (), 0, 0, "x", "y", second="x")
    for second, pairs in ((U8, 1), (S8, 2)):
        model = lower(prepared, [QuantizedSite(site, None, U8, second=second)])
        assert _ops(model.graph)["QuantizeLinear"] == pairs
        x = _rand(4, 4)
        assert np.allclose(run(serialize(model), x=x)[0], _fake(x, U8) @ _fake(x, second))


def test_scales_that_activations_cannot_have(make: Make) -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) \n y = MatMul(a, v) }"
    prepared = make(text, {"w": _rand(4, 4), "v": _rand(4, 4, seed=1)}, opset=21)
    first, second = _all(prepared)
    four = np.ones(4, np.float32)
    bad = [
        (replace(first, activation=replace(U8, scale=four)), "need their axis"),
        (replace(first, activation=replace(U8, axis=1)), "are a vector"),
        (replace(first, activation=replace(U8, block=2, axis=1)), "no static scales"),
        (replace(first, output_value="a", output=replace(U8, limit=63)), "weights only"),
        (replace(first, output_value="a"), "both its value and its scale"),
        (replace(first, second=U8), "no second activation"),
        (replace(first, compute="float64"), "cannot compute in 'float64'"),
        (replace(first, site=replace(first.site, weight="")), "it has no weight"),
        (replace(first, activation=replace(U8, tensor_scale=2.0)), "stand under a tensor's scale"),
    ]
    for entry, says in bad:
        with pytest.raises(ValueError, match=rf"site 'w'.*{says}"):
            lower(prepared, [entry, second])


# --- bodies ---------------------------------------------------------------------------------------

BODIES = (
    "g (float[N, 4] x, bool c, int64 n) => (float[N, 4] y, float[N, 4] z)"
    "{ a = MatMul(x, w) \n r = Relu(a) \n b = MatMul(r, v) \n y = If (c) <"
    "then_branch = t () => (float[N, 4] p) { p = If (c) <"
    "then_branch = t2 () => (float[N, 4] p2) { p2 = Add(r, b) },"
    "else_branch = e2 () => (float[N, 4] q2) { q2 = Neg(r) }> },"
    "else_branch = e () => (float[N, 4] q) { q = MatMul(r, w) }>"
    "\n z = Loop (n, c, x) <body = l (int64 i, bool k, float[N, 4] s)"
    " => (bool k2, float[N, 4] s2) { k2 = Identity(k) \n s2 = Add(s, r) }> }"
)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("how", ["output", "everywhere", "input"])
def test_readers_in_bodies(make: Make, run: Run, condition: bool, how: str) -> None:
    prepared = make(BODIES, {"w": _rand(4, 4), "v": _rand(4, 4, seed=1)}, opset=13)
    first, second = _all(prepared)
    everywhere: tuple[str, ...] = ()
    if how == "output":
        first, second = replace(first, output_value="r", output=S8), replace(second, activation=S8)
    elif how == "everywhere":
        second, everywhere = replace(second, activation=S8), ("r",)
    model = lower(prepared, [first, second], everywhere)
    data = serialize(model)
    onnx.checker.check_model(data, full_check=True)
    # The product in the body is no site: it reads the float weight.
    assert "w" in model.graph.initializers

    x = _rand(3, 4)
    r = np.maximum(_fake(x, U8) @ _fake(_rand(4, 4), first.weight), 0)
    inside = r if how == "input" else _fake(r, S8)
    scale = U8 if how == "input" else S8
    b = _fake(r, scale) @ _fake(_rand(4, 4, seed=1), second.weight)
    y, z = run(data, x=x, c=np.array(condition), n=np.array(2))
    want = inside + b if condition else inside @ _rand(4, 4)
    assert np.allclose(y, want, atol=1e-5)
    assert np.allclose(z, x + 2 * inside if condition else x, atol=1e-5)


def test_bodies_read_what_a_site_in_another_type_writes(make: Make, run: Run) -> None:
    text = BODIES.replace("float[", "float16[")
    weights = {k: _rand(4, 4, seed=i).astype(np.float16) for i, k in enumerate("wv")}
    prepared = make(text, weights, opset=19)
    entries = [replace(q, activation=None, compute="float32") for q in _all(prepared)]
    data = serialize(lower(prepared, entries))
    onnx.checker.check_model(data, full_check=True)
    x = _rand(3, 4).astype(np.float16)
    y, _ = run(data, x=x, c=np.array(True), n=np.array(1))
    fakes = [_fake(weights[k], e.weight) for k, e in zip("wv", entries, strict=True)]
    r = np.maximum(x.astype(np.float32) @ fakes[0], 0).astype(np.float16)
    want = r + (r.astype(np.float32) @ fakes[1]).astype(np.float16)
    assert np.allclose(y, want, atol=0.02)


# --- another type to compute in -------------------------------------------------------------------

COMPUTE_KINDS = {
    "Conv": ("Conv(x, w, b)", (6, 4, 3, 3), (1, 4, 5, 5)),
    "ConvTranspose": ("ConvTranspose(x, w, b)", (4, 6, 2, 2), (1, 4, 5, 5)),
    "Gemm": ("Gemm<transB = 1>(x, w, b)", (6, 4), (3, 4)),
    "MatMul": ("MatMul(x, w)", (4, 6), (3, 4)),
    "MatMul from the left": ("MatMul(w, x)", (6, 4), (4, 3)),
}


@pytest.mark.parametrize("kind", COMPUTE_KINDS)
@pytest.mark.parametrize("activation", [None, U8])
@pytest.mark.parametrize("output", [False, True])
def test_a_half_precision_graph_computes_a_site_in_fp32(
    make: Make, run: Run, run_optimized: RunOptimized, run_openvino: Run, kind: str,
    activation: TensorScale | None, output: bool,
) -> None:  # fmt: skip
    op, w_shape, x_shape = COMPUTE_KINDS[kind]
    weight, bias = _rand(*w_shape).astype(np.float16), _rand(6, seed=4).astype(np.float16)
    dims, free = ", ".join(map(str, x_shape)), ", ".join("abcd"[: len(x_shape)])
    graph = f"(float{{0}}[{dims}] x) => (float{{0}}[{free}] y) {{{{ v = {op} \n y = Abs(v) }}}}"
    weights = {"w": weight, "b": bias} if " b" in op else {"w": weight}
    prepared = make("g " + graph.format(16), weights, opset=19)
    (entry,) = _all(prepared, activation)
    entry = replace(entry, compute="float32")
    if output:
        entry = replace(entry, output_value="v", output=S8)
    model = lower(prepared, [entry])
    data = serialize(model)
    onnx.checker.check_model(data, full_check=True)
    node = next(n for n in model.graph if n.op_type == entry.site.op_type)
    types = {v.dtype for v in (*node.inputs, *node.outputs) if v}
    assert types == {ir.DataType.FLOAT}
    assert model.graph.outputs[0].name == "y"
    # What nothing reads any more is gone.
    assert all(v.uses() for v in model.graph.initializers.values())
    assert all(v.uses() or v.is_graph_output() for n in model.graph for v in n.outputs)

    x = _rand(*x_shape, seed=3).astype(np.float16)
    floats = {"w": _fake(weight, entry.weight), "b": bias.astype(np.float32)}
    float_model = make("g " + graph.format(""), {k: floats[k] for k in weights}, opset=19)
    (want,) = run(serialize(float_model.model), x=_fake(x, activation))
    if output:
        want = _fake(want.astype(np.float16), S8)
    for y in (run(data, x=x)[0], run_optimized(data, x=x)[0][0], run_openvino(data, x=x)[0]):
        assert y.dtype == np.float16
        wrong = np.abs(y - want) > (S8.scale * 1.01 if output else 0.01)
        assert not wrong.any()


def test_other_readers_keep_the_type_of_the_graph(make: Make, run: Run) -> None:
    prepared = make(
        "g (float16[N, 4] x) => (float16[N, 4] a, float16[N, 4] b, float16[N, 4] c)"
        "{ a = MatMul(x, w) \n b = MatMul(x, w) \n c = MatMul(x, w) }",
        {"w": _rand(4, 4).astype(np.float16)},
        opset=19,
    )
    one, two, three = _all(prepared)
    model = lower(
        prepared, [one, replace(two, compute="float32"), replace(three, compute="float32")]
    )
    # One quantized x and one stored w; a DequantizeLinear of each for each float type.
    assert _ops(model.graph) == Counter(MatMul=3, QuantizeLinear=1, DequantizeLinear=4, Cast=2)
    x = _rand(3, 4).astype(np.float16)
    want = _fake(x, U8) @ _fake(_rand(4, 4).astype(np.float16), one.weight)
    for y in run(serialize(model), x=x):
        assert np.allclose(y, want, atol=0.01)


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_an_fp32_graph_computes_a_site_in_sixteen_bits(make: Make, compute: str) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 6] y) { y = Gemm(x, w, b) }",
        {"w": _rand(4, 6), "b": _rand(6)},
        opset=19,
    )
    (entry,) = _all(prepared)
    model = lower(prepared, [replace(entry, compute=compute)])
    onnx.checker.check_model(serialize(model), full_check=True)
    node = next(n for n in model.graph if n.op_type == "Gemm")
    wanted = ir.DataType.FLOAT16 if compute == "float16" else ir.DataType.BFLOAT16
    assert {v.dtype for v in (*node.inputs, *node.outputs) if v} == {wanted}
    quantizer = next(n for n in model.graph if n.op_type == "QuantizeLinear")
    assert [v.dtype for v in quantizer.inputs[:2] if v] == [ir.DataType.FLOAT] * 2


def test_sixteen_bits_in_an_fp32_graph(make: Make, run: Run) -> None:
    text = "g (float[N, 4] x) => (float[N, 6] y) { y = MatMul(x, w) }"
    prepared = make(text, {"w": _rand(4, 6)}, opset=19)
    (entry,) = _all(prepared)
    x = _rand(3, 4)
    (y,) = run(serialize(lower(prepared, [replace(entry, compute="float16")])), x=x)
    assert y.dtype == np.float32
    want = _fake(x, U8) @ _fake(_rand(4, 6), entry.weight)
    assert np.allclose(y, want, atol=0.02)
    assert not np.array_equal(y, want)


@pytest.mark.parametrize(
    ("opset", "scale"),
    [
        (21, TensorScale("int4", np.full((2, 4), 0.25, np.float32), axis=0, block=16)),
        (
            23,
            TensorScale(
                "fp4_e2m1", np.full((2, 4), 1.5, np.float32), axis=0, block=16,
                scale_storage="fp8_e4m3", tensor_scale=0.25,
            ),
        ),
        (
            24,
            TensorScale(
                "fp8_e4m3", np.full((2, 4), 2.0**-7, np.float32), axis=0, block=16,
                scale_storage="e8m0",
            ),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compute", [None, "float32"])
def test_blocks_in_a_half_precision_graph(
    make: Make, run_openvino: Run, opset: int, scale: TensorScale, compute: str | None
) -> None:
    weight = _rand(32, 4).astype(np.float16)
    text = "g (float16[N, 32] x) => (float16[N, 4] y) { y = MatMul(x, w) }"
    prepared = make(text, {"w": weight}, opset=opset)
    (site,) = find_sites(prepared).sites
    model = lower(prepared, [QuantizedSite(site, scale, None, compute=compute)])
    data = serialize(model)
    onnx.checker.check_model(data, full_check=True)
    # Nothing but the data's DequantizeLinear leaves fp32 for the graph's type.
    node = next(n for n in model.graph if n.op_type == "MatMul")
    kind = ir.DataType.FLOAT16 if compute is None else ir.DataType.FLOAT
    assert {v.dtype for v in node.inputs if v} == {kind}
    x = _rand(3, 32).astype(np.float16)
    assert np.allclose(run_openvino(data, x=x)[0], x @ _fake(weight, scale), atol=0.05)


# --- shortcuts ------------------------------------------------------------------------------------

RESIDUAL = (
    "g (float[1, 8, 6, 6] x) => (float[a, b, c, d] y)"
    "{ p = Conv(x, w0) \n s = Conv(p, w1) \n t = Relu(s) \n u = Conv(t, w2) \n v = Add(u, p)"
    "\n r = Relu(v) \n k = Conv(r, w3) \n m = Add(k, r) \n o = Conv(m, w4)"
    "\n y = GlobalAveragePool(o) }"
)
RESIDUAL_OUTPUTS = {"w0": "p", "w1": "t", "w2": "u", "w3": "k", "w4": "o"}


def _residual(make: Make) -> tuple[PreparedModel, list[QuantizedSite]]:
    weights = {k: _rand(8, 8, 1, 1, seed=i) / 2 for i, k in enumerate(RESIDUAL_OUTPUTS)}
    prepared = make(RESIDUAL, weights, opset=13)
    # Never negative behind Relu, and a scale for each value, as engines fuse it.
    scales = {
        name: TensorScale("uint8", np.float32(0.03 + 0.002 * i), 0 if name in "tr" else 128)  # type: ignore[arg-type]
        for i, name in enumerate("xptukrmo")
    }
    entries = []
    for entry in _all(prepared):
        value = RESIDUAL_OUTPUTS[entry.site.weight]
        scale = scales[entry.site.activation]
        entries.append(replace(entry, activation=scale, output_value=value, output=scales[value]))
    return prepared, entries


def test_a_shortcut_is_quantized_where_its_addition_is(
    make: Make, run_optimized: RunOptimized
) -> None:
    prepared, entries = _residual(make)
    assert residual_inputs(prepared.model, entries) == ("r",)
    x = _rand(1, 8, 6, 6)
    _, ops = run_optimized(serialize(lower(prepared, entries)), x=x)
    assert ops["QLinearAdd"] == 0
    _, ops = run_optimized(serialize(lower(prepared, entries, ("r",))), x=x)
    assert ops["QLinearAdd"] == 2
    assert ops["QuantizeLinear"] == 1


def test_a_shortcut_is_read_quantized(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) \n y = Add(a, x) }",
        {"w": _rand(4, 4)},
        opset=13,
    )
    (entry,) = _all(prepared)
    x = _rand(5, 4)
    product = _fake(x, U8) @ _fake(_rand(4, 4), entry.weight)
    (y,) = run(serialize(lower(prepared, [entry])), x=x)
    assert np.allclose(y, product + x, atol=1e-5)
    (y,) = run(serialize(lower(prepared, [entry], ("x",))), x=x)
    assert np.allclose(y, product + _fake(x, U8), atol=1e-5)


def test_shortcuts_that_stay_in_float(make: Make) -> None:
    prepared, entries = _residual(make)
    by_weight = {e.site.weight: e for e in entries}

    def found(**changed: QuantizedSite) -> tuple[str, ...]:
        return residual_inputs(prepared.model, list({**by_weight, **changed}.values()))

    left = {"output_value": None, "output": None}
    # The other addend is in float.
    assert found(w3=replace(by_weight["w3"], **left)) == ()
    # Its scale is only known at run time.
    assert found(w3=replace(by_weight["w3"], activation=DynamicScale("uint8"))) == ()
    # Already an output: all its readers get it.
    assert found(w2=replace(by_weight["w2"], output_value="r")) == ()
    assert residual_inputs(prepared.model, entries, ops=("Mul",)) == ()
    assert residual_inputs(prepared.model, []) == ()


def test_a_shortcut_that_the_graph_returns_stays_in_float(make: Make) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] r, float[N, 4] y)"
        "{ r = Relu(x) \n a = MatMul(r, w) \n y = Add(a, r) }",
        {"w": _rand(4, 4)},
    )
    (entry,) = _all(prepared)
    entry = replace(entry, output_value="a", output=U8)
    assert residual_inputs(prepared.model, [entry]) == ()
    with pytest.raises(ValueError, match="value 'r' is an output of the graph"):
        lower(prepared, [entry], ("r",))


def test_everywhere_names_activation_inputs(make: Make) -> None:
    prepared, entries = _residual(make)
    for name in ("v", "nothing"):
        with pytest.raises(ValueError, match=f"value '{name}' is no activation input"):
            lower(prepared, entries, (name,))
    first, *others = entries
    again = replace(others[0], activation=replace(U8, zero_point=3))
    with pytest.raises(ValueError, match="value 'p' is quantized for all its readers in two ways"):
        lower(prepared, [first, again, *others[1:]], ("p",))
