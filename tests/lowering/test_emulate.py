from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import DTypeLike, NDArray

from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import ActivationScale, DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
Floats = NDArray[np.float32]
Through = Callable[..., Floats]

MXFP8 = DynamicScale("fp8_e4m3", 32, "e8m0")
UINT8 = DynamicScale("uint8")


def nvfp4(tensor_scale: float) -> DynamicScale:
    return DynamicScale("fp4_e2m1", 16, "fp8_e4m3", float(np.float32(tensor_scale)))


@pytest.fixture
def through(make: Make, run: Run) -> Through:
    """Pass an array through an emulated activation, by a product with an identity matrix."""

    def act(
        x: NDArray[Any],
        scale: ActivationScale,
        free: tuple[str, ...] | None = None,
        opset: int = 19,
    ) -> Floats:
        width, dtype = x.shape[-1], "float16" if x.dtype == np.float16 else "float"
        shape = ", ".join([*(free or [str(n) for n in x.shape[:-1]]), str(width)])
        prepared = make(
            f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ y = MatMul(x, w) }}",
            {"w": np.eye(width, dtype=x.dtype)},
            opset,
        )
        (site,) = find_sites(prepared).sites
        model = emulate(prepared, [QuantizedSite(site, None, scale)])
        (y,) = run(serialize(model), x=x)
        assert y.dtype == x.dtype
        return y.astype(np.float32)

    return act


@pytest.fixture
def through_fp8(through: Through) -> Callable[[Floats, float], Floats]:
    """Pass numbers through an emulated E4M3 activation of one scale."""

    def act(x: Floats, scale: float) -> Floats:
        return through(x.reshape(-1, 1), TensorScale("fp8_e4m3", np.float32(scale))).reshape(-1)

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


@pytest.mark.parametrize("storage", ["fp8_e4m3", "fp8_e5m2", "fp4_e2m1"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_float_format(through: Through, storage: str, dtype: DTypeLike) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 3, 50, 8)) * 10 ** rng.uniform(-3, 2, (2, 3, 50, 8))).astype(dtype)
    for scale in (
        TensorScale(storage, np.float32(0.25)),  # type: ignore[arg-type]
        TensorScale(storage, rng.uniform(0.01, 1, 8).astype(dtype).astype(np.float32), axis=-1),  # type: ignore[arg-type]
        TensorScale(storage, rng.uniform(0.01, 1, 3).astype(dtype).astype(np.float32), axis=1),  # type: ignore[arg-type]
    ):
        wanted = dequantize(quantize(x, scale), scale).astype(dtype)
        assert np.array_equal(through(x, scale), wanted.astype(np.float32))


@pytest.mark.parametrize("storage", ["fp8_e4m3", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("axis", [1, -3])
def test_channels_of_a_convolution(make: Make, run: Run, storage: str, axis: int) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 1, 1)).astype(np.float32)
    prepared = make("g (float[N, 3, H, W] x) => (float[N, 4, H, W] y) { y = Conv(x, w) }", {"w": w})
    (site,) = find_sites(prepared).sites
    scale = TensorScale(storage, np.array([0.01, 0.2, 3], np.float32), axis=axis)  # type: ignore[arg-type]
    x = rng.standard_normal((2, 3, 5, 4)).astype(np.float32)
    (y,) = run(serialize(emulate(prepared, [QuantizedSite(site, None, scale)])), x=x)
    (plain,) = run(serialize(prepared.model), x=dequantize(quantize(x, scale), scale))
    assert np.array_equal(y, plain)


