from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.lowering.rescaling import ChannelFactors, rescale, value_factors
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.rescalable import Pair, find_pairs
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites
from tests.rescalable_graphs import FOUND

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
Floats = NDArray[np.float32]


def _sites(model: PreparedModel) -> tuple[Site, ...]:
    return find_sites(model).sites


def _factors(pairs: tuple[Pair, ...], seed: int, powers: bool = False) -> list[ChannelFactors]:
    """Factors from 1/64 to 64, of all sizes at once."""
    rng = np.random.default_rng(seed)
    made = []
    for pair in pairs:
        exponents = rng.uniform(-6, 6, pair.channels)
        numbers = np.exp2(np.rint(exponents) if powers else exponents).astype(np.float32)
        made.append(ChannelFactors(pair.value, numbers))
    return made


def _prepare(make: Make, name: str) -> PreparedModel:
    case = FOUND[name]
    return make(case.text, case.initializers, case.opset)


def _relative(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    difference = found.astype(np.float64) - wanted.astype(np.float64)
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(wanted)), 1e-30))


def _all_values(model: ir.Model, run: Run, x: Floats) -> dict[str, NDArray[np.generic]]:
    copy = model.clone()
    names = [v for node in copy.graph for v in node.outputs]
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(names)
    return dict(zip([str(v.name) for v in names], run(serialize(copy), x=x), strict=True))


@pytest.mark.parametrize("name", FOUND)
def test_every_value_is_divided_as_said_and_no_other(make: Make, run: Run, name: str) -> None:
    model = _prepare(make, name)
    pairs = find_pairs(model, _sites(model))
    factors = _factors(pairs, 1)
    by_value = {f.value: f.factors for f in factors}
    divisors = {v.name: by_value[p.value][v.channels] for p in pairs for v in p.values}
    x = FOUND[name].x()
    before = _all_values(model.model, run, x)
    after = _all_values(rescale(model, _sites(model), factors).model, run, x)
    assert before.keys() == after.keys()
    for value, array in before.items():
        wanted = array / divisors[value] if value in divisors else array
        assert after[value].dtype == array.dtype
        assert after[value].shape == array.shape
        assert _relative(after[value], wanted) < 1e-5, value
    along = value_factors(pairs, factors)
    assert along.keys() == {n for n, axis in FOUND[name].axes.items() if axis is not None}
    for pair in pairs:
        for value in pair.values:
            if value.axis is not None:
                size = before[value.name].shape[value.axis]
                shape = [1] * before[value.name].ndim
                shape[value.axis] = size
                wanted = np.broadcast_to(divisors[value.name], before[value.name].shape)
                np.testing.assert_array_equal(
                    np.broadcast_to(along[value.name].reshape(shape), wanted.shape), wanted
                )


@pytest.mark.parametrize("name", FOUND)
def test_powers_of_two_change_no_bit(make: Make, run: Run, name: str) -> None:
    model = _prepare(make, name)
    factors = _factors(find_pairs(model, _sites(model)), 2, powers=True)
    x = FOUND[name].x()
    after = rescale(model, _sites(model), factors)
    (old,), (new,) = run(serialize(model.model), x=x), run(serialize(after.model), x=x)
    assert old.tobytes() == new.tobytes()


# A layer is a node text in terms of its input, its output and a number, and its weights.
_IMAGE_LAYERS = (
    "{o} = Conv<pads = [1, 1, 1, 1]>({i}, w{n}, b{n})",
    "{o} = Conv<group = 2>({i}, g{n})",
    "{o} = Conv<group = 4>({i}, d{n})",
    "{o} = ConvTranspose({i}, t{n})",
    "{o} = Relu({i})",
    "{o} = LeakyRelu<alpha = 0.3>({i})",
    "{o} = PRelu({i}, s{n})",
    "{o} = Sigmoid({i})",
    "{o} = Add({i}, c{n})",
    "{o} = Mul({i}, c{n})",
    "{o} = Add({i}, {i})",
    "r{n} = Conv({i}, t{n}) q{n} = Conv(r{n}, t{n}) {o} = Add({i}, q{n})",
    "r{n} = Sigmoid({i}) q{n} = Conv({i}, t{n}) {o} = Mul(r{n}, q{n})",
    "{o} = InstanceNormalization({i}, b{n}, b{n})",
    "{o} = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1]>({i})",
)
_ROW_LAYERS = (
    "{o} = MatMul({i}, w{n})",
    "m{n} = MatMul({i}, w{n}) {o} = Add(m{n}, b{n})",
    "{o} = LayerNormalization({i}, b{n}, b{n})",
    "{o} = LayerNormalization({i}, b0)",
    "{o} = Relu({i})",
    "{o} = Gelu({i})",
    "{o} = Softmax({i})",
    "{o} = Mul({i}, b{n})",
    "{o} = Sub(b{n}, {i})",
    "r{n} = Sigmoid({i}) q{n} = MatMul({i}, w{n}) {o} = Mul(r{n}, q{n})",
    "r{n} = MatMul({i}, w{n}) q{n} = MatMul(r{n}, v{n}) {o} = Add({i}, q{n})",
    "r{n} = Transpose<perm = [0, 2, 1]>({i}) q{n} = MatMul(a, r{n}) {o} = MatMul(q{n}, {i})",
)


