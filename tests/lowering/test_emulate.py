from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
Floats = NDArray[np.float32]


@pytest.fixture
def through_fp8(make: Make, run: Run) -> Callable[[Floats, float], Floats]:
    """Pass an array through an emulated fp8 activation, by a product with an identity matrix."""
    prepared = make(
        "g (float[N, 1] x) => (float[N, 1] y) { y = MatMul(x, w) }",
        {"w": np.ones((1, 1), np.float32)},
    )
    (site,) = find_sites(prepared).sites
    weight = TensorScale("fp8_e4m3", np.ones(1, np.float32), 0, site.weight_axis)

    def act(x: Floats, scale: float) -> Floats:
        quantized = QuantizedSite(site, weight, TensorScale("fp8_e4m3", np.float32(scale)))
        model = emulate(prepared, [quantized])
        (y,) = run(serialize(model), x=x.reshape(-1, 1))
        return y.astype(np.float32).reshape(-1)

    return act


def _by_ml_dtypes(x: Floats, scale: float = 1.0) -> Floats:
    s = np.float32(scale)
    with np.errstate(over="ignore"):
        fp8 = np.clip(x / s, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return fp8.astype(np.float32) * s


def test_every_code_point_and_tie(through_fp8: Callable[[Floats, float], Floats]) -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    points = np.unique(codes[np.isfinite(codes)])
    ties = (points[1:] + points[:-1]) / 2
    x = np.concatenate([points, ties])
    infinity = np.float32(np.inf)
    x = np.concatenate([x, np.nextafter(x, infinity), np.nextafter(x, -infinity)])
    assert np.array_equal(through_fp8(x, 1.0), _by_ml_dtypes(x))


def test_every_fp32_mantissa(through_fp8: Callable[[Floats, float], Floats]) -> None:
    # Rounding of normal numbers is the same in each binade: one covers all of them. The binades
    # around the smallest normal, 2**-6, are where the two ways of rounding meet.
    mantissas = np.arange(0, 2**23, 3, dtype=np.uint32)
    for exponent in (127, 127 - 6, 127 - 7, 127 - 10):
        x = (mantissas | np.uint32(exponent << 23)).view(np.float32)
        assert np.array_equal(through_fp8(x, 1.0), _by_ml_dtypes(x))


@pytest.mark.parametrize("scale", [1.0, 0.37, 3e-5, 1e4])
def test_random_numbers_and_extremes(
    through_fp8: Callable[[Floats, float], Floats], scale: float
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(100_000) * 10.0 ** rng.uniform(-8, 4, 100_000)).astype(np.float32)
    x = np.concatenate([x, np.array([0, -0.0, 3e38, -3e38, 1e-40, 448, 464, 480], np.float32)])
    assert np.array_equal(through_fp8(x, scale), _by_ml_dtypes(x, scale))


def test_what_is_not_finite_is_not_hidden(
    through_fp8: Callable[[Floats, float], Floats],
) -> None:
    assert np.isnan(through_fp8(np.array([np.nan], np.float32), 1.0)).all()


@pytest.mark.parametrize(
    "activation",
    [
        TensorScale("int8", np.array(0.021, np.float32)),
        TensorScale("uint8", np.array(0.037, np.float32), 117),
        TensorScale("fp8_e4m3", np.array(0.0123, np.float32)),
    ],
)
def test_the_emulated_graph_equals_the_lowered_one(
    make: Make, run: Run, activation: TensorScale
) -> None:
    rng = np.random.default_rng(0)
    prepared = make(
        "g (float[N, 8] x) => (float[N, 8] y)"
        "{ a = MatMul(x, w) \n r = Relu(a) \n b = MatMul(r, v) \n y = Add(b, r) }",
        {k: rng.standard_normal((8, 8)).astype(np.float32) for k in "wv"},
    )
    storage = "fp8_e4m3" if activation.storage == "fp8_e4m3" else "int8"
    quantized = [
        QuantizedSite(
            site,
            TensorScale(storage, rng.uniform(0.01, 0.03, 8).astype(np.float32), 0, 1),
            activation,
            "r" if site.weight == "w" else None,
            activation if site.weight == "w" else None,
        )
        for site in find_sites(prepared).sites
    ]
    x = rng.standard_normal((64, 8)).astype(np.float32)
    (lowered,) = run(serialize(lower(prepared, quantized)), x=x)
    (emulated,) = run(serialize(emulate(prepared, quantized)), x=x)
    assert np.array_equal(lowered, emulated)


def test_one_chain_a_value(make: Make) -> None:
    prepared = make(
        "g (float[N, 4] x) => (float[N, 4] a, float[N, 4] b)"
        "{ a = MatMul(x, w) \n b = MatMul(x, v) }",
        {"w": np.ones((4, 4), np.float32), "v": np.ones((4, 4), np.float32)},
    )
    one = TensorScale("fp8_e4m3", np.float32(1))
    model = emulate(prepared, [QuantizedSite(s, one, one) for s in find_sites(prepared).sites])
    ops = [n.op_type for n in model.graph]
    assert ops.count("Div") == 1
    assert "Cast" not in ops
