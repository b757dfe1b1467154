"""Quantize a model with nncf, by its documented call on ONNX models. Runs in nncf's environment.

    python run_nncf.py MODEL.onnx DATA.npz OUT.onnx

The default preset: int8, activations symmetric, weights per channel, biases corrected.
"""

import sys

import nncf  # type: ignore[import-not-found]
import numpy as np
import onnx
from onnx import version_converter

#: Below opset 13 nncf refuses.
OPSET = 17


def main(model: str, data: str, out: str) -> None:
    with np.load(data) as arrays:
        calibration = {
            name.removeprefix("calibration/"): arrays[name]
            for name in arrays.files
            if name.startswith("calibration/")
        }
    count = len(next(iter(calibration.values())))
    samples = [
        {name: array[index : index + 1] for name, array in calibration.items()}
        for index in range(count)
    ]
    loaded = onnx.load(model)
    if next(o.version for o in loaded.opset_import if not o.domain) < OPSET:
        loaded = version_converter.convert_version(loaded, OPSET)
    onnx.save(nncf.quantize(loaded, nncf.Dataset(samples), subset_size=count), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
