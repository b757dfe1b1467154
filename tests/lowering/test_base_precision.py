from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.lowering.base_precision import Converted, to_base
from bitworth.lowering.base_weights import range_losses, to_16_bits
from bitworth.lowering.float_types import Base
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import serialize
from tests.float_graphs import KINDS, NOT_IN_OPENVINO, Arrays, rand

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
LOW = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
# Unit roundoff of each type.
ROUND = {"fp16": 2.0**-11, "bf16": 2.0**-8}


def _openvino(model: bytes, inputs: Arrays) -> list[NDArray[np.generic]]:
    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    results = compiled(dict(inputs))
    return [results[o] for o in compiled.outputs]


def _dtypes(model: ir.Model) -> dict[str, ir.DataType | None]:
    values: dict[str, ir.DataType | None] = {}
    for graph in model.graphs():
        values.update((str(v.name), v.dtype) for v in graph.inputs)
        values.update((str(v.name), v.dtype) for v in graph.initializers.values())
        values.update((str(v.name), v.dtype) for n in graph for v in n.outputs)
    return values


def _nodes(converted: Converted) -> dict[str, ir.Node]:
    model = converted.model.model
    return {str(n.name): n for n in ir.traversal.RecursiveGraphIterator(model.graph)}


def _casts(converted: Converted) -> int:
    return sum(n.op_type == "Cast" for n in _nodes(converted).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opset", [19, 21])
def test_fp16_runs_in_both_engines(make: Make, run: Run, kind: str, opset: int) -> None:
    graph, weights, inputs = KINDS[kind]
    prepared = make(graph, weights, opset)
    before = graph_sha256(prepared.model)
    converted = to_base(prepared, "fp16")
    assert graph_sha256(prepared.model) == before
    data = serialize(converted.model.model)
    # Infers every type again, in bodies too, and compares it with what is written.
    onnx.checker.check_model(data, full_check=True)
    assert data == serialize(to_base(prepared, "fp16").model.model)
    assert (converted.model.inputs, converted.model.outputs) == (prepared.inputs, prepared.outputs)
    want = run(serialize(prepared.model), **inputs)
    results = {"onnxruntime": run(data, **inputs)}
    if kind not in NOT_IN_OPENVINO:
        results["openvino"] = _openvino(data, inputs)
    for engine, got in results.items():
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), engine
            scale = np.abs(b.astype(np.float64)).max()
            assert np.abs(a.astype(np.float64) - b).max() <= 16 * ROUND["fp16"] * scale, engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["fp16", "bf16"])
def test_names_and_types(make: Make, kind: str, base: Base) -> None:
    """Nothing but the documented names is new, and fp32 is left only where it has a reason."""
    graph, weights, _ = KINDS[kind]
    prepared = make(graph, weights, 22)
    converted = to_base(prepared, base)
    onnx.checker.check_model(serialize(converted.model.model), full_check=True)
    old = {str(n.name): n for n in ir.traversal.RecursiveGraphIterator(prepared.model.graph)}
    new = _nodes(converted)
    assert set(old) <= set(new)
    assert {n.op_type for name, n in new.items() if name not in old} <= {"Cast"}
    before, after = _dtypes(prepared.model), _dtypes(converted.model.model)
    assert set(before) <= set(after)
    assert set(after) - set(before) == {n for n, _ in converted.renamed}
    for name, origin in converted.renamed:
        assert name in (f"{origin}/{base}", f"{origin}/fp32")
    for value in prepared.model.graph.outputs:
        assert after[str(value.name)] == before[str(value.name)]
    kept = dict(converted.kept)
    for name, node in old.items():
        outputs = [v for v in node.outputs if v.dtype == ir.DataType.FLOAT]
        now = [v.dtype for v in new[name].outputs]
        if name in kept:
            assert LOW[base] not in now
        elif outputs and "Normalization" not in node.op_type:
            assert LOW[base] in now
    # Casts that only undo one another would be a round trip through 16 bits for nothing.
    for node in new.values():
        source = node.inputs[0].producer() if node.op_type == "Cast" and node.inputs[0] else None
        if source is not None and source.op_type == "Cast":
            assert source.name in old or node.name in old


