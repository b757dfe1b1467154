"""Weight-only forms of every storage, against numpy, in every engine that can run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from bitworth.errors import UserError
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.opsets import needed_opset
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.lowering.weights import dequantize, quantize
from bitworth.recipe.site import Site
from bitworth.subject.prepare import PreparedModel
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Make = Callable[..., PreparedModel]
Run = Callable[..., list[NDArray[np.generic]]]
RunOptimized = Callable[..., tuple[list[NDArray[np.generic]], Counter[str]]]
Floats = NDArray[np.float32]

# Of onnxruntime's kernels for DequantizeLinear, opset 21 is the last.
LAST_OPSET = 21
TOP = {"int8": 127, "int4": 7, "fp8_e4m3": 448, "fp8_e5m2": 57344, "fp4_e2m1": 6}

# Storage, block (None: a scale for each channel, 0: one for the tensor), how scales are stored.
FORMS = {
    "int8 tensor": ("int8", 0, "float"),
    "int8 channel": ("int8", None, "float"),
    "int8 blocks": ("int8", 32, "float"),
    "int4 channel": ("int4", None, "float"),
    "int4 blocks": ("int4", 32, "float"),
    "fp8_e4m3 channel": ("fp8_e4m3", None, "float"),
    "fp8_e4m3 blocks": ("fp8_e4m3", 16, "float"),
    "fp8_e5m2 channel": ("fp8_e5m2", None, "float"),
    "nvfp4": ("fp4_e2m1", 16, "fp8_e4m3"),
    "mxfp8": ("fp8_e4m3", 32, "e8m0"),
}
OPSETS = {
    "int8 tensor": 13, "int8 channel": 13, "int8 blocks": 21, "int4 channel": 21,
    "int4 blocks": 21, "fp8_e4m3 channel": 19, "fp8_e4m3 blocks": 21, "fp8_e5m2 channel": 19,
    "nvfp4": 23, "mxfp8": 24,
}  # fmt: skip
KINDS = {
    "MatMul": ("MatMul(x, w)", (64, 32), (5, 64)),
    "MatMul of matrices": ("MatMul(x, w)", (2, 64, 32), (2, 5, 64)),
    "MatMul from the left": ("MatMul(w, x)", (32, 64), (64, 5)),
    "Gemm": ("Gemm(x, w, b)", (64, 32), (5, 64)),
    "Gemm, transposed": ("Gemm<transB = 1>(x, w, b)", (32, 64), (5, 64)),
    "Conv 1x1": ("Conv(x, w, b)", (32, 64, 1, 1), (1, 64, 6, 6)),
    "Conv": ("Conv<pads = [1, 1, 1, 1]>(x, w, b)", (32, 64, 3, 3), (1, 64, 6, 6)),
    "ConvTranspose": ("ConvTranspose(x, w, b)", (64, 32, 2, 2), (1, 64, 4, 4)),
}


def _rand(*shape: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng((seed, *shape))
    return rng.standard_normal(shape).astype(np.float32)


def _scale(weight: Floats, site: Site, form: str) -> TensorScale:
    storage, block, stored = FORMS[form]
    top = np.float32(TOP[storage])
    if block == 0:
        return TensorScale(storage, np.array(np.abs(weight).max() / top, np.float32))  # type: ignore[arg-type]
    if block is None:
        axes = tuple(i for i in range(weight.ndim) if i != site.weight_axis)
        step = (np.abs(weight).max(axis=axes) / top).astype(np.float32)
        return TensorScale(storage, step, axis=site.weight_axis)  # type: ignore[arg-type]
    axis = site.block_axis
    shape = weight.shape
    cut = weight.reshape(*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    amax = np.abs(cut).max(axis=axis + 1).astype(np.float32)
    tensor_scale = None
    if stored == "fp8_e4m3":
        tensor_scale = float(np.float32(np.abs(weight).max() / (top * np.float32(448))))
        step = amax / (top * np.float32(tensor_scale))
        step = step.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    elif stored == "e8m0":
        step = np.exp2(np.floor(np.log2(amax)) - 8).astype(np.float32)
    else:
        step = amax / top
    return TensorScale(
        storage, step, axis=axis, block=block, scale_storage=stored, tensor_scale=tensor_scale  # type: ignore[arg-type]
    )  # fmt: skip


def _model(make: Make, kind: str, weight: Floats, opset: int) -> PreparedModel:
    op, _, x_shape = KINDS[kind]
    dims = ", ".join(map(str, x_shape))
    free = ", ".join("abcd"[: len(x_shape)])
    weights = {"w": weight}
    if "b" in op:
        weights["b"] = _rand(32, seed=7)
    return make(f"g (float[{dims}] x) => (float[{free}] y) {{ y = {op} }}", weights, opset=opset)


def _attribute(node: ir.Node, name: str) -> object:
    return node.attributes[name].value if name in node.attributes else None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_engines_compute_what_numpy_says(
    make: Make,
    run: Run,
    run_optimized: RunOptimized,
    run_openvino: Run,
    kind: str,
    form: str,
) -> None:
    weight = _rand(*KINDS[kind][1])
    prepared = _model(make, kind, weight, OPSETS[form])
    (site,) = find_sites(prepared).sites
    scale = _scale(weight, site, form)
    entry = QuantizedSite(site, scale, None)
    assert needed_opset(entry) == OPSETS[form]
    model = lower(prepared, [entry])
    data = serialize(model)
    onnx.checker.check_model(data, full_check=True)

    x = _rand(*KINDS[kind][2], seed=3)
    meant = dequantize(quantize(weight, scale), scale)
    (want,) = run(serialize(_model(make, kind, meant, 13).model), x=x)
    close = {"rtol": 1e-4, "atol": 1e-4}
    (z,) = run_openvino(data, x=x)
    assert np.allclose(z, want, **close)
    if OPSETS[form] <= LAST_OPSET:
        assert np.allclose(run(data, x=x)[0], want, **close)
        (y,), _ = run_optimized(data, x=x)
        assert np.allclose(y, want, **close)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp8"])
def test_forms_without_a_kernel_follow_the_specification(make: Make, form: str) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, OPSETS[form])
    (site,) = find_sites(prepared).sites
    scale = _scale(weight, site, form)
    model = lower(prepared, [QuantizedSite(site, scale, None)])
    x = _rand(5, 64)
    (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert np.allclose(y, x @ dequantize(quantize(weight, scale), scale), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [f for f in FORMS if OPSETS[f] == LAST_OPSET and "int" in f])
def test_onnxruntime_fuses_weights_of_a_product(
    make: Make, run_optimized: RunOptimized, form: str
) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, LAST_OPSET)
    (site,) = find_sites(prepared).sites
    model = lower(prepared, [QuantizedSite(site, _scale(weight, site, form), None)])
    _, ops = run_optimized(serialize(model), x=_rand(5, 64))
    assert ops == Counter(MatMulNBits=1)


def test_the_two_levels_of_nvfp4(make: Make) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, 23)
    (site,) = find_sites(prepared).sites
    model = lower(prepared, [QuantizedSite(site, _scale(weight, site, "nvfp4"), None)])
    scales, data = (n for n in model.graph if n.op_type == "DequantizeLinear")
    kinds = [v.dtype for node in (scales, data) for v in node.inputs if v]
    assert kinds == [
        ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT, ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT
    ]  # fmt: skip
    assert scales.attributes == {}
    assert _attribute(data, "block_size") == 16
    assert _attribute(data, "axis") == 0
    assert model.graph.initializers["w/quantized"].const_value.nbytes == 64 * 32 // 2


def test_powers_of_two_of_mxfp8(make: Make) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, 24)
    (site,) = find_sites(prepared).sites
    model = lower(prepared, [QuantizedSite(site, _scale(weight, site, "mxfp8"), None)])
    (node,) = (n for n in model.graph if n.op_type == "DequantizeLinear")
    assert model.graph.initializers["w/scale"].dtype == ir.DataType.FLOAT8E8M0
    assert _attribute(node, "output_dtype") == ir.DataType.FLOAT.value
    assert _attribute(node, "block_size") == 32


def test_blocks_have_no_zero_points(make: Make) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, 21)
    (site,) = find_sites(prepared).sites
    model = lower(prepared, [QuantizedSite(site, _scale(weight, site, "int4 blocks"), None)])
    assert set(model.graph.initializers) == {"w/quantized", "w/scale"}


@pytest.mark.parametrize("form", ["int8 blocks", "int4 blocks", "nvfp4", "mxfp8"])
def test_an_axis_that_is_no_multiple_of_the_block_is_named(make: Make, form: str) -> None:
    weight = _rand(40, 32)
    prepared = make(
        "g (float[5, 40] x) => (float[5, 32] y) { y = MatMul(x, w) }", {"w": weight}, OPSETS[form]
    )
    (site,) = find_sites(prepared).sites
    block = FORMS[form][1]
    assert block
    blocks = -(-40 // block)
    scale = replace(_scale(_rand(64, 32), site, form), scale=np.ones((blocks, 32), np.float32))
    with pytest.raises(ValueError, match=r"site 'w': axis 0 of its weight has 40 elements"):
        lower(prepared, [QuantizedSite(site, scale, None)])


@pytest.mark.parametrize("form", FORMS)
def test_a_lower_opset_is_refused(make: Make, form: str) -> None:
    weight = _rand(64, 32)
    prepared = _model(make, "MatMul", weight, OPSETS[form] - 1)
    (site,) = find_sites(prepared).sites
    entry = QuantizedSite(site, _scale(weight, site, form), None)
    with pytest.raises(UserError, match=f"site 'w' needs opset {OPSETS[form]}, the graph has"):
        lower(prepared, [entry])


def test_half_precision_needs_a_higher_opset(make: Make) -> None:
    prepared = _model(make, "MatMul", _rand(64, 32), 19)
    (site,) = find_sites(prepared).sites
    entry = QuantizedSite(site, _scale(_rand(64, 32), site, "int8 channel"), None)
    assert needed_opset(entry) == 13
    for other in ("float16", "bfloat16"):
        assert needed_opset(replace(entry, site=replace(site, dtype=other))) == 19
        assert needed_opset(replace(entry, compute=other)) == 19


@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [((), 0, None), ((31,), 1, None), ((2, 32), 0, 16), ((4, 31), 0, 16), ((4,), None, None)],
)
def test_scales_that_do_not_fit(
    make: Make, shape: Sequence[int], axis: int | None, block: int | None
) -> None:
    prepared = _model(make, "MatMul", _rand(64, 32), 21)
    (site,) = find_sites(prepared).sites
    scale = TensorScale("int8", np.ones(shape, np.float32), axis=axis, block=block)
    with pytest.raises(ValueError, match="site 'w': scales of shape"):
        lower(prepared, [QuantizedSite(site, scale, None)])


def test_one_weight_in_three_forms(make: Make, run: Run, run_openvino: Run) -> None:
    weight = _rand(32, 32)
    prepared = make(
        "g (float[4, 32] x) => (float[4, 32] a, float[4, 32] b, float[4, 32] c, float[4, 32] d)"
        "{ a = MatMul(x, w) \n b = Gemm<transB = 1>(x, w) \n c = MatMul(x, w)"
        "\n d = MatMul(x, w) }",
        {"w": weight},
        opset=21,
    )
    sites = find_sites(prepared).sites
    forms = ("int4 blocks", "int4 blocks", "int8 channel", "int4 blocks")
    scales = [_scale(weight, s, f) for s, f in zip(sites, forms, strict=True)]
    model = lower(prepared, [QuantizedSite(s, q, None) for s, q in zip(sites, scales, strict=True)])
    # Blocks along rows for a and d, along columns for b, and channels for c.
    stored = [n for n in model.graph.initializers if n.startswith("w/quantized")]
    assert len(stored) == 3
    x = _rand(4, 32)
    fakes = [dequantize(quantize(weight, s), s) for s in scales]
    want = [x @ fakes[0], x @ fakes[1].T, x @ fakes[2], x @ fakes[3]]
    for outputs in (run(serialize(model), x=x), run_openvino(serialize(model), x=x)):
        for got, wanted in zip(outputs, want, strict=True):
            assert np.allclose(got, wanted, atol=1e-4)
