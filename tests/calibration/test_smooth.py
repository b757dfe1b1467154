from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.calibration.balance import balance
from bitworth.calibration.equalize import equalize_factors
from bitworth.calibration.merging import rescaled
from bitworth.calibration.scaled_sites import quantize_sites
from bitworth.calibration.smooth import needed_channels, smooth_factors
from bitworth.calibration.statistics import RangeAccumulator, RangeStatistics
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.rescaling import ChannelFactors, rescale, value_factors
from bitworth.recipe.granularity import PER_CHANNEL, PER_TENSOR, Granularity
from bitworth.recipe.recipe import Quantize
from bitworth.recipe.site import Site
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.rescalable import Pair, find_pairs
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
Floats = NDArray[np.float32]
Entries = list[tuple[Site, Quantize]]

NORM = "g (float[N,S,32] x) => (float[] y) {a = LayerNormalization(x, g, b) y = MatMul(a, w)}"
CONVS = """g (float[N,3,8,8] x) => (float[] y) {
    a = Conv(x, u, i) c = Relu(a) d = Conv(c, v, j) e = Relu(d) y = Conv(e, w) }"""
ROWS = "g (float[N,8] x) => (float[] y) {a = MatMul(x, v) c = Relu(a) y = MatMul(c, w)}"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(graph: str, weights: Mapping[str, NDArray[np.generic]]) -> PreparedModel:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{graph}')
        for key, array in weights.items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        onnx.save(model, tmp_path / "model.onnx")
        return prepare(load(tmp_path / "model.onnx"), 17)

    return build


@pytest.fixture
def run() -> Run:
    def execute(model: bytes, **inputs: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, inputs))

    return execute


def _rand(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _spread(count: int, seed: int = 0) -> Floats:
    """Sizes from 1/30 to 30."""
    rng = np.random.default_rng((seed, count))
    sizes: Floats = np.exp(rng.uniform(-3.4, 3.4, count)).astype(np.float32)
    return sizes


def _norm_weights() -> dict[str, Floats]:
    """A normalization with three outlier channels, as transformers have them."""
    g = np.ones(32, np.float32)
    g[[3, 11, 20]] = 60, 40, 80
    return {"g": g, "b": _rand(32) / 10, "w": _rand(32, 16)}


def _conv_weights() -> dict[str, Floats]:
    """Three convolutions whose channels between are badly scaled, and cancel in the whole."""
    first, second = _spread(8, 1), _spread(8, 2)
    return {
        "u": _rand(8, 3, 3, 3) * first[:, None, None, None],
        "i": _rand(8) * first,
        "v": _rand(8, 8, 1, 1) / first[:, None, None] * second[:, None, None, None],
        "j": _rand(8, seed=1) * second,
        "w": _rand(5, 8, 1, 1) / second[:, None, None],
    }


def _entries(model: PreparedModel, **fields: object) -> Entries:
    entry = Quantize(
        "all", "int8", sign="s8", zero_point="symmetric", weight_range="full",
        placement="input_only",
    )  # fmt: skip
    chosen = replace(entry, **fields)  # type: ignore[arg-type]
    return [(site, chosen) for site in find_sites(model).sites]


def _pairs(model: PreparedModel) -> tuple[Pair, ...]:
    return find_pairs(model, find_sites(model).sites)


def _values(model: PreparedModel, run: Run, x: Floats) -> dict[str, NDArray[np.generic]]:
    copy = model.model.clone()
    names = [v for node in copy.graph for v in node.outputs]
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(names)
    values = dict(zip([str(v.name) for v in names], run(serialize(copy), x=x), strict=True))
    return {"x": x, **values}


def _statistics(model: PreparedModel, run: Run, x: Floats) -> dict[str, RangeStatistics]:
    axes = needed_channels(_pairs(model))
    found = {}
    for name, array in _values(model, run, x).items():
        seen = RangeAccumulator()
        seen.add(array)
        found[name] = seen.finish()
        if name in axes:
            rows = np.moveaxis(array.astype(np.float64), axes[name], 0).reshape(
                array.shape[axes[name]], -1
            )
            found[name] = replace(
                found[name], channel_minimum=rows.min(axis=1), channel_maximum=rows.max(axis=1)
            )
    return found


def _int8_error(
    model: PreparedModel,
    run: Run,
    entries: Entries,
    factors: Sequence[ChannelFactors],
    statistics: Mapping[str, RangeStatistics],
    x: Floats,
) -> float:
    """Relative L2 of the lowered graph's output, with the ranges known from ``statistics``."""
    known = dict(statistics)
    for name, numbers in value_factors(_pairs(model), factors).items():
        known[name] = rescaled(known[name], numbers)
    moved = rescale(model, [site for site, _ in entries], factors)
    scaled = quantize_sites(moved.model, entries, known, {})
    assert len(scaled.quantized) == len(entries)
    (wanted,) = run(serialize(model.model), x=x)
    (found,) = run(serialize(lower(moved, scaled.quantized)), x=x)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.85, 1.0])
