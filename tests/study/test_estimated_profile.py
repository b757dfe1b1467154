"""A baseline's profile on a device that is not here: every operator's time can be worked out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bitworth.record.device_profile import CopyTime, DeviceProfile, ProductTime
from bitworth.record.variant_bounds import WorkFact
from bitworth.study.estimated_profile import estimated_profile
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites
from bitworth.subject.work import site_work

#: 100 operations a ns in fp16; 10 bytes a ns.
DEVICE = DeviceProfile(
    engine="torch", engine_version="2", device="GPU", threads=1, details={}, created="",
    products=(ProductTime(kind="gemm", format="fp16", m=64, n=64, k=64, time_ns=5242.88),),
    copies=(CopyTime(bytes=1 << 20, time_ns=(1 << 21) / 10), CopyTime(bytes=64, time_ns=1)),
)  # fmt: skip
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[64, 64] x) => (float[64, 64] y)
{ h = MatMul(x, w)  r = Relu(h)  t = Transpose(r)  y = Sigmoid(t) }
"""


def test_products_movement_and_fused_work(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx")
    prepared = prepare(load(tmp_path / "m.onnx"), 17)
    sites = find_sites(prepared).sites
    shapes = dict.fromkeys(("x", "h", "r", "t", "y"), (64, 64))
    work = {s.id: site_work(s, shapes) for s in sites}
    facts = {id_: WorkFact(**vars(w)) for id_, w in work.items() if w is not None}
    found = estimated_profile(prepared.model, sites, facts, shapes, DEVICE, "fp16")
    assert [layer.op for layer in found.layers] == ["MatMul", "Relu", "Transpose", "Sigmoid"]
    product, relu, transpose, sigmoid = (layer.time_ns for layer in found.layers)
    assert product == pytest.approx(2 * 64**3 / 100)
    assert relu == 0
    # Two bytes an element, read and written.
    assert transpose == pytest.approx(2 * 2 * 64 * 64 / 10)
    assert sigmoid == pytest.approx(transpose)
    assert found.layers[0].sites == (sites[0].id,)
    assert [layer.inputs for layer in found.layers] == [(), (0,), (1,), (2,)]
