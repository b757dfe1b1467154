from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
Floats = NDArray[np.float32]

S8 = TensorScale("int8", np.array(0.02, np.float32))
U8 = TensorScale("uint8", np.array(0.03, np.float32), 100)
FP8 = TensorScale("fp8_e4m3", np.array(0.01, np.float32))


def _rand(*shape: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng((seed, *shape))
    return rng.standard_normal(shape).astype(np.float32)


def _weight(prepared: PreparedModel, site: Site, storage: str = "int8") -> TensorScale:
    tensor = prepared.model.graph.initializers[site.weight].const_value
    assert tensor is not None
    weight = tensor.numpy()
    axes = tuple(i for i in range(weight.ndim) if i != site.weight_axis)
    amax = np.abs(weight).astype(np.float32).max(axis=axes)
    top = 448 if storage == "fp8_e4m3" else 127
    scale = np.where(amax > 0, amax / top, 1).astype(np.float32)
    limit = None if storage == "fp8_e4m3" else 127
    return TensorScale(storage, scale, 0, site.weight_axis, limit)  # type: ignore[arg-type]


def _all(
    prepared: PreparedModel, activation: TensorScale = S8, storage: str = "int8"
) -> list[QuantizedSite]:
    return [
        QuantizedSite(s, _weight(prepared, s, storage), activation)
        for s in find_sites(prepared).sites
    ]


def _ops(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph)


def _fake(x: NDArray[np.generic], scale: TensorScale) -> Floats:
    return dequantize(quantize(x, scale), scale)


KINDS = st.sampled_from(
    [
        ("Conv", (6, 4, 3, 3), (1, 4, 7, 7)),
        ("Conv<group = 2>", (6, 2, 3), (1, 4, 7)),
        ("Conv<group = 4>", (4, 1, 3, 3), (1, 4, 7, 7)),
        ("Conv", (6, 4, 2, 2, 2), (1, 4, 4, 4, 4)),
        ("ConvTranspose", (4, 6, 2, 2), (1, 4, 5, 5)),
        ("ConvTranspose<group = 2>", (4, 3, 2, 2), (1, 4, 5, 5)),
        ("Gemm", (4, 6), (3, 4)),
        ("Gemm<transB = 1>", (6, 4), (3, 4)),
        ("MatMul", (4, 6), (3, 4)),
        ("MatMul", (2, 4, 6), (2, 3, 4)),
        ("MatMul left", (6, 4), (4, 3)),
        ("MatMul left", (2, 6, 4), (2, 4, 3)),
    ]
)


def _one_site(make: Make, kind: str, weight: Floats, x: tuple[int, ...]) -> PreparedModel:
    op, _, side = kind.partition(" left")
    args = "w, x" if kind.endswith(" left") else "x, w"
    del side
    dims = ", ".join(map(str, x))
    free = ", ".join("abcde"[: len(x)])
    return make(f"g (float[{dims}] x) => (float[{free}] y) {{ y = {op}({args}) }}", {"w": weight})


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=KINDS,
    per_channel=st.booleans(),
    storage=st.sampled_from(["int8", "fp8_e4m3"]),
    activation=st.sampled_from([S8, U8]),
    seed=st.integers(0, 1000),
)
def test_the_right_axis(
    make: Make,
    run: Run,
    kind: tuple[str, tuple[int, ...], tuple[int, ...]],
    per_channel: bool,
    storage: str,
    activation: TensorScale,
    seed: int,
) -> None:
    op, w_shape, x_shape = kind
    weight = _rand(*w_shape, seed=seed) * (1 + 9 * np.random.default_rng(seed).random())
    weight[(0,) * len(w_shape)] = 0
    prepared = _one_site(make, op, weight.astype(np.float32), x_shape)
    (site,) = find_sites(prepared).sites
    scale = _weight(prepared, site, storage)
    if not per_channel:
        scale = replace(scale, scale=np.float32(scale.scale.max()), axis=None)  # type: ignore[arg-type]
    if storage == "fp8_e4m3":
        activation = FP8
    model = lower(prepared, [QuantizedSite(site, scale, activation)])
    x = _rand(*x_shape, seed=seed)
    # The same float operation on what numpy quantizes and dequantizes.
    expected = _one_site(make, op, _fake(weight.astype(np.float32), scale), x_shape)
    want = run(serialize(expected.model), x=_fake(x, activation))[0]
    assert np.allclose(run(serialize(model), x=x)[0], want, rtol=1e-5, atol=1e-5)
    emulated = emulate(prepared, [QuantizedSite(site, scale, activation)])
    assert np.allclose(run(serialize(emulated), x=x)[0], want, rtol=1e-5, atol=1e-5)


