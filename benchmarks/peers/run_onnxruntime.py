"""Quantize a model with onnxruntime.quantization, by its documented calls.

    python run_onnxruntime.py MODEL.onnx DATA.npz METHOD OUT.onnx

METHOD: int8_max (all defaults), int8_max_per_channel, int8_max_symmetric (per channel, activations
symmetric), int8_entropy (per channel) or fp8 (its own scales, from a standard deviation; it offers
no other).
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

#: A scale per channel needs 13, FP8 needs 19; below that nothing that loads is written.
OPSET = {"int8": 17, "fp8": 19}

OPTIONS: dict[str, dict[str, Any]] = {
    "int8_max": {},
    "int8_max_per_channel": {"per_channel": True},
    "int8_max_symmetric": {"per_channel": True, "extra_options": {"ActivationSymmetric": True}},
    "int8_entropy": {"per_channel": True, "calibrate_method": CalibrationMethod.Entropy},
    "fp8": {
        "calibrate_method": CalibrationMethod.Distribution,
        "activation_type": QuantType.QFLOAT8E4M3FN,
        "weight_type": QuantType.QFLOAT8E4M3FN,
    },
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """One sample a call."""

    def __init__(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        self._samples: Iterator[dict[str, NDArray[np.generic]]] = iter(
            {name: array[index : index + 1] for name, array in arrays.items()}
            for index in range(len(next(iter(arrays.values()))))
        )

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        return next(self._samples, None)


def main(model: str, data: str, method: str, out: str) -> None:
    with np.load(data) as arrays:
        calibration = {
            name.removeprefix("calibration/"): arrays[name]
            for name in arrays.files
            if name.startswith("calibration/")
        }
    with tempfile.TemporaryDirectory() as folder:
        raised, prepared = Path(folder) / "raised.onnx", Path(folder) / "prepared.onnx"
        loaded = onnx.load(model)
        opset = OPSET[method.split("_")[0]]
        if next(o.version for o in loaded.opset_import if not o.domain) < opset:
            loaded = version_converter.convert_version(loaded, opset)
        onnx.save(loaded, raised)
        quant_pre_process(str(raised), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), out, Reader(calibration), quant_format=QuantFormat.QDQ, **OPTIONS[method]
        )
    # What is written counts when it loads.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(*sys.argv[1:])