CHAIN = (
    "g (float[2, 4] x) => (float[2, 4] y)"
    "{ a = MatMul(x, w) \n b = Softmax(a) \n c = Exp(b) \n d = MatMul(c, w) \n y = Relu(d) }"
)


@pytest.mark.parametrize(
    ("keep", "kept", "casts"),
    [
        ((), [], 2),  # at the borders only
        (("Softmax",), ["Softmax"], 4),
        (("Softmax", "Exp"), ["Softmax", "Exp"], 4),  # none between the two
        (("MatMul*",), ["MatMul", "MatMul_1"], 4),
        (("*",), ["MatMul", "Softmax", "Exp", "MatMul_1", "Relu"], 0),
        (("Relu",), ["Relu"], 2),  # the last node: its input is cast, its output is not
    ],
)
def test_what_is_kept(
    make: Make, run: Run, keep: tuple[str, ...], kept: list[str], casts: int
) -> None:
    prepared = make(CHAIN, {"w": rand(4, 4)})
    converted = to_base(prepared, "fp16", keep)
    assert [name for name, _ in converted.kept] == kept
    assert all("keep_fp32" in reason for _, reason in converted.kept)
    assert _casts(converted) == casts
    onnx.checker.check_model(serialize(converted.model.model), full_check=True)
    if keep == ("*",):
        x = rand(2, 4)
        want = run(serialize(prepared.model), x=x)[0]
        assert np.array_equal(run(serialize(converted.model.model), x=x)[0], want)


@pytest.mark.parametrize("entry", ["Conv", "matmul", "layer.3.*", ""])
def test_an_entry_that_matches_nothing_is_an_error(make: Make, entry: str) -> None:
    with pytest.raises(UserError, match="matches no node") as caught:
        to_base(make(CHAIN, {"w": rand(4, 4)}), "fp16", ("Softmax", entry))
    assert f"'{entry}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", ["If", "MatMul", "Loop", "Mul"])
def test_bodies_stay_with_their_node_or_alone(make: Make, run: Run, keep: str) -> None:
    for kind in ("If", "Loop", "Loop inside If"):
        graph, weights, inputs = KINDS[kind]
        prepared = make(graph, weights)
        ops = {n.op_type for n in ir.traversal.RecursiveGraphIterator(prepared.model.graph)}
        if keep not in ops:
            continue
        converted = to_base(prepared, "fp16", (keep,))
        data = serialize(converted.model.model)
        onnx.checker.check_model(data, full_check=True)
        nodes, kept = _nodes(converted), dict(converted.kept)
        for name, node in nodes.items():
            if node.op_type == keep:
                assert name in kept
                assert not any(v.dtype == ir.DataType.FLOAT16 for v in node.outputs)
        if keep == kind:
            inside = [name for name, reason in converted.kept if "inside" in reason]
            assert len(inside) >= 2
        for got in (run(data, **inputs)[0], _openvino(data, inputs)[0]):
            want = run(serialize(prepared.model), **inputs)[0]
            assert np.allclose(got, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())


def test_a_weight_that_both_kinds_of_nodes_read_is_exact_for_the_kept_one(
    make: Make, run: Run
) -> None:
    prepared = make(
        "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { y = MatMul(x, w) \n z = Add(x, v) }",
        {"w": rand(4, 4), "v": rand(4, 4)[:2]},
    )
    shared = make(
        "g (float[4, 4] x) => (float[4, 4] y, float[4, 4] z) { y = MatMul(x, w) \n z = Add(x, w) }",
        {"w": rand(4, 4)},
    )
    assert "w/fp32" not in _dtypes(to_base(prepared, "fp16", ("Add",)).model.model)
    converted = to_base(shared, "fp16", ("Add",))
    dtypes = _dtypes(converted.model.model)
    assert (dtypes["w"], dtypes["w/fp32"]) == (ir.DataType.FLOAT16, ir.DataType.FLOAT)
    assert ("w/fp32", "w") in converted.renamed
    x = rand(4, 4)
    got, want = (run(serialize(p.model), x=x) for p in (converted.model, shared))
    assert np.array_equal(got[1], want[1])
    assert not np.array_equal(got[0], want[0])