CHAIN = (
    "g (float[N, 4] x) => (float[N, 4] y)"
    "{ a = MatMul(x, w) \n r = Relu(a) \n b = MatMul(r, v) \n y = Add(b, r) }"
)


@pytest.fixture
def chain(make: Make) -> PreparedModel:
    return make(CHAIN, {"w": _rand(4, 4), "v": _rand(4, 4, seed=1)})


def test_no_site_changes_nothing(chain: PreparedModel, run: Run) -> None:
    model = lower(chain, [])
    assert serialize(model) == serialize(chain.model)
    assert serialize(emulate(chain, [])) == serialize(chain.model)


def test_the_argument_is_not_changed(chain: PreparedModel) -> None:
    before = serialize(chain.model)
    lower(chain, _all(chain))
    emulate(chain, _all(chain))
    assert serialize(chain.model) == before


def test_the_float_weight_is_gone_and_the_stored_one_is_small(chain: PreparedModel) -> None:
    model = lower(chain, _all(chain))
    names = model.graph.initializers
    assert "w" not in names
    assert names["w/quantized"].dtype == ir.DataType.INT8
    assert names["w/zero_point"].dtype == ir.DataType.INT8
    assert names["w/scale"].shape == ir.Shape([4])


def test_float_consumers_of_an_input_keep_the_float_value(chain: PreparedModel) -> None:
    sites = _all(chain)
    model = lower(chain, sites[1:])
    add = next(n for n in model.graph if n.op_type == "Add")
    assert [v.name for v in add.inputs if v] == ["b", "r"]
    assert _ops(model) == Counter(MatMul=2, Relu=1, Add=1, QuantizeLinear=1, DequantizeLinear=2)


def test_an_output_and_an_input_with_one_scale_share_a_pair(chain: PreparedModel) -> None:
    first, second = _all(chain)
    first = replace(first, output_value="r", output=U8)
    second = replace(second, activation=U8)
    model = lower(chain, [first, second])
    # x, r; two weights.
    assert _ops(model)["QuantizeLinear"] == 2
    assert _ops(model)["DequantizeLinear"] == 4
    reads_r = [n.op_type for n in model.graph if "r" in [v.name for v in n.inputs if v]]
    assert reads_r == ["QuantizeLinear"]
    add = next(n for n in model.graph if n.op_type == "Add")
    producer = add.inputs[1].producer() if add.inputs[1] else None
    assert producer is not None
    assert producer.op_type == "DequantizeLinear"


def test_an_output_and_an_input_with_two_scales_are_quantized_twice(
    chain: PreparedModel, run: Run
) -> None:
    first, second = _all(chain)
    first = replace(first, output_value="r", output=U8)
    model = lower(chain, [first, second])
    assert _ops(model)["QuantizeLinear"] == 3
    x = _rand(3, 4)
    w, v = (chain.model.graph.initializers[n].const_value.numpy() for n in "wv")
    r = _fake(np.maximum(_fake(x, S8) @ _fake(w, first.weight), 0), U8)
    want = _fake(r, S8) @ _fake(v, second.weight) + r
    assert np.allclose(run(serialize(model), x=x)[0], want, atol=1e-5)


