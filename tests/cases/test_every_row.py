"""Every row of the list of reported failures has a test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: The rows, with where each was reported. A row is added here together with its test.
REPORTED = {
    1: "NVIDIA/TensorRT#2498, NVIDIA/Model-Optimizer#454",
    2: "ROCm/aiter#4289",
    3: "apple/coremltools#2853, NVIDIA/Model-Optimizer#1350",
    4: "NVIDIA/Model-Optimizer#2412",
    5: "NVIDIA/TensorRT#4322, NVIDIA/TensorRT#3714",
    6: "microsoft/onnxruntime#22020, microsoft/onnxruntime#24815, NVIDIA/Model-Optimizer#510",
    7: "NVIDIA/TensorRT#4524, NVIDIA/TensorRT#4529",
    8: "NVIDIA/TensorRT#3385, NVIDIA/TensorRT#4060",
    9: "NVIDIA/TensorRT#3987",
    10: "NVIDIA/TensorRT#4081, NVIDIA/TensorRT#4560",
    11: "NVIDIA/TensorRT#1912, NVIDIA/TensorRT#2382, NVIDIA/TensorRT#4813",
    12: "NVIDIA/Model-Optimizer#713, microsoft/onnxruntime#12178",
    13: "microsoft/Olive#2223, microsoft/Olive#394",
    14: "onnx/onnx#6210, NVIDIA/Model-Optimizer#118",
    15: "NVIDIA/Model-Optimizer#468, onnx/onnx#7222",
    16: "microsoft/onnxruntime#13358",
    17: "microsoft/onnxruntime#10571",
    18: "microsoft/onnxruntime#20226, microsoft/onnxruntime#18893",
    19: "microsoft/onnxruntime#9796, microsoft/onnxruntime#18681",
    20: "openvinotoolkit/nncf#2230, microsoft/onnxruntime#13044",
    21: "NVIDIA/Model-Optimizer#2318",
    22: "microsoft/onnxruntime#25259, microsoft/onnxruntime#32132",
    23: "NVIDIA/TensorRT#1499, NVIDIA/TensorRT#2898",
    24: "NVIDIA/Model-Optimizer#621, pytorch/pytorch#167063",
    25: "seen with onnxruntime 1.32",
    26: "seen with onnxruntime 1.32",
    27: "seen with onnxruntime 1.32",
    28: "seen with openvino 2026.4",
    29: "seen with openvino 2026.4",
    30: "seen with onnxruntime",
    31: "seen with nncf",
    32: "seen with several",
    33: "seen with openvino 2026.4",
}


def rows_with_tests() -> set[int]:
    """Numbers of the rows that a test function in this folder is named after."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    found = [re.findall(r"^def test_row_(\d\d)_\w+\(", f.read_text(), re.MULTILINE) for f in files]
    return {int(number) for numbers in found for number in numbers}


@pytest.mark.parametrize("row", REPORTED)
def test_the_row_has_a_test(row: int) -> None:
    assert row in rows_with_tests(), REPORTED[row]


def test_every_test_has_its_row() -> None:
    assert rows_with_tests() <= REPORTED.keys()
    assert list(REPORTED) == list(range(1, len(REPORTED) + 1))