def test_a_large_weight_is_computed_when_read_and_its_file_is_not_left_mapped(
    tmp_path: Path,
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19]>'
        "g (float[2, 40] x) => (float[2, 40] y) { y = MatMul(x, w) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(rand(40, 40), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="d", size_threshold=0)
    prepared = prepare(load(path), 19)
    converted = to_base(prepared, "fp16")
    tensor = converted.model.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.numpy() is not tensor.numpy()
    assert np.array_equal(tensor.numpy(), rand(40, 40).astype(np.float16))
    source = prepared.model.graph.initializers["w"].const_value
    assert isinstance(source, ir.ExternalTensor)
    assert source.raw is None


@given(
    numbers=st.lists(
        st.floats(width=32)
        | st.sampled_from(
            [65504.0, 65519.996, 65520.0, 3.3895e38, 3.4028235e38, 2.0**-25, 2.0**-134]
        ),
        max_size=40,
    ),
    base=st.sampled_from(["fp16", "bf16"]),
)
def test_constants_round_as_the_type_does_and_stay_finite(numbers: list[float], base: Base) -> None:
    array = np.array([*numbers, 1.0], np.float32)
    dtype: Any = np.float16 if base == "fp16" else ml_dtypes.bfloat16
    got = to_16_bits(array, base).astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        plain = array.astype(dtype).astype(np.float64)
    limit = float(ml_dtypes.finfo(dtype).max)
    want = np.where(np.isfinite(array), np.clip(plain, -limit, limit), plain)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()
    said = " ".join(range_losses(ir.tensor(array), base))
    beyond = int((np.isfinite(array) & (np.abs(array) > limit)).sum())
    vanish = int(((array != 0) & (want == 0)).sum())
    assert (f"{beyond} of {array.size} elements beyond" in said) == (beyond > 0)
    assert (f"{vanish} of {array.size} elements too small" in said) == (vanish > 0)


@pytest.mark.parametrize("size", [5, (1 << 20) + 7])
def test_what_leaves_the_range_is_counted_with_its_place(size: int) -> None:
    array = np.ones((size, 2), np.float32)
    array[size - 1, 1] = -1e6
    array[0, 0] = 70000
    array[2, 1] = 1e-9
    assert range_losses(ir.tensor(array), "fp16") == (
        f"2 of {2 * size} elements beyond 65504, held at it; the largest is -1e+06 at "
        f"({size - 1}, 1)",
        f"1 of {2 * size} elements too small for fp16, 0 in it; the largest is 1e-09 at (2, 1)",
    )
    held = to_16_bits(array, "fp16")
    assert (held[size - 1, 1], held[0, 0], held[2, 1]) == (-65504, 65504, 0)


