"""Quantize a model with nvidia-modelopt, by its documented call. Runs in modelopt's environment.

    python run_modelopt.py MODEL.onnx DATA.npz METHOD OUT.onnx

METHOD: int8_max, int8_entropy or fp8_max. Everything else is left at its default, but for the
precision of what is not quantized: fp16 by default, which is another question, so fp32 here.
"""

import sys
from pathlib import Path

import numpy as np
from modelopt.onnx.quantization import quantize  # type: ignore[import-not-found]


def main(model: str, data: str, method: str, out: str) -> None:
    mode, calibrator = method.split("_")
    with np.load(data) as arrays:
        calibration = {
            name.removeprefix("calibration/"): arrays[name]
            for name in arrays.files
            if name.startswith("calibration/")
        }
    quantize(
        onnx_path=model,
        quantize_mode=mode,
        calibration_data=calibration,
        calibration_method=calibrator,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=out,
    )
    if not Path(out).exists():
        sys.exit(f"{out}: nothing was written")


if __name__ == "__main__":
    main(*sys.argv[1:])