def test_sites_that_read_one_value_share_a_pair(make: Make) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] a, float[N, 4] b, float[N, 4] c)"
        "{ a = MatMul(x, w) \n b = MatMul(x, v) \n c = MatMul(x, u) }",
        {"w": _rand(4, 4), "v": _rand(4, 4, seed=1), "u": _rand(4, 4, seed=2)},
    )
    one, two, three = _all(prepared)
    assert _ops(lower(prepared, [one, two, three]))["QuantizeLinear"] == 1
    two = replace(two, activation=U8)
    assert _ops(lower(prepared, [one, two, three]))["QuantizeLinear"] == 2


SHARED = (
    "g (float[N, 4] x, int64[M] i) => (float[N, 4] y, float[M, 4] z)"
    "{ a = MatMul(x, w) \n b = Gemm(a, w) \n y = MatMul(b, w) \n z = Gather(w, i) }"
)


@pytest.mark.parametrize(
    ("chosen", "scales", "stored"),
    [((0, 1, 2), (1, 1, 1), 1), ((0, 1, 2), (1, 2, 1), 2), ((1,), (1, 1, 1), 1)],
)
def test_a_shared_weight_is_stored_once_a_scale(
    make: Make, run: Run, chosen: Sequence[int], scales: Sequence[int], stored: int
) -> None:
    prepared = make(SHARED, {"w": _rand(4, 4)})
    sites = [
        replace(q, weight=replace(q.weight, scale=q.weight.scale * np.float32(f)))
        for q, f in zip(_all(prepared), scales, strict=True)
    ]
    model = lower(prepared, [sites[i] for i in chosen])
    names = [n for n in model.graph.initializers if "quantized" in n]
    assert len(names) == stored
    # Gather is no site: it reads the float weight, untouched.
    assert "w" in model.graph.initializers
    i = np.array([2, 0])
    z = run(serialize(model), x=_rand(2, 4), i=i)[1]
    assert np.array_equal(z, _rand(4, 4)[i])


def test_consumers_in_a_body_read_the_output_value(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 4] x, bool c) => (float[N, 4] y)"
        "{ a = MatMul(x, w) \n r = Relu(a) \n y = If (c) <"
        "then_branch = t () => (float[N, 4] p) { p = Exp(r) },"
        "else_branch = e () => (float[N, 4] q) { q = Neg(r) }> }",
        {"w": _rand(4, 4)},
    )
    (site,) = _all(prepared)
    model = lower(prepared, [replace(site, output_value="r", output=U8)])
    x = _rand(3, 4)
    r = _fake(np.maximum(_fake(x, S8) @ _fake(_rand(4, 4), site.weight), 0), U8)
    assert np.allclose(run(serialize(model), x=x, c=np.array(False))[0], -r, atol=1e-6)


def test_names_that_are_taken(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) \n y = Add(a, b) }",
        {"w": _rand(4, 4), "b": _rand(4)},
    )
    prepared.model.graph.initializers["b"].name = "w/quantized"
    model = lower(prepared, _all(prepared))
    assert "w/quantized_2" in model.graph.initializers
    run(serialize(model), x=_rand(1, 4))


def test_a_bias_stays_in_float(make: Make, run: Run) -> None:
    # An int32 bias overflows under scales as small as these.
    bias = np.array([1e4, -1e4], np.float32)
    prepared = make(
        "g (float[1, 2, 3, 3] x) => (float[1, 2, 3, 3] y) { y = Conv(x, w, b) }",
        {"w": np.full((2, 2, 1, 1), 1e-6, np.float32), "b": bias},
    )
    tiny = TensorScale("int8", np.array(1e-6, np.float32))
    model = lower(prepared, _all(prepared, tiny))
    conv = next(n for n in model.graph if n.op_type == "Conv")
    assert conv.inputs[2] is model.graph.initializers["b"]
    (y,) = run(serialize(model), x=np.zeros((1, 2, 3, 3), np.float32))
    assert np.array_equal(y[0, :, 0, 0], bias)


def test_an_all_zero_weight(make: Make, run: Run) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] y) { y = MatMul(x, w) }",
        {"w": np.zeros((4, 4), np.float32)},
    )
    for model in (
        lower(prepared, _all(prepared)),
        lower(prepared, _all(prepared, FP8, "fp8_e4m3")),
    ):
        assert np.array_equal(run(serialize(model), x=_rand(2, 4))[0], np.zeros((2, 4)))


