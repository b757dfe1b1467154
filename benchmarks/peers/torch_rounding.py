"""What torch makes of every code of its 8-bit float formats, and of every number between two.

Run in an environment that has torch and numpy (bitworth is not needed):

    python benchmarks/peers/torch_rounding.py tests/lowering/data/torch_rounding.json

For each format the file holds, as hexadecimal bytes (little endian): ``values``, the float32 of
each of the 256 codes; ``inputs``, float32 numbers: the codes, the ties between neighbours, the
nearest float32 on both sides of all of them, and numbers beyond the largest; ``stored``, the code
that torch converts each to. A format that torch has but cannot convert is listed with its error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

FORMATS = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")
BEYOND = (1.0001, 1.03125, 1.0625, 1.125, 1.25, 1.5, 2.0, 1e6)


def decoded(dtype: torch.dtype) -> np.ndarray:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    numbers: np.ndarray = codes.view(dtype).to(torch.float32).numpy()
    return numbers


def inputs(values: np.ndarray) -> np.ndarray:
    points = np.unique(values[np.isfinite(values)].astype(np.float64))
    largest = points[-1]
    with np.errstate(over="ignore"):
        beyond = np.array([s * f * largest for s in (1.0, -1.0) for f in BEYOND], np.float32)
    x = np.concatenate([points, (points[1:] + points[:-1]) / 2]).astype(np.float32)
    edges = np.array([0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan], np.float32)
    sides = [np.nextafter(x, np.float32(end)) for end in (np.inf, -np.inf)]
    return np.concatenate([x, *sides, beyond, edges]).astype(np.float32)


def result(name: str) -> dict[str, str]:
    dtype = getattr(torch, name)
    try:
        values = decoded(dtype)
        x = inputs(values)
        stored = torch.from_numpy(x).to(dtype).view(torch.uint8).numpy()
    except (NotImplementedError, RuntimeError) as error:
        return {"absent": str(error).splitlines()[0]}
    arrays = {"values": values.astype("<f4"), "inputs": x.astype("<f4"), "stored": stored}
    return {key: array.tobytes().hex() for key, array in arrays.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    path = parser.parse_args().output
    found = {"torch": torch.__version__.split("+")[0], "formats": {n: result(n) for n in FORMATS}}
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