@pytest.mark.parametrize("base", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", ["Where with a mask", "a mask of numbers"])
def test_a_mask_stays_finite_and_is_listed(make: Make, run: Run, base: Base, kind: str) -> None:
    graph, weights, inputs = KINDS[kind]
    converted = to_base(make(graph, weights, 19), base)
    (entry,) = [text for name, text in converted.overflow if name == "low"]
    assert "-3.40282e+38" in entry
    tensor = converted.model.model.graph.initializers["low"].const_value
    assert tensor is not None
    assert np.isfinite(tensor.numpy().astype(np.float64)).all()
    if base == "fp16":
        # A row with every place masked has a Softmax still.
        masked = {k: np.zeros_like(v) if k == "m" else v for k, v in inputs.items()}
        assert np.isfinite(run(serialize(converted.model.model), **masked)[0]).all()


@pytest.mark.parametrize("amax", [65505.0, 1e9, float("inf"), float("nan")])
def test_nodes_around_a_value_that_is_too_large_stay(make: Make, run: Run, amax: float) -> None:
    prepared = make(CHAIN, {"w": rand(4, 4)})
    converted = to_base(prepared, "fp16", amax={"a": amax, "c": 65504.0})
    # "a" is written by MatMul and read by Softmax.
    assert [name for name, _ in converted.kept] == ["MatMul", "Softmax"]
    assert all("'a' reaches" in reason for _, reason in converted.kept)
    assert [name for name, _ in converted.overflow] == ["a"]
    assert _dtypes(converted.model.model)["a"] == ir.DataType.FLOAT
    x = rand(2, 4)
    assert np.isfinite(run(serialize(converted.model.model), x=x)[0]).all()


def test_a_large_value_is_followed_through_what_only_moves_it(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[2, 4] x) => (float[4, 2] y)"
        "{ a = Mul(x, k) \n t = Transpose<perm = [1, 0]>(a) \n u = Unsqueeze(t, zero)"
        " \n v = Squeeze(u, zero) \n y = Div(v, k) }",
        {"k": np.float32(60000), "zero": np.array([0], np.int64)},
    )
    x = np.full((2, 4), 3, np.float32)
    assert not np.isfinite(_fp16_by_numpy(x))
    converted = to_base(prepared, "fp16", amax={"t": 180000.0})
    assert [n for n, _ in converted.overflow] == ["a", "t", "u", "v"]
    assert np.allclose(run(serialize(converted.model.model), x=x)[0], 3)


def _fp16_by_numpy(x: NDArray[np.float32]) -> np.float16:
    with np.errstate(over="ignore"):
        return np.float16(x.max()) * np.float16(60000)


def test_an_unknown_value_is_a_mistake(make: Make) -> None:
    with pytest.raises(ValueError, match="no value 'nowhere'"):
        to_base(make(CHAIN, {"w": rand(4, 4)}), "fp16", amax={"nowhere": 1.0})


COUNTS = {
    "a length": (
        "g (float[1, N] x) => (float[1, M] y)"
        "{ s = Shape(x) \n f = Cast<to = 1>(s) \n h = Mul(f, half) \n c = Ceil(h)"
        " \n k = Cast<to = 7>(c) \n o = Expand(one, k) \n y = Exp(o) }",
        {"half": np.array([1, 0.5], np.float32), "one": np.float32(0)},
    ),
    "Resize's scales": (
        "g (float[1, N] x) => (float[1, M] y)"
        "{ s = Shape(x) \n f = Cast<to = 1>(s) \n r = Reciprocal(f) \n k = Mul(r, target)"
        ' \n y = Resize<mode = "nearest">(x, , k) }',
        {"target": np.array([1, 3001], np.float32)},
    ),
    "positions": (
        "g (float[1, N] x) => (float[1, N] y)"
        "{ s = Shape(x) \n n = Gather(s, one) \n r = Range(zero, n, one) \n f = Cast<to = 1>(r)"
        " \n a = Mul(f, step) \n c = Cos(a) \n y = Mul(x, c) }",
        {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "step": np.float32(0.7)},
    ),
    "a comparison": (
        "g (float[1, N] x) => (float[1, N] y)"
        "{ s = Size(x) \n f = Cast<to = 1>(s) \n c = Greater(f, limit) \n y = Where(c, x, zero) }",
        {"limit": np.float32(3000.5), "zero": np.float32(0)},
    ),
    "an input": (
        "g (float[1, N] x, float[1] t) => (float[1, N] y)"
        "{ a = Mul(t, step) \n c = Sin(a) \n y = Mul(x, c) }",
        {"step": np.float32(1.7)},
    ),
}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("opset", [19, 21])
def test_counts_stay_exact(make: Make, run: Run, kind: str, opset: int) -> None:
    graph, weights = COUNTS[kind]
    prepared = make(graph, weights, opset)
    x = np.ones((1, 3001), np.float32)  # fp16 holds 3000 and 3002
    inputs = {"x": x} | ({"t": np.array([999.0], np.float32)} if kind == "an input" else {})
    converted = to_base(prepared, "fp16")
    assert any("count" in reason for _, reason in converted.kept)
    want = run(serialize(prepared.model), **inputs)[0]
    got = run(serialize(converted.model.model), **inputs)[0]
    assert got.shape == want.shape
    assert np.allclose(got, want, atol=1e-3)