@pytest.mark.parametrize("storage", ["int8", "fp8_e4m3"])
def test_half_precision_weights_get_half_precision_scales(
    make: Make, run: Run, storage: str
) -> None:
    prepared = make(
        "g (float16[N, 4] x) => (float16[N, 4] y) { y = MatMul(x, w) }",
        {"w": _rand(4, 4).astype(np.float16)},
    )
    sites = _all(prepared, S8 if storage == "int8" else FP8, storage)
    model = lower(prepared, sites)
    assert model.graph.initializers["w/scale"].dtype == ir.DataType.FLOAT16
    x = _rand(2, 4).astype(np.float16)
    (y,) = run(serialize(model), x=x)
    assert y.dtype == np.float16
    (z,) = run(serialize(emulate(prepared, sites)), x=x)
    assert np.allclose(y, z, atol=0.02)


def test_a_scale_that_vanishes_in_half_precision_is_named(make: Make) -> None:
    prepared = make(
        "g (float16[N, 4] x) => (float16[N, 4] y) { y = MatMul(x, w) }",
        {"w": _rand(4, 4).astype(np.float16)},
    )
    (site,) = _all(prepared)
    tiny = replace(S8, scale=np.float32(1e-9))
    with pytest.raises(UserError, match="site 'w': a scale is not finite and positive in float16"):
        lower(prepared, [replace(site, activation=tiny)])


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_bad_scale_is_named(chain: PreparedModel, bad: float) -> None:
    first = _all(chain)[0]
    with pytest.raises(UserError, match="site 'w': a scale is not finite and positive"):
        lower(chain, [replace(first, activation=replace(S8, scale=np.float32(bad)))])


@pytest.mark.parametrize(("opset", "storage"), [(11, "int8"), (12, "int8"), (13, "fp8_e4m3")])
def test_a_low_opset_is_refused(make: Make, opset: int, storage: str) -> None:
    prepared = make(CHAIN, {"w": _rand(4, 4), "v": _rand(4, 4)}, opset=opset)
    with pytest.raises(UserError, match=r"needs opset \d+, the graph has"):
        lower(prepared, _all(prepared, S8 if storage == "int8" else FP8, storage))


def test_programming_errors(chain: PreparedModel, make: Make) -> None:
    first, second = _all(chain)
    other = make("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    bad = [
        (other, [first], "no MatMul node"),
        (chain, [first, first], "given twice"),
        (chain, [replace(first, activation=replace(S8, scale=np.ones(4, np.float32)))], "axis"),
        (chain, [replace(first, activation=replace(S8, limit=63))], "weights only"),
        (chain, [replace(second, output_value="y", output=S8)], "output of the graph"),
    ]
    for prepared, sites, says in bad:
        with pytest.raises(ValueError, match=says):
            lower(prepared, sites)


def test_bytes_are_the_same_in_every_process(tmp_path: object) -> None:
    code = (
        "import hashlib, importlib.util, numpy as np\n"
        "from pathlib import Path\n"
        "from bitworth.lowering.onnx_qdq import lower\n"
        "from bitworth.lowering.placement import output_value\n"
        "from bitworth.lowering.scaling import QuantizedSite, TensorScale\n"
        "from bitworth.subject.onnx_model import load\n"
        "from bitworth.subject.prepare import prepare\n"
        "from bitworth.subject.saving import serialize\n"
        "from bitworth.subject.sites import find_sites\n"
        "spec = importlib.util.find_spec('rapidocr')\n"
        "folder = Path(spec.submodule_search_locations[0]) / 'models'\n"
        "p = prepare(load(folder / 'PP-OCRv6_rec_small.onnx'), 13)\n"
        "s = TensorScale('int8', np.float32(0.1))\n"
        "place = lambda i: output_value(p.model, i, 'after_activation')\n"
        "q = [QuantizedSite(i, s, s, place(i), s if place(i) else None)"
        " for i in find_sites(p).sites]\n"
        "print(hashlib.sha256(serialize(lower(p, q))).hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            text=True,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
