"""Builds the module that a lowered file describes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bitworth.lowering.torch_layers import (
    EmulatedLinear,
    LoweredLinear,
    PointwiseConv,
    fused_modules,
)
from bitworth.lowering.torch_spec import LoweredSite, TorchSpec
from bitworth.subject.torch_factory import make_module
from bitworth.subject.torch_module import all_tensors, names_of, site_op

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
BASES = {dtype: name for name, dtype in DTYPES.items()}


def build_module(
    spec: TorchSpec, tensors: Mapping[str, torch.Tensor], device: str, fused: bool
) -> nn.Module:
    """The module of ``spec`` with its tensors, on ``device``.

    Args:
        spec: the specification.
        tensors: by name, on ``device``.
        device: cpu or cuda.
        fused: whether siblings are computed in one GEMM.

    Raises:
        UserError: the factory fails.
        ValueError: the tensors are not those of the module.
    """
    module = structure(spec)
    _assign(module, tensors)
    module.to(device)
    if fused:
        for names in spec.siblings:
            fuse(module, names)
    return module.eval().requires_grad_(False)


def structure(spec: TorchSpec) -> nn.Module:
    """The module of ``spec`` without its tensors.

    Raises:
        UserError: the factory fails.
    """
    module = _without_memory(spec)
    for site in spec.sites:
        _replace(module, site.module, _lowered(module.get_submodule(site.module), site, spec.base))
    return module


def fuse(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Make one GEMM of sibling modules; False where they do not go together."""
    parts = [module.get_submodule(name) for name in names]
    joined = _joined(parts)
    if joined is None:
        return False
    sizes = tuple(int(part.weight.shape[0]) for part in parts)
    for name, part in zip(names, fused_modules(joined, sizes, names), strict=True):
        _replace(module, name, part)
    return True


def _joined(parts: list[nn.Module]) -> nn.Module | None:
    """One module with the weights of all, or None."""
    first = parts[0]
    if {type(part) for part in parts} == {nn.Linear}:
        return _cat(parts, nn.Linear(1, 1, bias=first.bias is not None))
    if not all(isinstance(part, LoweredLinear) for part in parts):
        return None
    assert isinstance(first, LoweredLinear)
    kinds = {(p.format, p.dynamic, p.per_row, p.per_channel) for p in parts}
    # One scale for all: lowering gives it to siblings that are to be fused.
    same = first.per_channel or all(bool(p.weight_scale == first.weight_scale) for p in parts)
    inputs = first.dynamic or all(bool(p.input_scale == first.input_scale) for p in parts)
    if len(kinds) > 1 or not same or not inputs:
        return None
    made = LoweredLinear(
        (1, 1), first.bias is not None, first.format, dynamic=first.dynamic,
        per_row=first.per_row, per_channel=first.per_channel, base=first.base,
    )  # fmt: skip
    made.input_scale = first.input_scale
    made.weight_scale = (
        torch.cat([p.weight_scale for p in parts]) if first.per_channel else first.weight_scale
    )
    return _cat(parts, made)


def _cat(parts: list[nn.Module], into: nn.Module) -> nn.Module:
    for key in ("weight", "bias"):
        values = [getattr(part, key) for part in parts]
        if values[0] is not None:
            _set(into, key, torch.cat([v.detach() for v in values]))
    return into


def _without_memory(spec: TorchSpec) -> nn.Module:
    """The factory's module, on the meta device where its code allows that."""
    try:
        with torch.device("meta"):
            module = make_module(spec.factory)
        if any(_plain_tensors(child) for child in module.modules()):
            raise RuntimeError("a tensor that is no buffer would be lost")
    except Exception:  # code that reads a tensor's value while it builds, for instance
        module = make_module(spec.factory)
    return module.to(DTYPES[spec.base])


def _plain_tensors(module: nn.Module) -> bool:
    return any(isinstance(value, torch.Tensor) for value in vars(module).values())


def _lowered(module: nn.Module, site: LoweredSite, base: str) -> nn.Module:
    dtype = DTYPES[base]
    shape = (int(module.weight.shape[0]), int(module.weight.shape[1]))
    bias = module.bias is not None
    per_row, dynamic = site.activations == "per_row", site.scheme == "dynamic"
    made: nn.Module
    if site.emulated:
        made = EmulatedLinear(
            shape, bias, site.format, dynamic=dynamic, per_row=per_row, block=site.block,
            scaled=not dynamic or site.format == "nvfp4", base=dtype,
        )  # fmt: skip
    else:
        made = LoweredLinear(
            shape, bias, site.format, dynamic=dynamic, per_row=per_row,
            per_channel=site.weights == "per_channel", base=dtype,
        )  # fmt: skip
    return PointwiseConv(made) if site_op(module) == "Conv" else made


def _assign(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    wanted = {name for name, _ in all_tensors(module)}
    if wanted != tensors.keys():
        odd = sorted(wanted ^ tensors.keys())[0]
        raise ValueError(
            f"tensor '{odd}' is in {'the module' if odd in wanted else 'the file'} alone: the "
            "factory makes another module than was lowered"
        )
    for name, value in tensors.items():
        parent, _, key = name.rpartition(".")
        _set(module.get_submodule(parent), key, value)


def _set(module: nn.Module, key: str, value: torch.Tensor) -> None:
    if key in module._parameters:
        module._parameters[key] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[key] = value


def _replace(module: nn.Module, name: str, by: nn.Module) -> None:
    """Put ``by`` in the place of a submodule, under every name that it has."""
    for every in names_of(module, name):
        parent, _, key = every.rpartition(".")
        setattr(module.get_submodule(parent), key, by)
