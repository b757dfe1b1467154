"""A lowered PyTorch module as one file: its tensors in safetensors, its specification beside them.

The file holds no code and nothing that has to be unpickled: the module's structure comes from the
factory that it names, whose source must still be the one that was lowered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bitworth.subject.torch_factory import Factory

if TYPE_CHECKING:
    import torch

#: Key of the specification in the file's metadata.
KEY = "bitworth.torch"
VERSION = 1
ActivationGranularity = Literal["per_tensor", "per_row", "block"]


@dataclass(frozen=True)
class LoweredSite:
    """How one module computes.

    Attributes:
        module: fully qualified name.
        format: number format of weight and activation.
        scheme: where the activation's scales come from: ``static`` or ``dynamic``.
        weights: granularity of the weight's scales: per_tensor, per_channel, or block.
        activations: granularity of the activation's scales.
        block: elements that share a scale; 0 without blocks.
        emulated: whether the values are rounded to the format and multiplied in fp32.
    """

    module: str
    format: str
    scheme: Literal["static", "dynamic"]
    weights: Literal["per_tensor", "per_channel", "block"]
    activations: ActivationGranularity
    block: int = 0
    emulated: bool = False


@dataclass(frozen=True)
class TorchSpec:
    """What a process needs beside the tensors to run the module.

    Attributes:
        factory: makes the module, whose tensors are then replaced.
        source_sha256: of the factory's source.
        base: precision of all that no site changes: fp32, bf16 or fp16.
        sites: the modules that compute in another format.
        siblings: Linear modules that read one tensor, which one GEMM can compute.
        options: what the build was told, where it matters to the module.
    """

    factory: Factory
    source_sha256: str
    base: str
    sites: tuple[LoweredSite, ...] = ()
    siblings: tuple[tuple[str, ...], ...] = ()
    options: tuple[tuple[str, str], ...] = ()


def write_spec(spec: TorchSpec, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the file, under a temporary name first.

    Args:
        spec: the specification.
        tensors: by name; contiguous, on the CPU.
        path: where to.
    """
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        # Two names of one tensor are written twice: safetensors takes no shared memory.
        seen: set[int] = set()
        plain = {}
        for name, tensor in tensors.items():
            shared = tensor.untyped_storage().data_ptr() in seen and tensor.numel() > 0
            seen.add(tensor.untyped_storage().data_ptr())
            plain[name] = tensor.clone() if shared else tensor.contiguous()
        save_file(plain, part, {KEY: json.dumps(_tree(spec), sort_keys=True)})
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_spec(path: Path) -> TorchSpec:
    """The specification in a file.

    Raises:
        ValueError: it is no file of this kind, or of a newer version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(KEY)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path.name}: is no lowered module ({error})") from None
    if text is None:
        raise ValueError(f"{path.name}: is no lowered module: its metadata has no {KEY}")
    tree = json.loads(text)
    if tree.pop("version") != VERSION:
        raise ValueError(f"{path.name}: was lowered by another version of bitworth; lower it again")
    return _spec(tree)


def read_tensors(path: Path, device: str) -> dict[str, torch.Tensor]:
    """All tensors of a file, on ``device``."""
    from safetensors.torch import load_file

    return dict(load_file(path, device=device))


def _tree(spec: TorchSpec) -> dict[str, Any]:
    return {"version": VERSION, **asdict(spec)}


def _spec(tree: dict[str, Any]) -> TorchSpec:
    return TorchSpec(
        factory=Factory(**tree["factory"]),
        source_sha256=tree["source_sha256"],
        base=tree["base"],
        sites=tuple(LoweredSite(**site) for site in tree["sites"]),
        siblings=tuple(tuple(names) for names in tree["siblings"]),
        options=tuple((key, value) for key, value in tree["options"]),
    )
