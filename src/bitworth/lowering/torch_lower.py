"""Writes a module in a base precision, with some of its sites in narrower formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bitworth.lowering.scaling import DynamicScale, QuantizedSite, TensorScale
from bitworth.lowering.torch_rounding import STORAGE
from bitworth.lowering.torch_spec import LoweredSite, TorchSpec, write_spec
from bitworth.lowering.torch_swap import DTYPES
from bitworth.lowering.weights import dequantize, quantize
from bitworth.subject.torch_module import all_tensors, names_of


def write_lowered_module(
    spec: TorchSpec,
    module: nn.Module,
    quantized: Mapping[str, QuantizedSite],
    path: Path,
) -> None:
    """Write the file that ``lowering.torch_swap`` reads.

    Args:
        spec: what is lowered how.
        module: the subject, in fp32.
        quantized: by module name, the scales of each of ``spec.sites``.
        path: where to.
    """
    base = DTYPES[spec.base]
    tensors: dict[str, torch.Tensor] = {}
    names = {site.module: names_of(module, site.module) for site in spec.sites}
    inside = {name for every in names.values() for name in every}
    for name, tensor in all_tensors(module):
        if name.rpartition(".")[0] not in inside:
            plain = tensor.detach().cpu()
            tensors[name] = plain.to(base) if plain.is_floating_point() else plain
    for site in spec.sites:
        found = _site_tensors(module.get_submodule(site.module), site, quantized[site.module], base)
        for name in names[site.module]:
            tensors |= {f"{name}.{key}": value for key, value in found.items()}
    write_spec(spec, tensors, path)


def _site_tensors(
    module: nn.Module, site: LoweredSite, scales: QuantizedSite, base: torch.dtype
) -> dict[str, torch.Tensor]:
    weight = _numpy(module.weight)
    assert scales.weight is not None
    stored = quantize(weight, scales.weight)
    n = weight.shape[0]
    place = "linear." if weight.ndim > 2 else ""
    found: dict[str, torch.Tensor] = {}
    if site.emulated:
        found["weight"] = torch.from_numpy(dequantize(stored, scales.weight).reshape(n, -1))
    else:
        raw = torch.from_numpy(stored.reshape(n, -1).view(np.uint8))
        found["weight"] = raw.view(STORAGE[site.format])
        found["weight_scale"] = torch.from_numpy(np.array(scales.weight.scale, np.float32))
    number = _input_scale(scales)
    if number is not None:
        found["input_scale"] = torch.tensor(number, dtype=torch.float32)
    if module.bias is not None:
        found["bias"] = module.bias.detach().cpu().to(base)
    return {f"{place}{key}": value for key, value in found.items()}


def _input_scale(scales: QuantizedSite) -> float | None:
    """The one static number of an activation: its scale, or the one above its blocks' scales."""
    if isinstance(scales.activation, TensorScale):
        return float(scales.activation.scale)
    if isinstance(scales.activation, DynamicScale):
        return scales.activation.tensor_scale
    return None


def _numpy(tensor: object) -> NDArray[np.generic]:
    assert isinstance(tensor, torch.Tensor)
    found: NDArray[np.generic] = tensor.detach().float().cpu().numpy()
    return found


def used_siblings(
    siblings: Sequence[tuple[str, ...]], formats: Mapping[str, object]
) -> tuple[tuple[str, ...], ...]:
    """Siblings that one GEMM can compute: all in one format, or none of them lowered."""
    return tuple(
        names for names in siblings if len({repr(formats.get(name)) for name in names}) == 1
    )
