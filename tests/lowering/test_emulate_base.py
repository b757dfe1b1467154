from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from bitworth.errors import UserError
from bitworth.lowering.base_precision import to_base
from bitworth.lowering.emulate_base import emulate_base
from bitworth.lowering.float_types import Base
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import serialize

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
DTYPES: dict[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def _rand(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _rounded(array: NDArray[np.generic], base: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(array.astype(DTYPES[base]).astype(np.float32))


def _same_bits(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    nan = np.isnan(a)
    same = a.view(np.uint32) == b.view(np.uint32)
    return a.dtype == b.dtype == np.float32 and bool(np.all(same | (nan & np.isnan(b))))


def _hard_numbers(base: str) -> NDArray[np.float32]:
    """Every number of the type, the ties between neighbours and both sides of each tie."""
    with np.errstate(invalid="ignore"):
        exact = np.arange(2**16, dtype=np.uint16).view(DTYPES[base]).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    positive = np.sort(np.unique(np.abs(exact))).astype(np.float64)
    step = positive[-1] - positive[-2]
    edges = np.append(positive, positive[-1] + step)
    ties = ((edges[:-1] + edges[1:]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(t)) for t in (0, np.inf)]
    found = np.concatenate([positive.astype(np.float32), ties, *near])
    special = np.array([np.inf, np.nan, 3.4028235e38, 1e-45, 2.0**-133], np.float32)
    return np.concatenate([found, -found, special, -special]).astype(np.float32)


@pytest.mark.parametrize("base", ["fp16", "bf16"])
def test_every_number_and_every_tie_rounds_as_the_type_does(
    make: Make, run: Run, base: Base
) -> None:
    # Two operators, so that a pair of Casts has something on each side that it could vanish into.
    prepared = make("g (float[N] x) => (float[N] y) { a = Neg(x) \n y = Mul(a, one) }", {
        "one": np.float32(1),
    })  # fmt: skip
    x = _hard_numbers(base)
    y = run(serialize(emulate_base(prepared, base)), x=x)[0]
    assert _same_bits(y, _rounded(-x, base))
    assert np.isinf(y).sum() > 4


OPERATORS = {
    "Add": ("y = Add(x, w)", (8, 8)),
    "Div": ("y = Div(x, w)", (8, 8)),
    "Exp": ("y = Exp(x)", (8, 8)),
    "MatMul": ("y = MatMul(x, w)", (8, 8)),
    "Gemm": ("y = Gemm<transB = 1>(x, w, b)", (8, 8)),
    "Softmax": ("y = Softmax(x)", (8, 8)),
    "LayerNormalization": ("y = LayerNormalization(x, b, b)", (8, 8)),
    "ReduceSum": ("y = ReduceSum(x, one)", (8, 8)),
    "Sigmoid": ("y = Sigmoid(x)", (8, 8)),
    "Concat": ("y = Concat<axis = 0>(x, w)", (8, 8)),
    "Clip": ("y = Clip(x, low, high)", (8, 8)),
    "Gather": ("y = Gather(x, ids)", (8, 8)),
    "Pow": ("y = Pow(x, low)", (8, 8)),
}


@pytest.mark.parametrize("base", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_one_operator_is_the_fp32_one_between_roundings(
    make: Make, run: Run, kind: str, base: Base
) -> None:
    text, shape = OPERATORS[kind]
    weights: dict[str, NDArray[np.generic]] = {
        "w": _rand(*shape), "b": _rand(8), "low": np.array(-0.3, np.float32),
        "high": np.array(0.7, np.float32), "one": np.array([1], np.int64),
        "ids": np.array([0, 3], np.int64),
    }  # fmt: skip
    graph = f"g (float[8, 8] x) => (float[A, B] y) {{ {text} }}"
    exact = {k: v if v.dtype == np.int64 else _rounded(v, base) for k, v in weights.items()}
    x = _rand(8, 8) * 2
    plain = make(graph, exact)
    want = _rounded(run(serialize(plain.model), x=_rounded(x, base))[0], base)
    emulated = emulate_base(make(graph, weights), base)
    assert _same_bits(run(serialize(emulated), x=x)[0], want)


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ops=st.lists(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Sqrt", "Neg"]), min_size=1,
                 max_size=6),
    scale=st.sampled_from([1e-4, 1.0, 200.0]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_element_wise_graphs_equal_fp16_arithmetic_bit_for_bit(
    make: Make, run: Run, ops: list[str], scale: float, seed: int
) -> None:
    """Against numpy's own fp16, run by ONNX's reference evaluator on the converted graph."""
    lines, last = [], "x"
    for i, op in enumerate(ops):
        args = last if op in ("Sqrt", "Neg") else f"{last}, w"
        lines.append(f"v{i} = {op}({args})")
        last = f"v{i}"
    text = "\n".join(lines).replace(f"{last} =", "y =")
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal(16) * scale).astype(np.float32)
    x = (rng.standard_normal(16) * scale).astype(np.float32)
    prepared = make(f"g (float[16] x) => (float[16] y) {{ {text} }}", {"w": w})
    proto = onnx.load_from_string(serialize(to_base(prepared, "fp16").model.model))
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    assert _same_bits(run(serialize(emulate_base(prepared, "fp16")), x=x)[0], want)


GRAPHS = {
    "all kinds": (
        "g (float[2, 8] x, int64[2] i) => (float[A, B] y)"
        "{ e = Gather(t, i) \n a = Add(x, e) \n s = LayerNormalization(a, g)"
        " \n m = MatMul(s, w) \n r = Relu(m) \n k = Concat<axis = 1>(r, a)"
        " \n f = Cast<to = 1>(i) \n c = ReduceSum<keepdims = 0>(f)"
        " \n d = Shape(k) \n z = ConstantOfShape<value = float[1] {0.1}>(d)"
        " \n q = Mul(k, z) \n o = Mul(q, c) \n p = Max(o, k) \n y = Softmax(p) }"
    ),
    "bodies": (
        "g (float[2, 8] x, int64[2] i) => (float[A, B] y)"
        "{ e = Gather(t, i) \n u = ReduceSum<keepdims = 0>(x) \n c = Greater(u, low)"
        " \n a = If(c) <then_branch = yes () => (float[A, B] p) { p = MatMul(e, w) },"
        " else_branch = no () => (float[A, B] q) { h = Constant<value = float[1] {0.3}>()"
        " \n q = Mul(e, h) }> \n l = Loop(n, , a) <body = b (int64 j, bool ok, float[A, B] v)"
        " => (bool again, float[A, B] v2) { again = Identity(ok) \n k = MatMul(v, w)"
        " \n v2 = Add(k, x) }> \n y = Sigmoid(l) }"
    ),
}
WEIGHTS: dict[str, NDArray[np.generic]] = {
    "t": _rand(9, 8), "g": _rand(8), "w": _rand(8, 8) / 3, "low": np.array(-99, np.float32),
    "n": np.array(3, np.int64),
}  # fmt: skip


@pytest.mark.parametrize("base", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("keep", [(), ("MatMul", "Softmax")])
def test_what_a_16_bit_graph_holds_is_what_the_emulation_holds(
    make: Make, run: Run, kind: str, base: Base, keep: tuple[str, ...]
) -> None:
    """Each value of type fp16 (bf16) in the converted graph is a number of it in the emulation."""
    if kind == "bodies":
        keep = keep[:1]
    prepared = make(GRAPHS[kind], WEIGHTS, 22)
    before = graph_sha256(prepared.model)
    emulated = emulate_base(prepared, base, keep)
    assert graph_sha256(prepared.model) == before
    assert serialize(emulated) == serialize(emulate_base(prepared, base, keep))
    converted = to_base(prepared, base, keep)
    low = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}[base]
    origin = dict(converted.renamed)
    outputs = {str(v.name) for v in prepared.model.graph.outputs}
    names = [str(v.name) for n in converted.model.model.graph for v in n.outputs if v.dtype == low]
    names = [origin[n] if origin.get(n) in outputs else n for n in names]
    values = {str(v.name): v for n in emulated.graph for v in n.outputs}
    assert set(names) <= set(values)
    emulated.graph.outputs.extend(values[n] for n in names if n not in outputs)
    inputs = {"x": _rand(2, 8), "i": np.array([1, 7])}
    shown = [str(v.name) for v in emulated.graph.outputs]
    arrays = dict(zip(shown, run(serialize(emulated), **inputs), strict=True))
    for name in names:
        assert _same_bits(arrays[name], _rounded(arrays[name], base)), name
    want = run(serialize(prepared.model), **inputs)[0]
    assert np.allclose(arrays["y"], want, atol=0.06)
    assert not np.array_equal(arrays["y"], want)


def test_all_kept_is_the_fp32_graph(make: Make, run: Run) -> None:
    prepared = make(GRAPHS["all kinds"], WEIGHTS)
    inputs = {"x": _rand(2, 8), "i": np.array([1, 7])}
    want = run(serialize(prepared.model), **inputs)[0]
    assert np.array_equal(run(serialize(emulate_base(prepared, "bf16", ("*",))), **inputs)[0], want)
    with pytest.raises(UserError, match="'Conv' matches no node"):
        emulate_base(prepared, "bf16", ("Conv",))


def test_what_is_beyond_fp16_becomes_infinite_but_a_mask_does_not(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[4] x) => (float[4] y, float[4] z) { y = Mul(x, k) \n z = Add(x, low) }",
        {"k": np.array(100, np.float32), "low": np.array([-3e38, 0, 0, 0], np.float32)},
    )
    y, z = run(serialize(emulate_base(prepared, "fp16")), x=np.array([700, -700, 655, 1], "f4"))
    assert y.tolist() == [np.inf, -np.inf, 65504, 100]
    # -65504 + 700, to the next multiple of 32.
    assert z.tolist() == [-64800, -700, 655, 1]


@pytest.mark.parametrize(("base", "bound"), [("fp16", 0.02), ("bf16", 0.15)])
def test_real_models(ocr_model: Path, run: Run, base: Base, bound: float) -> None:
    """At an opset whose Conv does not know bf16: no operator has to know the type."""
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 13)
    emulated = emulate_base(prepared, base)
    onnx.checker.check_model(serialize(emulated), full_check=True)
    y, want = run(serialize(emulated), x=x)[0], run(serialize(prepared.model), x=x)[0]
    assert np.array_equal(_rounded(y, base), y)
    assert 0 < np.linalg.norm(y - want) / np.linalg.norm(want) < bound