def _mxfp8(x: NDArray[Any]) -> Floats:
    """OCP Microscaling formats 1.0, in numpy and ml_dtypes; scales of 2**-127 at least."""
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    amax = np.minimum(np.abs(blocks).max(axis=-1, keepdims=True), np.finfo(np.float32).max)
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1 - 8, -127)
    step = np.ldexp(1.0, np.maximum(exponent, -127)).astype(np.float32)
    assert np.array_equal(step.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32), step)
    with np.errstate(over="ignore"):
        stored = np.clip(blocks / step, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return np.asarray(stored.astype(np.float32) * step).reshape(x.shape)


def _nvfp4(x: NDArray[Any], tensor_scale: float) -> Floats:
    """NVIDIA's two levels, in numpy and ml_dtypes; a block whose scale is 0 is 0."""
    above = np.float32(tensor_scale)
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 16)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        wanted = np.minimum(amax / (np.float32(6) * above), 448)
    step = wanted.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * above
    with np.errstate(over="ignore"):
        ratio = np.where(step > 0, blocks / np.where(step > 0, step, 1), 0)
    stored = np.clip(ratio, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return np.asarray(stored.astype(np.float32) * step).reshape(x.shape)


def _wide(shape: tuple[int, ...], seed: int = 0, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Numbers of many magnitudes, with a block of zeros and one next to nothing."""
    rng = np.random.default_rng(seed)
    exponent = rng.uniform(-6, 3, (*shape[:-1], 1)) + rng.uniform(-1.5, 0.5, shape)
    x = (rng.standard_normal(shape) * 10.0**exponent).astype(dtype)
    x[0, ..., :32] = 0
    x[-1, ..., -32:] = np.float32(1e-7) * np.sign(x[-1, ..., -32:].astype(np.float32))
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(7, 64), (2, 5, 32), (3, 4, 5, 96)])
@pytest.mark.parametrize("opset", [13, 17, 19, 23])
def test_blocks_with_scales_of_their_own(
    through: Through, shape: tuple[int, ...], dtype: DTypeLike, opset: int
) -> None:
    x = _wide(shape, dtype=dtype)
    free = tuple("ABC"[: len(shape) - 1])

    def cast(y: Floats) -> Floats:
        return y.astype(dtype).astype(np.float32)

    assert np.array_equal(through(x, MXFP8, free, opset), cast(_mxfp8(x)))
    for tensor_scale in (float(np.abs(x).max()) / 2688, 1e-3, 1e-9):
        y = through(x, nvfp4(tensor_scale), free, opset)
        with np.errstate(over="ignore"):
            assert np.array_equal(y, cast(_nvfp4(x, float(tensor_scale))))


def test_block_scales_at_every_exponent(through: Through) -> None:
    """Every power of two that fp32 has, subnormal ones too, and what is around it."""
    ones = np.ldexp(1.0, np.arange(-149, 128)).astype(np.float32)
    sizes = np.concatenate([ones, *(np.nextafter(ones, np.float32(e)) for e in (0, np.inf))])
    rng = np.random.default_rng(0)
    x = sizes[:, None] * rng.uniform(-1, 1, (sizes.size, 32)).astype(np.float32)
    x[:, 3] = sizes
    assert np.array_equal(through(x, MXFP8), _mxfp8(x))
    for exponent in (-126, -100, -30, 0, 100):
        assert np.array_equal(through(x, nvfp4(2.0**exponent)), _nvfp4(x, 2.0**exponent))


def test_every_e4m3_scale_and_tie(through: Through) -> None:
    """Largest numbers of blocks that fall on, between and beside the E4M3 numbers."""
    every = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middle = (every[1:] + every[:-1]) / 2
    sizes = np.concatenate([every, middle, [500, 1e6]]).astype(np.float32)
    sizes = np.concatenate([sizes, *(np.nextafter(sizes, np.float32(e)) for e in (0, np.inf))])
    x = np.outer(sizes * 6, np.linspace(-1, 1, 16)).astype(np.float32)
    assert np.array_equal(through(x, nvfp4(1.0)), _nvfp4(x, 1.0))


def test_what_is_not_finite_in_a_block(through: Through) -> None:
    """A NaN is not hidden, and infinities saturate as they do everywhere."""
    x = np.ones((2, 32), np.float32)
    x[0, 5] = np.nan
    x[1, 5] = np.inf
    for scale in (MXFP8, nvfp4(1.0)):
        y = through(x, scale)
        assert np.isnan(y[0, 5])
        assert np.isfinite(y[1]).all()
        assert y[1, 5] >= 2688


@pytest.mark.parametrize(
    ("dims", "match"), [("N, 40", "no multiple of 16"), ("N, K", "no multiple of 16")]
)
def test_blocks_have_to_fit(make: Make, dims: str, match: str) -> None:
    prepared = make(
        f"g (float[{dims}] x) => (float[N, 4] y) {{ y = MatMul(x, w) }}",
        {"w": np.ones((40, 4), np.float32)},
    )
    (site,) = find_sites(prepared).sites
    with pytest.raises(ValueError, match=match):
        emulate(prepared, [QuantizedSite(site, None, nvfp4(1.0))])


def test_a_rank_has_to_be_known(make: Make) -> None:
    prepared = make(
        "g (float[N, 32] x) => (float[N, 4] y) { y = MatMul(x, w) }",
        {"w": np.ones((32, 4), np.float32)},
    )
    (site,) = find_sites(prepared).sites
    model = prepared.model.clone()
    model.graph.inputs[0].shape = None
    with pytest.raises(ValueError, match="'x': its rank is not known"):
        emulate(replace(prepared, model=model), [QuantizedSite(site, None, MXFP8)])


def test_scales_that_no_format_has(make: Make) -> None:
    prepared = make(
        "g (float[N, 32] x) => (float[N, 4] y) { y = MatMul(x, w) }",
        {"w": np.ones((32, 4), np.float32)},
    )
    (site,) = find_sites(prepared).sites
    for scale in (DynamicScale("fp8_e4m3"), DynamicScale("fp8_e4m3", 32)):
        with pytest.raises(ValueError, match="dynamic"):
            emulate(prepared, [QuantizedSite(site, None, scale)])


def _dynamic_quantize_linear(x: NDArray[Any]) -> Floats:
    """ONNX's definition of DynamicQuantizeLinear, and DequantizeLinear, in numpy."""
    x = np.asarray(x, np.float32)
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    step = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.rint(0 - low / step), 0, 255).astype(np.float32)
    stored = np.clip(np.rint(x / step) + zero, 0, 255)
    return np.asarray((stored - zero) * step, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_dynamic_uint8(through: Through, dtype: DTypeLike, shift: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal((3, 40, 6)) * 10 ** rng.uniform(-3, 2) + shift).astype(dtype)
        wanted = _dynamic_quantize_linear(x).astype(dtype).astype(np.float32)
        assert np.array_equal(through(x, UINT8, ("A", "B")), wanted)
    assert not through(np.zeros((2, 4), dtype), UINT8).any()


@pytest.mark.parametrize("storage", ["int4", "int8", "fp4_e2m1", "fp8_e4m3", "fp8_e5m2"])
def test_weights_alone(make: Make, run: Run, storage: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((40, 6)).astype(np.float32)
    prepared = make("g (float[N, 40] x) => (float[N, 6] y) { y = MatMul(x, w) }", {"w": w})
    (site,) = find_sites(prepared).sites
    step = rng.uniform(0.1, 0.3, (3, 6)).astype(np.float32)
    scale = TensorScale(storage, step, 0, 0, None, 16)  # type: ignore[arg-type]
    model = emulate(prepared, [QuantizedSite(site, scale, None)])
    assert [n.op_type for n in model.graph] == ["MatMul"]
    x = rng.standard_normal((5, 40)).astype(np.float32)
    (y,) = run(serialize(model), x=x)
    (plain,) = run(serialize(prepared.model), x=x)
    assert 0 < np.abs(y - plain).max() < 0.15 * np.abs(x).sum(axis=1).max() * 8
    held = model.graph.initializers[str(model.graph[0].inputs[1].name)].const_value
    assert held is not None
    assert held.numpy().tobytes() == dequantize(quantize(w, scale), scale).tobytes()
    assert held.dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    "scale",
    [TensorScale("fp8_e5m2", np.float32(0.01)), TensorScale("int8", np.float32(0.02)), UINT8],
)
def test_a_product_of_two_activations(make: Make, run: Run, scale: ActivationScale) -> None:
    prepared = make(
        "g (float[B, S, 8] q, float[B, 8, S] k) => (float[B, S, S] y) { y = MatMul(q, k) }"
    )
    (node,) = prepared.model.graph
    site = Site(
        "@matmul:a/0", str(node.name), "MatMul", "", (), 0, 1, "q", "y", second="k", scope="a"
    )
    model = emulate(prepared, [QuantizedSite(site, None, scale, second=scale)])
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 8), (2, 8, 3)))

    def act(x: Floats) -> Floats:
        if isinstance(scale, DynamicScale):
            return _dynamic_quantize_linear(x)
        return dequantize(quantize(x, scale), scale)

    (y,) = run(serialize(model), q=q, k=k)
    (plain,) = run(serialize(prepared.model), q=act(q), k=act(k))
    assert np.array_equal(y, plain)