def test_factors_are_those_of_the_paper(make: Make, run: Run, alpha: float) -> None:
    model = make(NORM, _norm_weights())
    x = _rand(4, 6, 32, seed=3)
    seen = _statistics(model, run, x)
    (found,) = smooth_factors(model, _pairs(model), _entries(model, smooth=alpha), seen)
    activation = np.abs(_values(model, run, x)["a"]).astype(np.float64).max(axis=(0, 1))
    weight = np.abs(_norm_weights()["w"]).astype(np.float64).max(axis=1)
    assert found.value == "a"
    assert found.factors.dtype == np.float32
    np.testing.assert_allclose(found.factors, activation**alpha / weight ** (1 - alpha), rtol=1e-6)


def test_all_consumers_share_the_factors(make: Make, run: Run) -> None:
    """Each channel's weight is the largest of all that read it, its activation of all readings."""
    text = """g (float[N,8] x) => (float[] y) { a = LayerNormalization(x, g, g)
        c = Relu(a) d = MatMul(a, v) e = MatMul(c, w) y = Add(d, e) }"""
    weights = {"g": _spread(8), "v": _rand(8, 5), "w": _rand(8, 5, seed=1)}
    model = make(text, weights)
    x = _rand(9, 8)
    seen = _statistics(model, run, x)
    (found,) = smooth_factors(model, _pairs(model), _entries(model, smooth=0.5), seen)
    activation = np.abs(_values(model, run, x)["a"]).max(axis=0)
    weight = np.maximum(np.abs(weights["v"]), np.abs(weights["w"])).max(axis=1)
    np.testing.assert_allclose(found.factors, np.sqrt(activation / weight), rtol=1e-6)


def test_a_channel_flattened_with_its_pixels_is_one_channel(make: Make, run: Run) -> None:
    text = """g (float[N,3,4,4] x) => (float[] y) {
        a = Conv(x, v) c = Flatten(a) y = Gemm(c, w) }"""
    weights = {"v": _rand(6, 3, 3, 3) * _spread(6)[:, None, None, None], "w": _rand(24, 5)}
    model = make(text, weights)
    x = _rand(7, 3, 4, 4)
    seen = _statistics(model, run, x)
    (found,) = smooth_factors(model, _pairs(model), _entries(model, smooth=0.5), seen)
    activation = np.abs(_values(model, run, x)["a"]).max(axis=(0, 2, 3))
    weight = np.abs(weights["w"]).reshape(6, -1).max(axis=1)
    np.testing.assert_allclose(found.factors, np.sqrt(activation / weight), rtol=1e-6)


@pytest.mark.parametrize("weights", [PER_CHANNEL, PER_TENSOR])
def test_smoothing_lowers_the_error_of_outlier_channels(
    make: Make, run: Run, weights: Granularity
) -> None:
    """At least 10 times, on data that calibration has not seen."""
    model = make(NORM, _norm_weights() | {"w": _rand(32, 16) / _norm_weights()["g"][:, None]})
    seen = _statistics(model, run, _rand(64, 6, 32, seed=4))
    entries = _entries(model, smooth=0.5, weights=weights)
    factors = smooth_factors(model, _pairs(model), entries, seen)
    x = _rand(16, 6, 32, seed=5)
    plain = _int8_error(model, run, entries, (), seen, x)
    assert _int8_error(model, run, entries, factors, seen, x) < plain / 10


@pytest.mark.parametrize("weights", [PER_CHANNEL, PER_TENSOR])
def test_equalizing_lowers_the_error_of_badly_scaled_channels(
    make: Make, run: Run, weights: Granularity
) -> None:
    """At least 10 times, on data that calibration has not seen."""
    model = make(CONVS, _conv_weights())
    seen = _statistics(model, run, _rand(32, 3, 8, 8, seed=4))
    entries = _entries(model, equalize=True, weights=weights)
    factors = equalize_factors(model, _pairs(model), entries)
    x = _rand(8, 3, 8, 8, seed=5)
    plain = _int8_error(model, run, entries, (), seen, x)
    assert _int8_error(model, run, entries, factors, seen, x) < plain / 10


