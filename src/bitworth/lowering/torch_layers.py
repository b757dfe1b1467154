"""Modules that compute a Linear, or a 1x1 convolution, in a narrower format.

Each takes the place of the module that it lowers. All arithmetic is in tensor operations that
Inductor sees, so that the activation's quantization joins whatever computes the activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bitworth.lowering.torch_rounding import LARGEST, STORAGE, round_blocks, saturate

#: Rows that ``torch._int_mm`` wants more than, on CUDA.
_INT_MM_ROWS = 16


class LoweredLinear(nn.Module):
    """y = x W^T + b in a narrower format; shapes: x (..., K), W (N, K), y (..., N).

    Tensors: ``weight`` as stored; ``weight_scale`` fp32, () or (N,); ``input_scale`` fp32 () for
    static scales; ``bias`` in the base precision or None.

    Args:
        out_features: N.
        bias: whether there is one.
        form: the format: fp8_e4m3 or int8.
        dynamic: whether the activation's scale is taken from its values.
        per_row: one such scale for each row.
        per_channel: one weight scale for each of N.
        base: type of the result.
    """

    def __init__(
        self, shape: tuple[int, int], bias: bool, form: str, *,
        dynamic: bool, per_row: bool, per_channel: bool, base: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__()
        n, _ = shape
        self.format, self.dynamic, self.per_row, self.base = form, dynamic, per_row, base
        self.per_channel = per_channel
        self.register_buffer("weight", torch.empty(shape, dtype=STORAGE[form]))
        self.register_buffer("weight_scale", torch.empty((n,) if per_channel else ()))
        self.register_buffer("input_scale", None if dynamic else torch.empty(()))
        self.register_buffer("bias", torch.empty(n, dtype=base) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize the activation and multiply."""
        rows = x.reshape(-1, x.shape[-1])
        scale = self._scale(rows)
        quantized = saturate(rows.float() * scale.reciprocal(), self.format)
        product = _fp8 if self.format == "fp8_e4m3" else _int8
        return product(self, quantized, scale).view(*x.shape[:-1], -1)

    def _scale(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.dynamic:
            return self.input_scale
        amax = rows.abs().amax(-1, keepdim=True) if self.per_row else rows.abs().amax()
        scale = amax.float() / LARGEST[self.format]
        # What is always zero gets 1, as with static scales.
        return torch.where(scale > 0, scale, torch.ones_like(scale))


def _fp8(layer: LoweredLinear, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """scaled_mm with one scale for each tensor; or one for each row of x and each row of W, where
    either of them has that.
    """
    weight_scale = layer.weight_scale
    if layer.per_row or layer.per_channel:
        scale = scale.expand(x.shape[0], 1).contiguous()
        weight_scale = weight_scale.expand(layer.weight.shape[0]).reshape(1, -1).contiguous()
    # A result in fp32 takes no bias.
    inside = layer.bias if layer.base != torch.float32 else None
    y = torch._scaled_mm(
        x, layer.weight.t(), scale_a=scale, scale_b=weight_scale, bias=inside,
        out_dtype=layer.base, use_fast_accum=True,
    )  # fmt: skip
    return y if inside is not None or layer.bias is None else y + layer.bias


def _int8(layer: LoweredLinear, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8 times int8 in int32, scaled behind it."""
    short = max(0, _INT_MM_ROWS + 1 - x.shape[0])
    padded = functional.pad(x, (0, 0, 0, short)) if short else x
    y = torch._int_mm(padded, layer.weight.t())[: x.shape[0]]
    wide = y.float() * (scale * layer.weight_scale)
    return (wide if layer.bias is None else wide + layer.bias.float()).to(layer.base)


class EmulatedLinear(nn.Module):
    """What the format means, in fp32: quality alone, never a time.

    Tensors: ``weight`` fp32 (N, K), rounded to the format already; ``input_scale`` fp32 () for
    static scales, and for nvfp4 the number above the scales of its blocks; ``bias``.
    """

    def __init__(
        self, shape: tuple[int, int], bias: bool, form: str, *,
        dynamic: bool, per_row: bool, block: int, scaled: bool, base: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__()
        self.format, self.dynamic, self.per_row, self.base = form, dynamic, per_row, base
        self.block = block
        self.register_buffer("weight", torch.empty(shape, dtype=torch.float32))
        self.register_buffer("input_scale", torch.empty(()) if scaled else None)
        self.register_buffer("bias", torch.empty(shape[0], dtype=base) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round the activation to the format and multiply in fp32."""
        y = functional.linear(self._rounded(x.float()), self.weight)
        return (y if self.bias is None else y + self.bias.float()).to(self.base)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.block:
            return round_blocks(x, self.format, self.block, self.input_scale)
        if self.dynamic:
            amax = x.abs().amax(-1, keepdim=True) if self.per_row else x.abs().amax()
            scale = amax / LARGEST[self.format]
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        else:
            scale = self.input_scale
        return saturate(x * scale.reciprocal(), self.format).float() * scale


class PointwiseConv(nn.Module):
    """A 1x1 convolution as a product of matrices; shapes: x (B, K, ...), y (B, N, ...).

    In channels-last memory the permutations move no byte.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels to the end, multiply, and back."""
        return self.linear(x.movedim(1, -1)).movedim(-1, 1)


class _Held:
    """What the first of fused modules computed for the others."""

    def __init__(self) -> None:
        self.parts: tuple[torch.Tensor, ...] = ()


class FusedFirst(nn.Module):
    """The first of several modules that read one tensor: computes all of them in one GEMM.

    Args:
        linear: computes all.
        sizes: columns of each.
        names: of the modules.
        held: what the others take theirs from.
    """

    def __init__(
        self, linear: nn.Module, sizes: tuple[int, ...], names: tuple[str, ...], held: Any
    ) -> None:
        super().__init__()
        self.linear, self.sizes, self.names, self.held = linear, sizes, names, held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This module's part of the product; the others wait for theirs."""
        first, *rest = self.linear(x).split(self.sizes, dim=-1)
        self.held.parts = tuple(rest)
        return first


class FusedNext(nn.Module):
    """One of the others: gives its part of what the first has computed."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next part; ``x`` is what the first has read."""
        part, *rest = self.held.parts
        self.held.parts = tuple(rest)
        return part


def fused_modules(
    linear: nn.Module, sizes: tuple[int, ...], names: tuple[str, ...]
) -> list[nn.Module]:
    """``linear`` as one module for each of ``sizes``, in the order in which they run."""
    held = _Held()
    return [FusedFirst(linear, sizes, names, held), *(FusedNext(held) for _ in sizes[1:])]