def test_bfloat16_graphs(make: Make, run: Run) -> None:
    """A product that computes in fp32: onnxruntime has none in bfloat16 on a CPU."""
    prepared = make(
        "g (float[N, 32] x) => (float[N, 32] y)"
        "{ a = Cast<to = 16>(x) \n b = MatMul(a, w) \n y = Cast<to = 1>(b) }",
        {"w": np.eye(32, dtype=np.float32).astype(ml_dtypes.bfloat16)},
    )
    (node,) = (n for n in prepared.model.graph if n.op_type == "MatMul")
    site = Site("w", str(node.name), "MatMul", "w", (32, 32), 1, 1, "a", "b", dtype="bfloat16")
    x = _wide((50, 32))
    halves = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    fp8 = TensorScale("fp8_e4m3", np.float32(0.0123))
    held = replace(fp8, scale=np.float32(fp8.scale.astype(ml_dtypes.bfloat16)))
    for scale, wanted in (
        (MXFP8, _mxfp8(halves)),
        (nvfp4(1e-3), _nvfp4(halves, 1e-3)),
        (UINT8, _dynamic_quantize_linear(halves)),
        (fp8, dequantize(quantize(halves, held), held)),
    ):
        entry = QuantizedSite(site, None, scale, compute="float32")
        (y,) = run(serialize(emulate(prepared, [entry])), x=x)
        assert np.array_equal(y, wanted.astype(ml_dtypes.bfloat16).astype(np.float32))
        # Computed in bfloat16, it is valid ONNX at least.
        emulate(prepared, [replace(entry, compute=None)])


def test_the_same_arguments_give_the_same_bytes(make: Make) -> None:
    prepared = make(
        "g (float[N, 32] x) => (float[N, 4] y) { a = Relu(x) \n y = MatMul(a, w) }",
        {"w": np.ones((32, 4), np.float32)},
    )
    (site,) = find_sites(prepared).sites
    for scale in (MXFP8, nvfp4(0.1), UINT8):
        entry = QuantizedSite(site, TensorScale("int8", np.float32(0.1)), scale)
        assert serialize(emulate(prepared, [entry])) == serialize(emulate(prepared, [entry]))