def _amax(model: PreparedModel, name: str, axis: int) -> NDArray[np.float64]:
    tensor = model.model.graph.initializers[name].const_value
    assert tensor is not None
    array = np.moveaxis(np.abs(tensor.numpy()).astype(np.float64), axis, 0)
    largest: NDArray[np.float64] = array.reshape(array.shape[0], -1).max(axis=1)
    return largest


def test_a_chain_is_equalized_as_a_whole(make: Make) -> None:
    """Behind each convolution its channels' ranges are those of the next one, within the step."""
    model = make(CONVS, _conv_weights())
    factors = equalize_factors(model, _pairs(model), _entries(model, equalize=True))
    assert [f.value for f in factors] == ["a", "d"]
    moved = rescale(model, find_sites(model).sites, factors)
    for writer, reader in (("u", "v"), ("v", "w")):
        ratio = _amax(moved, writer, 0) / _amax(moved, reader, 1)
        np.testing.assert_allclose(ratio, 1, rtol=0.03)
        unequal = _amax(model, writer, 0) / _amax(model, reader, 1)
        assert unequal.max() / unequal.min() > 30


def test_a_weight_with_one_scale_loses_less_when_equalized(make: Make) -> None:
    """Mean error of rounding, relative to each output channel: a third at most."""
    model = make(CONVS, _conv_weights())
    factors = equalize_factors(model, _pairs(model), _entries(model, equalize=True))
    moved = rescale(model, find_sites(model).sites, factors)

    def error(of: PreparedModel, name: str) -> float:
        tensor = of.model.graph.initializers[name].const_value
        assert tensor is not None
        weight = tensor.numpy()
        step = np.abs(weight).max() / 127
        lost = np.abs(np.rint(weight / step) * step - weight).reshape(len(weight), -1)
        return float((lost.mean(axis=1) / np.abs(weight).reshape(len(weight), -1).mean(1)).mean())

    for name in ("u", "v"):
        assert error(moved, name) < error(model, name) / 3


def test_a_norm_is_equalized_by_its_scale(make: Make) -> None:
    model = make(NORM, _norm_weights())
    (found,) = equalize_factors(model, _pairs(model), _entries(model, equalize=True))
    wanted = np.sqrt(np.abs(_norm_weights()["g"]) / _amax(model, "w", 0))
    np.testing.assert_allclose(found.factors, wanted, rtol=1e-6)


def test_the_same_factors_each_time(make: Make, run: Run) -> None:
    model = make(CONVS, _conv_weights())
    seen = _statistics(model, run, _rand(4, 3, 8, 8))
    for _ in range(2):
        smooth = smooth_factors(model, _pairs(model), _entries(model, smooth=0.5), seen)
        again = smooth_factors(model, _pairs(model), _entries(model, smooth=0.5), seen)
        assert [f.factors.tobytes() for f in smooth] == [f.factors.tobytes() for f in again]


def test_only_pairs_whose_sites_agree_are_smoothed(make: Make, run: Run) -> None:
    model = make(ROWS, {"v": _rand(8, 6), "w": _rand(6, 5)})
    seen = _statistics(model, run, _rand(9, 8))
    pairs = _pairs(model)
    first, second = _entries(model, smooth=0.5)
    off = replace(second[1], smooth=None)

    def count(*entries: tuple[Site, Quantize]) -> int:
        return len(smooth_factors(model, pairs, entries, seen))

    assert count(first, second) == 1
    assert count(second) == 1
    assert count(first) == 0
    assert count(first, (second[0], off)) == 0
    assert count((first[0], off), second) == 1
    # Its one scale would have to serve output channels that are divided by different numbers.
    assert count((first[0], replace(first[1], weights=PER_TENSOR)), second) == 0


def test_consumers_with_two_alphas_are_left_alone(make: Make, run: Run) -> None:
    text = """g (float[N,8] x) => (float[] y) { a = LayerNormalization(x, g)
        d = MatMul(a, v) e = MatMul(a, w) y = Add(d, e) }"""
    model = make(text, {"g": _spread(8), "v": _rand(8, 5), "w": _rand(8, 5, seed=1)})
    seen = _statistics(model, run, _rand(9, 8))
    first, second = _entries(model, smooth=0.5)
    other = (second[0], replace(second[1], smooth=0.7))
    assert len(smooth_factors(model, _pairs(model), (first, second), seen)) == 1
    assert smooth_factors(model, _pairs(model), (first, other), seen) == ()
    assert smooth_factors(model, _pairs(model), (first,), seen) == ()


