from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import openvino
import pytest
from numpy.typing import NDArray

from bitworth.lowering.onnx_qdq import lower
from bitworth.lowering.placement import output_value
from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.recipe.site import Site
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, prepare
from bitworth.subject.saving import serialize
from bitworth.subject.sites import find_sites

Run = Callable[..., list[NDArray[np.generic]]]
RunOptimized = Callable[..., tuple[list[NDArray[np.generic]], Counter[str]]]


def _ranges(
    prepared: PreparedModel, names: list[str], x: NDArray[np.float32]
) -> dict[str, TensorScale]:
    """u8 scales from one run; the zero point takes the whole range."""
    model = prepared.model.clone()
    values = {str(v.name): v for n in model.graph for v in n.outputs}
    inner = [n for n in dict.fromkeys(names) if n in values]
    model.graph.outputs.extend(values[n] for n in inner)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(serialize(model), options, providers=["CPUExecutionProvider"])
    arrays = dict(zip(inner, session.run(inner, {"x": x}), strict=True)) | {"x": x}
    scales = {}
    for name, array in arrays.items():
        low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        step = np.float32((high - low) / 255 or 1.0)
        scales[name] = TensorScale("uint8", step, int(np.clip(round(-low / step), 0, 255)))
    return scales


def _quantized(
    prepared: PreparedModel, sites: list[Site], x: NDArray[np.float32]
) -> list[QuantizedSite]:
    outputs = {s.id: output_value(prepared.model, s, "after_activation") for s in sites}
    names = [s.activation for s in sites] + [v for v in outputs.values() if v]
    scales = _ranges(prepared, names, x)
    made = []
    for site in sites:
        tensor = prepared.model.graph.initializers[site.weight].const_value
        assert tensor is not None
        weight = tensor.numpy()
        axes = tuple(i for i in range(weight.ndim) if i != site.weight_axis)
        amax = np.abs(weight).max(axis=axes)
        step = np.where(amax > 1e-30, amax / 127, 1).astype(np.float32)
        value = outputs[site.id]
        made.append(
            QuantizedSite(
                site,
                TensorScale("int8", step, 0, site.weight_axis, 127),
                scales[site.activation],
                value,
                scales[value] if value else None,
            )
        )
    return made


@pytest.mark.parametrize("group", ["all", "Conv", "MatMul"])
def test_int8_is_valid_and_loads_in_both_engines(ocr_model: Path, group: str) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 13)
    sites = [s for s in find_sites(prepared).sites if group in ("all", s.op_type)]
    # The detector has no MatMul; with no site at all it has to be as valid.
    data = serialize(lower(prepared, _quantized(prepared, sites, x) if sites else []))
    onnx.checker.check_model(data, full_check=True)

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    reference = ort.InferenceSession(
        serialize(prepared.model), options, providers=["CPUExecutionProvider"]
    )
    y, want = session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0]
    assert y.shape == want.shape
    assert np.isfinite(y).all()

    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(data), "CPU", config)
    z = compiled({"x": x})[0]
    assert z.shape == want.shape
    assert np.isfinite(z).all()


def test_no_site_is_bit_equal(ocr_model: Path, run: Run) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 13)
    before = run(serialize(prepared.model), x=x)[0]
    assert np.array_equal(run(serialize(lower(prepared, [])), x=x)[0], before)


def test_engines_agree_on_what_is_not_static(
    ocr_model: Path, run: Run, run_optimized: RunOptimized, run_openvino: Run
) -> None:
    shape = (1, 3, 48, 96) if "rec" in ocr_model.name else (1, 3, 96, 96)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    prepared = prepare(load(ocr_model), 13)
    entries = []
    for entry in _quantized(prepared, list(find_sites(prepared).sites), x):
        assert entry.weight is not None
        # Seven bits: no CPU's 16-bit sums saturate.
        step = (entry.weight.scale * np.float32(127 / 63)).astype(np.float32)
        weight = replace(entry.weight, scale=step, limit=63)
        activation = DynamicScale("uint8") if entry.site.op_type == "MatMul" else None
        entries.append(QuantizedSite(entry.site, weight, activation))
    data = serialize(lower(prepared, entries))
    onnx.checker.check_model(data, full_check=True)
    (want,) = run(data, x=x)
    (fused,), ops = run_optimized(data, x=x)
    (other,) = run_openvino(data, x=x)
    dynamic = sum(e.activation is not None for e in entries)
    assert ops["DynamicQuantizeMatMul"] + ops["MatMulIntegerToFloat"] == dynamic
    for got in (fused, other):
        # The order of sums alone makes 0.2% in the detector's float model, and may move a value
        # across a step of the next dynamic scale.
        assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)
