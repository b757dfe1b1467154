from __future__ import annotations

import pytest

from bitworth.record.conditions import check_condition, condition_name

KNOWN = {
    "onnxruntime.version": "1.32.0", "onnxruntime.format.int8_dynamic": "native",
    "cpu.isa": "avx2 avx512_vnni", "odd.version": "latest", "share": "0.015",
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("onnxruntime.version > 1.32.0", "not met"),
        ("onnxruntime.version >= 1.32", "met"),
        ("onnxruntime.version > 1.9", "met"),
        ("onnxruntime.version == 1.32", "met"),
        ("onnxruntime.version < 1.32.1", "met"),
        ("onnxruntime.version <= 1.31.9", "not met"),
        ("onnxruntime.format.int8_dynamic == native", "met"),
        ("onnxruntime.format.int8_dynamic == emulated", "not met"),
        ("cpu.isa has avx512_vnni", "met"),
        ("cpu.isa has amx_int8", "not met"),
        ("cpu.isa has avx", "not met"),
        ("share < 0.02", "met"),
        ("tensorrt.version > 11.4", "unknown"),
        ("odd.version > 1.0", "unknown"),
        ("a recipe keeps the error near the floor", "unknown"),
    ],
)
def test_conditions(condition: str, met: str) -> None:
    found = check_condition(condition, KNOWN)
    assert found.met == met
    assert found.why


def test_names_have_no_spaces() -> None:
    assert condition_name("int8 dynamic") == "int8_dynamic"