def test_only_where_both_sides_ask_for_it_is_equalized(make: Make) -> None:
    model = make(CONVS, _conv_weights())
    entries = _entries(model, equalize=True)
    pairs = _pairs(model)
    off = [(site, replace(entry, equalize=False)) for site, entry in entries]
    assert len(equalize_factors(model, pairs, entries)) == 2
    for k, left in ((0, ["d"]), (1, []), (2, ["a"])):
        some = [off[i] if i == k else entry for i, entry in enumerate(entries)]
        assert [f.value for f in equalize_factors(model, pairs, some)] == left
        fewer = [entry for i, entry in enumerate(entries) if i != k]
        assert [f.value for f in equalize_factors(model, pairs, fewer)] == left


def test_heads_of_a_quantized_product_are_left_alone(make: Make, run: Run) -> None:
    """The range of a value with channels on several axes would not be known any more."""
    text = """g (float[N,S,4] x) => (float[] y) {
        a = MatMul(x, v) h = Reshape(a, heads) t = Transpose<perm = [0, 2, 1, 3]>(h)
        z = MatMul(x, u) s = Reshape(z, square) p = Softmax(s) o = MatMul(p, t)
        q = Transpose<perm = [0, 2, 1, 3]>(o) m = Reshape(q, merged) y = MatMul(m, w) }"""
    weights = {
        "v": _rand(4, 6),
        "u": _rand(4, 10),
        "w": _rand(6, 5),
        "heads": np.array([0, 0, 2, 3]),
        "square": np.array([0, 2, 5, 5]),
        "merged": np.array([0, 0, 6]),
    }
    model = make(text, weights)
    seen = _statistics(model, run, _rand(2, 5, 4))
    pairs = _pairs(model)
    product = Site("@matmul:o", "o", "MatMul", "", (), 0, 1, "p", "o", second="t")
    for fields, act in (
        ({"smooth": 0.5}, lambda e: smooth_factors(model, pairs, e, seen)),
        ({"equalize": True}, lambda e: equalize_factors(model, pairs, e)),
    ):
        entries = _entries(model, **fields)
        assert [f.value for f in act(entries)] == ["a"]
        assert act([*entries, (product, entries[0][1])]) == ()


def test_needed_channels_are_those_of_every_divided_value(make: Make) -> None:
    model = make(CONVS, _conv_weights())
    assert needed_channels(_pairs(model)) == {"a": -3, "c": -3, "d": -3, "e": -3}


def test_missing_channel_extremes_are_an_error(make: Make, run: Run) -> None:
    model = make(ROWS, {"v": _rand(8, 6), "w": _rand(6, 5)})
    seen = _statistics(model, run, _rand(9, 8))
    entries = _entries(model, smooth=0.5)
    for broken in (
        {k: v for k, v in seen.items() if k != "c"},
        seen | {"c": replace(seen["c"], channel_minimum=None, channel_maximum=None)},
    ):
        with pytest.raises(ValueError, match=r"value 'c'.*extremes"):
            smooth_factors(model, _pairs(model), entries, broken)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_dead_channels_widen_no_range(alpha: float) -> None:
    rng = np.random.default_rng(1)
    first, second = np.exp(rng.normal(0, 4, (2, 40)))
    first[[0, 1, 2]], second[[1, 2, 3]] = 0, 0
    first[4:8], second[8:12] = 0, 0
    factors = balance(first, second, alpha)
    live = (first > 0) & (second > 0)
    assert (factors[[1, 2]] == 1).all()
    assert ((factors >= 1e-5) & (factors <= 1e5)).all()
    assert (first / factors).max() <= (first[live] / factors[live]).max() * (1 + 1e-9)
    assert (second * factors).max() <= (second[live] * factors[live]).max() * (1 + 1e-9)
    # One that is within the others' range anyway is left as it is.
    quiet = first.copy()
    quiet[3] = (first[live] / factors[live]).min() / 2
    assert balance(quiet, second, alpha)[3] == 1


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_nothing_is_moved_where_all_channels_are_dead(alpha: float) -> None:
    dead = np.zeros(5)
    assert (balance(dead, np.ones(5), alpha) == 1).all()
    assert (balance(np.ones(5), dead, alpha) == 1).all()


def test_factors_stay_within_their_limits() -> None:
    factors = balance(np.array([1e30, 1e-30, 1.0]), np.array([1e-30, 1e30, 1.0]), 0.5)
    np.testing.assert_array_equal(factors, [1e5, 1e-5, 1.0])