def test_an_embedding_is_no_count(make: Make) -> None:
    prepared = make(
        "g (int64[N] i) => (int64[N] y)"
        "{ e = Gather(t, i) \n m = MatMul(e, w) \n c = Greater(m, zero) \n f = Cast<to = 1>(c)"
        " \n s = ReduceSum<keepdims = 0>(f, one) \n y = Cast<to = 7>(s) }",
        {
            "t": rand(9, 8), "w": rand(8, 8), "zero": np.float32(0),
            "one": np.array([1], np.int64),
        },
    )  # fmt: skip
    kept = [name for name, _ in to_base(prepared, "fp16").kept]
    assert not {"Gather", "MatMul", "Greater"} & set(kept)


def test_the_reason_names_the_opset_that_knows_the_type(make: Make) -> None:
    graph, weights, _ = KINDS["Conv"]
    (kept,) = to_base(make(graph, weights, 21), "bf16").kept
    assert kept == ("Conv", "Conv takes bfloat16 from opset 22 on; the graph has 21")
    assert to_base(make(graph, weights, 22), "bf16").kept == ()
    with pytest.raises(UserError, match="bf16 needs opset 13"):
        to_base(make(CHAIN, {"w": rand(4, 4)}, 12), "bf16")


def test_operators_that_onnx_does_not_define_stay(tmp_path: Path, run: Run) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19, "com.microsoft" : 1]>'
        "g (float[2, 4] x) => (float[2, 4] y)"
        "{ a = Relu(x) \n b = com.microsoft.Gelu(a) \n c = Add(b, a) \n y = Exp(c) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), 19)
    converted = to_base(prepared, "fp16")
    kept = dict(converted.kept)
    assert "Gelu" in " ".join(kept)
    x = rand(2, 4)
    got, want = (run(serialize(p.model), x=x)[0] for p in (converted.model, prepared))
    assert np.allclose(got, want, rtol=1e-2)


def test_an_output_that_is_a_constant_or_an_input(make: Make) -> None:
    prepared = make(
        "g (float[3] x) => (float[3] y, float[3] w, float[3] x) { y = Add(x, w) }", {"w": rand(3)}
    )
    converted = to_base(prepared, "fp16")
    onnx.checker.check_model(serialize(converted.model.model), full_check=True)
    dtypes = _dtypes(converted.model.model)
    assert [dtypes[n] for n in ("y", "w", "x")] == [ir.DataType.FLOAT] * 3
    assert [dtypes[n] for n in ("y/fp16", "w/fp16", "x/fp16")] == [ir.DataType.FLOAT16] * 3


def test_taken_names_are_not_taken_again(make: Make) -> None:
    model = make("g (float[3] x) => (float[3] y) { v = Relu(x) \n y = Exp(v) }")
    model.model.graph[0].outputs[0].name = "x/fp16"
    converted = to_base(model, "fp16")
    assert Counter(n for n, _ in converted.renamed) == {"x/fp16_2": 1, "y/fp16": 1}
    onnx.checker.check_model(serialize(converted.model.model), full_check=True)
