from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitworth.subject.denormals import count_denormals, flush_denormals
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import graph_sha256, prepare

Write = Callable[..., Path]


def test_the_detectors_denormals(ocr_model: Path) -> None:
    prepared = prepare(load(ocr_model), 13)
    counts = count_denormals(prepared.model)
    total = sum(v.const_value.size for v in prepared.model.graph.initializers.values())
    share = sum(counts.values()) / total
    if "det" in ocr_model.name:
        assert 0.08 < share < 0.12
    else:
        assert share < 0.001
    before = graph_sha256(prepared.model)
    flushed = flush_denormals(prepared)
    assert count_denormals(flushed.model) == {}
    assert graph_sha256(prepared.model) == before
    for name, value in flushed.model.graph.initializers.items():
        old = prepared.model.graph.initializers[name].const_value.numpy()
        new = value.const_value.numpy()
        assert np.array_equal(np.signbit(old), np.signbit(new))
        if old.dtype == np.float32:
            kept = np.abs(old) >= np.finfo(np.float32).smallest_normal
            assert np.array_equal(old[kept], new[kept])


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 2), ("float64", 2), ("float16", 0)])
def test_what_counts(write: Write, dtype: str, expected: int) -> None:
    kind = {"float32": "float", "float64": "double", "float16": "float16"}[dtype]
    weight = np.array([[1e-40, -1e-39], [1.0, 0.0]]).astype(dtype)
    if dtype == "float16":
        weight[0] = 1e-7  # a denormal of fp16, which fp32 computes at full speed
    path = write(f"g ({kind}[N, 2] x) => ({kind}[N, 2] y) {{ y = MatMul(x, w) }}", {"w": weight})
    counts = count_denormals(prepare(load(path), 17).model)
    assert counts == ({"w": expected} if expected else {})
