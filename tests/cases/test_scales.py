"""Rows 1, 2, 3 and 6: tensors and channels that are zero or nearly so, and the biases behind them.

Each row is asked of every operator that can be a site, and of every format and granularity.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bitworth.lowering.emulate import emulate
from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.scaling import QuantizedSite, TensorScale
from bitworth.recipe import PER_CHANNEL, PER_TENSOR, Quantize, Recipe
from bitworth.recipe.granularity import Granularity, PerBlock
from bitworth.subject.saving import serialize

from .tools import (
    SITE_OPS,
    Array,
    Case,
    Engines,
    case,
    rand,
    recipe_for,
    rel_l2,
    run_exact,
    site_graph,
    write_model,
)

RECIPES: dict[str, Quantize] = {
    "int8 per channel": recipe_for("int8", weights=PER_CHANNEL),
    "int8 per tensor": recipe_for("int8", weights=PER_TENSOR),
    "int8 with a zero point": recipe_for("int8", sign="u8", zero_point="asymmetric"),
    # Without an 8-bit dot product MatMulInteger saturates, whatever the optimization: seven bits.
    "int8 dynamic": recipe_for("int8", scheme="dynamic", weight_range="reduced"),
    "int8 weights only": recipe_for("int8", scheme="weight_only", weights=PerBlock(4)),
    "int4": recipe_for("int4", weights=PerBlock(4)),
    "fp8_e4m3 per channel": recipe_for("fp8_e4m3", weights=PER_CHANNEL),
    "fp8_e4m3 per tensor": recipe_for("fp8_e4m3", weights=PER_TENSOR),
    "fp8_e5m2": recipe_for("fp8_e5m2"),
    "nvfp4": recipe_for("nvfp4"),
    "mxfp8": recipe_for("mxfp8"),
}
EVERY_OP = pytest.mark.parametrize("op", SITE_OPS)
EVERY_RECIPE = pytest.mark.parametrize("name", RECIPES)


def weights_of(op: str, dtype: str = "float32", scale: float = 1.0) -> dict[str, Array]:
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = {"w": rand(*shape, scale=scale, dtype=dtype)}
    if op != "MatMul":
        weights["b"] = rand(shape[axis], seed=1, dtype=dtype)
    return weights


def all_scales(entry: QuantizedSite) -> list[TensorScale]:
    found = (entry.weight, entry.activation, entry.output)
    return [s for s in found if isinstance(s, TensorScale)]


def check_scales(entry: QuantizedSite, dtype: str) -> None:
    """Every scale is finite, and positive where it is stored."""
    for scale in all_scales(entry):
        used = np.asarray(scale.scale).astype(dtype).astype(np.float64)
        assert np.isfinite(used).all()
        # E4M3 block scales may be zero: nothing is divided by them.
        assert (used > 0).all() or scale.scale_storage == "fp8_e4m3"


def outputs(subject: Case, name: str, x: Array) -> tuple[list[Array], Array]:
    """Outputs of the lowered and of the emulated graph, and of the float one."""
    variant = subject.scaled(RECIPES[name])
    prepared, quantized = variant.graph.prepared, variant.scaled.quantized
    models = [emulate(prepared, quantized)]
    blocks = any(q.weight is not None and q.weight.block is not None for q in quantized)
    if not blocks and prepared.opset < 23:
        models.append(lower(prepared, quantized))
    (want,) = run_exact(serialize(subject.prepared.model), {"x": x}).values()
    return [run_exact(serialize(m), {"x": x})["y"] for m in models], want


@EVERY_OP
@EVERY_RECIPE
@pytest.mark.parametrize("dead", ["activation", "weight", "both"])
def test_row_01_a_tensor_that_is_always_zero(tmp_path: Path, op: str, name: str, dead: str) -> None:
    """Its scale is usable, it is listed with its site, and its zeros stay zeros."""
    before = "a = Mul(x, zero)" if dead != "weight" else "a = Neg(x)"
    weights = weights_of(op, scale=0.0 if dead != "activation" else 1.0)
    weights["zero"] = np.zeros((), np.float32)
    path = write_model(tmp_path / "m.onnx", site_graph(op, before), weights)
    x = rand(*SITE_OPS[op][2])
    subject = case(path, [{"x": x}])
    scaled = subject.scaled(RECIPES[name]).scaled
    if scaled.left_out:
        assert scaled.left_out[0][1].startswith("rule ")
        return
    (entry,) = scaled.quantized
    check_scales(entry, "float32")
    told = [what for site, what in scaled.dead if site == entry.site.id]
    if dead != "weight" and entry.activation is not None:
        assert "value 'a' is always zero" in told
    if dead != "activation":
        assert "weight 'w' is all zeros" in told
    got, want = outputs(subject, name, x)
    for y in got:
        assert np.allclose(y, want, atol=1e-6)


@EVERY_OP
@EVERY_RECIPE
def test_row_02_an_output_channel_of_zeros(tmp_path: Path, op: str, name: str) -> None:
    """No 0/0: the channel gives its bias, the others what they gave before, and all is finite."""
    shape, axis = SITE_OPS[op][1], SITE_OPS[op][3]
    weights = weights_of(op)
    dead = (slice(None),) * axis + (1,)
    weights["w"][dead] = 0
    after = "y = Identity(o)"  # a graph's output is not quantized
    path = write_model(tmp_path / "m.onnx", site_graph(op, after=after), weights)
    x = rand(*SITE_OPS[op][2])
    subject = case(path, [{"x": x}])
    scaled = subject.scaled(RECIPES[name]).scaled
    if scaled.left_out:
        assert scaled.left_out[0][1].startswith("rule ")
        return
    (entry,) = scaled.quantized
    check_scales(entry, "float32")
    told = [what for _, what in scaled.dead]
    if "per tensor" not in name:
        assert told == [f"weight 'w': 1 of {shape[axis]} output channels are all zeros (1)"]
    got, want = outputs(subject, name, x)
    channel = (slice(None), 1) if want.ndim == 4 else (Ellipsis, 1)
    tolerance = 0.5 if name in ("int4", "nvfp4") else 0.15
    for y in got:
        assert np.isfinite(y).all()
        assert np.allclose(y[channel], want[channel], atol=1e-6)
        assert rel_l2(y, want) < tolerance


BIASED = pytest.mark.parametrize("op", [o for o in SITE_OPS if o != "MatMul"])
EVERY_ENGINE = pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])


def two_sites(op: str) -> str:
    """The operation, whose result is an output, and a product that reads it quantized.

    Between two quantized operations onnxruntime stores a bias as int32, in steps of the product of
    both scales.
    """
    node, _, x_shape, _ = SITE_OPS[op]
    dims, free = ", ".join(map(str, x_shape)), ", ".join("ABCD"[: len(x_shape)])
    return (
        f"g (float[{dims}] x) => (float[{free}] y, float[{free.lower()}] z)"
        f"{{ y = {node}  z = MatMul(y, v) }}"
    )


def two_weights(op: str, scale: float) -> dict[str, Array]:
    last = {"Conv": 6, "Conv depthwise": 4, "ConvTranspose": 6, "Gemm": 6}[op]
    return {**weights_of(op, scale=scale), "v": rand(last, 3, seed=2)}


@EVERY_ENGINE
@BIASED
@pytest.mark.parametrize("dead", ["channel", "weight"])
@pytest.mark.parametrize("weights", [PER_CHANNEL, PER_TENSOR])
def test_row_02_a_dead_channel_gives_its_bias_in_every_engine(
    engines: Engines, tmp_path: Path, op: str, dead: str, weights: Granularity, engine: str
) -> None:
    """The scale of zeros must not make the steps of a bias coarse."""
    axis = SITE_OPS[op][3]
    arrays = two_weights(op, 1e-3)
    if dead == "weight":
        arrays["w"][...] = 0
    arrays["w"][(slice(None),) * axis + (1,)] = 0
    arrays["b"] = np.linspace(0.1, 0.7, len(arrays["b"])).astype(np.float32)
    # Large activations: half a step of theirs is larger than the bias.
    x = rand(*SITE_OPS[op][2], scale=100.0)
    subject = case(write_model(tmp_path / "m.onnx", two_sites(op), arrays), [{"x": x}])
    model = subject.lowered(recipe_for("int8", weights=weights, weight_range="reduced"))
    got = engines.run(engine, model, {"x": x})["y"]
    want = arrays["b"][1]
    assert np.abs(got[:, 1] - want).max() < 0.01 * want


@EVERY_OP
@pytest.mark.parametrize("name", ["int8 per channel", "int8 per tensor", "fp8_e4m3 per channel"])
@pytest.mark.parametrize("tiny", ["weight", "activation"])
def test_row_03_a_scale_that_underflows_in_half_precision(
    tmp_path: Path, op: str, name: str, tiny: str
) -> None:
    """The site stays in float, with the reason: its zeros would be silent."""
    size = {"weight": 1e-6, "activation": 1.0}[tiny]
    before = "a = Mul(x, small)"
    weights = weights_of(op, "float16", scale=size)
    small = 1e-6 if tiny == "activation" else 1.0
    weights["small"] = np.array(small, np.float16)
    path = write_model(tmp_path / "m.onnx", site_graph(op, before, "float16"), weights)
    subject = case(path, [{"x": rand(*SITE_OPS[op][2], dtype="float16")}])
    scaled = subject.scaled(RECIPES[name]).scaled
    assert scaled.quantized == ()
    ((site, reason),) = scaled.left_out
    assert site == "w"
    assert ("weight 'w'" if tiny == "weight" else "value 'a'") in reason
    assert "underflows in float16" in reason


@EVERY_OP
def test_row_03_a_tiny_channel_beside_others(tmp_path: Path, op: str) -> None:
    """It is listed, keeps a usable scale, and costs no more than its own size."""
    axis = SITE_OPS[op][3]
    weights = weights_of(op, "float16")
    weights["w"][(slice(None),) * axis + (2,)] *= np.float16(1e-5)
    path = write_model(tmp_path / "m.onnx", site_graph(op, dtype="float16"), weights)
    x = rand(*SITE_OPS[op][2], dtype="float16")
    subject = case(path, [{"x": x}])
    scaled = subject.scaled(RECIPES["int8 per channel"]).scaled
    (entry,) = scaled.quantized
    check_scales(entry, "float16")
    (told,) = [what for _, what in scaled.dead]
    assert "too small for a float16 scale of their own (2)" in told
    got, want = outputs(subject, "int8 per channel", x)
    for y in got:
        assert rel_l2(y, want) < 0.05


@EVERY_OP
def test_row_03_under_a_base_of_half_precision(tmp_path: Path, op: str) -> None:
    """The model is fp32, the base is fp16: the scale is checked in the type that it ends in."""
    path = write_model(tmp_path / "m.onnx", site_graph(op), weights_of(op, scale=1e-5))
    x = rand(*SITE_OPS[op][2])
    subject = case(path, [{"x": x}])
    recipe = Recipe(base="fp16", quantize=(RECIPES["int8 per channel"],))
    variant = subject.scaled(recipe)
    if variant.scaled.left_out:
        assert "underflows in float16" in variant.scaled.left_out[0][1]
        return
    (entry,) = variant.scaled.quantized
    check_scales(entry, entry.compute or entry.site.dtype)
    lowered = lower(variant.graph.prepared, variant.scaled.quantized)
    got, want = (run_exact(serialize(m), {"x": x})["y"] for m in (lowered, subject.prepared.model))
    assert rel_l2(got, want) < 0.05


@EVERY_ENGINE
@BIASED
@pytest.mark.parametrize("name", ["int8 per channel", "int8 per tensor"])
@pytest.mark.parametrize("tiny", ["all", "one channel"])
def test_row_06_a_bias_that_int32_cannot_hold(
    engines: Engines, tmp_path: Path, op: str, name: str, tiny: str, engine: str
) -> None:
    """bias / (x_scale * w_scale) is beyond 2**31: no engine's result loses the bias for it."""
    arrays = two_weights(op, 1e-6 if tiny == "all" else 1.0)
    axis = SITE_OPS[op][3]
    if tiny == "one channel":
        arrays["w"][(slice(None),) * axis + (1,)] *= np.float32(1e-9)
    arrays["b"] = np.linspace(1e3, 2e3, len(arrays["b"])).astype(np.float32)
    x = rand(*SITE_OPS[op][2], scale=1e-4)
    subject = case(write_model(tmp_path / "m.onnx", two_sites(op), arrays), [{"x": x}])
    model = subject.lowered(replace(RECIPES[name], weight_range="reduced"))
    want = run_exact(serialize(subject.prepared.model), {"x": x})["y"]
    for got in (run_exact(serialize(model), {"x": x}), engines.run(engine, model, {"x": x})):
        assert np.allclose(got["y"], want, rtol=1e-4)


@BIASED
def test_row_06_the_bias_stays_in_float(tmp_path: Path, op: str) -> None:
    path = write_model(tmp_path / "m.onnx", site_graph(op), weights_of(op))
    model = case(path, [{"x": rand(*SITE_OPS[op][2])}]).lowered(RECIPES["int8 per channel"])
    (node,) = [n for n in model.graph if n.op_type == op.split()[0]]
    bias = node.inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    assert np.array_equal(bias.const_value.numpy(), weights_of(op)["b"])