def _graph(layers: list[str], image: bool) -> tuple[str, dict[str, Floats]]:
    rng = np.random.default_rng(len(layers))
    text, value, weights = "", "x", dict[str, Floats]()
    shapes = (
        {
            "w": (4, 4, 3, 3),
            "b": (4,),
            "g": (4, 2, 1, 1),
            "d": (4, 1, 1, 1),
            "t": (4, 4, 1, 1),
            "s": (4, 1, 1),
            "c": (1, 4, 1, 1),
        }
        if image
        else {"w": (4, 4), "v": (4, 4), "b": (4,)}
    )
    for n, layer in enumerate(layers):
        text += layer.format(i=value, o=f"o{n}", n=n) + " "
        value = f"o{n}"
    names = {f"{k}{n}": shape for n in range(len(layers)) for k, shape in shapes.items()}
    for name, shape in (*names.items(), ("a", (3, 4))):
        if f" {name})" in text or f" {name}," in text or f"({name}," in text:
            weights[name] = (rng.standard_normal(shape) / 2).astype(np.float32)
    size = "2,4,5,5" if image else "2,3,4"
    return f"g (float[{size}] x) => (float[] y) {{{text}y = Neg({value})}}", weights


GRAPHS = st.one_of(
    st.tuples(st.lists(st.sampled_from(_IMAGE_LAYERS), min_size=2, max_size=7), st.just(True)),
    st.tuples(st.lists(st.sampled_from(_ROW_LAYERS), min_size=2, max_size=7), st.just(False)),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(GRAPHS, st.integers(0, 99))
def test_random_graphs_compute_the_same(
    make: Make, run: Run, drawn: tuple[list[str], bool], seed: int
) -> None:
    model = make(*_graph(*drawn), 20)
    sites = _sites(model)
    factors = _factors(find_pairs(model, sites), seed)
    shape = (2, 4, 5, 5) if drawn[1] else (2, 3, 4)
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    after = rescale(model, sites, factors)
    assert _sites(after) == sites
    (old,), (new,) = run(serialize(model.model), x=x), run(serialize(after.model), x=x)
    # Sums that cancel round by more than their result: measured is against what goes into them.
    assert np.max(np.abs(old - new)) <= 1e-5 * max(float(np.max(np.abs(old))), 1.0)


@pytest.mark.parametrize("name", FOUND)
def test_names_and_the_given_model_stay(make: Make, name: str) -> None:
    model = _prepare(make, name)
    sites = _sites(model)
    before = serialize(model.model)
    after = rescale(model, sites, _factors(find_pairs(model, sites), 3))
    assert serialize(model.model) == before
    assert _sites(after) == sites
    assert [n.name for n in after.model.graph] == [n.name for n in model.model.graph]
    assert {p.value for p in find_pairs(after, sites)} == {p[1] for p in FOUND[name].pairs}
    assert replace(after, model=model.model) == model


@pytest.mark.parametrize("name", FOUND)
def test_the_same_bytes_whatever_the_order(make: Make, name: str) -> None:
    model = _prepare(make, name)
    sites = _sites(model)
    factors = _factors(find_pairs(model, sites), 4)
    first = serialize(rescale(model, sites, factors).model)
    assert serialize(rescale(model, sites, factors[::-1]).model) == first
    assert first != serialize(model.model)


def test_no_factors_change_nothing(make: Make) -> None:
    model = _prepare(make, "convolutions")
    assert serialize(rescale(model, _sites(model), []).model) == serialize(model.model)


def test_a_shared_constant_is_copied(make: Make, run: Run) -> None:
    """One scale serves two normalizations and a multiplication, of which one can be rescaled."""
    case = FOUND["a norm that a residual reads, one that none does"]
    model = make(case.text, case.initializers, case.opset)
    sites = _sites(model)
    after = rescale(model, sites, _factors(find_pairs(model, sites), 5)).model
    names = {str(n.outputs[0].name): [str(v.name) for v in n.inputs] for n in after.graph}
    assert names["a"][1] == "g"
    assert names["d"][1] == "g/rescaled"
    kept = after.graph.initializers["g"].const_value
    assert kept is not None
    np.testing.assert_array_equal(kept.numpy(), case.weights["g"])


def test_a_constant_shared_within_one_pair_is_not_copied(make: Make) -> None:
    """Scale and bias are the same constant, and nothing else reads it."""
    weights = {"g": np.ones(4, np.float32), "w": np.ones((4, 5), np.float32)}
    text = "g (float[N,4] x) => (float[] y) {a = LayerNormalization(x, g, g) y = MatMul(a, w)}"
    model = make(text, weights)
    after = rescale(model, _sites(model), _factors(find_pairs(model, _sites(model)), 6))
    assert set(after.model.graph.initializers) == {"g", "w"}


def test_weights_are_read_when_they_are_needed_and_not_kept(make: Make) -> None:
    model = _prepare(make, "gate")
    reads: list[str] = []
    for name in ("v", "w"):
        value = model.model.graph.initializers[name]
        tensor = value.const_value
        assert tensor is not None

        def compute(tensor: ir.TensorProtocol = tensor, name: str = name) -> ir.TensorProtocol:
            reads.append(name)
            return ir.Tensor(tensor.numpy(), name=name)

        value.const_value = ir.LazyTensor(
            compute, dtype=tensor.dtype, shape=ir.Shape(tensor.shape), name=name
        )
    sites = _sites(model)
    after = rescale(model, sites, _factors(find_pairs(model, sites), 7)).model
    assert reads == []
    changed = after.graph.initializers["w"].const_value
    assert changed is not None
    np.testing.assert_array_equal(changed.numpy(), changed.numpy())
    assert reads == ["w", "w"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_constants_keep_their_type(make: Make, run: Run, dtype: str) -> None:
    word = {"float16": "float16", "float64": "double"}[dtype]
    rng = np.random.default_rng(0)
    weights = {
        "g": rng.standard_normal(8).astype(dtype),
        "w": rng.standard_normal((8, 5)).astype(dtype),
    }
    text = f"g ({word}[N,8] x) => ({word}[] y) {{a = LayerNormalization(x, g) y = MatMul(a, w)}}"
    model = make(text, weights)
    site = Site("w", "MatMul", "MatMul", "w", (8, 5), 1, 1, "a", "y", dtype=dtype)
    site = replace(site, node=next(str(n.name) for n in model.model.graph if n.op_type == "MatMul"))
    after = rescale(model, [site], _factors(find_pairs(model, [site]), 8))
    x = rng.standard_normal((4, 8)).astype(dtype)
    (old,), (new,) = run(serialize(model.model), x=x), run(serialize(after.model), x=x)
    assert new.dtype == np.dtype(dtype)
    assert _relative(new, old) < {"float16": 3e-3, "float64": 1e-12}[dtype]


def test_wrong_factors_are_refused(make: Make) -> None:
    model = _prepare(make, "convolutions")
    sites = _sites(model)
    good = np.ones(6, np.float32)
    for factors, message in (
        ([ChannelFactors("y", good)], "value 'y' cannot be rescaled"),
        ([ChannelFactors("a", good)] * 2, "twice"),
        ([ChannelFactors("a", good[:5])], "needs 6 float32 factors"),
        ([ChannelFactors("a", good.astype(np.float64))], "needs 6 float32 factors"),  # type: ignore[arg-type]
        *(
            ([ChannelFactors("a", np.array([1, 1, 1, 1, 1, bad], np.float32))], "not finite")
            for bad in (0, -1, np.inf, np.nan)
        ),
    ):
        with pytest.raises(ValueError, match=message):
            rescale(model, sites, factors)
        with pytest.raises(ValueError, match=message):
            value_factors(find_pairs(model, sites), factors)
