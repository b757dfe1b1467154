"""Rounding to narrow formats in torch, by the definitions of ``lowering.weights``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

LARGEST: Mapping[str, float] = {
    "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0, "mxfp8": 448.0, "nvfp4": 6.0,
}  # fmt: skip
STORAGE: Mapping[str, torch.dtype] = {
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8,
}  # fmt: skip
#: Exponents of E4M3's largest number, and of E8M0's ends.
_E4M3_EXPONENT, _E8M0 = 8, (-127.0, 127.0)
_SMALLEST_E4M3 = 2.0**-9


def saturate(x: torch.Tensor, form: str) -> torch.Tensor:
    """``x`` in the storage type of ``form``: rounded half to even, held to its largest number.

    A NaN stays one in the float types.
    """
    largest = LARGEST[form]
    if form == "int8":
        return x.round().clamp(-largest, largest).to(torch.int8)
    # Beyond the range a cast gives NaN or infinity.
    return x.clamp(-largest, largest).to(STORAGE[form])


def round_blocks(
    x: torch.Tensor, form: str, block: int, tensor_scale: torch.Tensor | None
) -> torch.Tensor:
    """``x`` rounded to blocks of mxfp8 or nvfp4 along its last axis, in fp32, same shape.

    OCP Microscaling formats (MX) specification 1.0, section 6.3: mxfp8's scale is
    2**(floor(log2(amax)) - 8). nvfp4's is E4M3(amax / (6 * tensor_scale)), times the tensor's.
    """
    blocks = x.unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True)
    live = amax > 0
    if tensor_scale is None:
        exponent = torch.frexp(amax)[1].float() - 1 - _E4M3_EXPONENT
        scale = torch.where(live, torch.exp2(exponent.clamp(*_E8M0)), torch.ones_like(amax))
        return (saturate(blocks / scale, "fp8_e4m3").float() * scale).flatten(-2)
    wanted = (amax / (LARGEST["nvfp4"] * tensor_scale)).clamp(_SMALLEST_E4M3, LARGEST["mxfp8"])
    stored = wanted.to(torch.float8_e4m3fn).float()
    scale = torch.where(live, stored, torch.ones_like(amax)) * tensor_scale
    return (round_e2m1(blocks / scale) * scale).flatten(-2)


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """``x`` as FP4 (E2M1) holds it: steps of 0.5 to 2, of 1 to 4, of 2 to 6, half to even."""
    size = x.abs().clamp(max=LARGEST["nvfp4"])
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign((size / step).round() * step, x)
