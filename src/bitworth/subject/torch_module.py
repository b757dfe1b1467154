"""A PyTorch module as a subject: its sites, what they read, and what it takes and gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  registers bfloat16 and the FP8 types with numpy
import numpy as np
from numpy.typing import NDArray

from bitworth.recipe.site import Site

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, NDArray[np.generic]]
WEIGHT = ".weight"


@dataclass(frozen=True)
class SiteCall:
    """One run of a site's module.

    Attributes:
        module: its fully qualified name.
        rows: of its product: elements of the input less the summed axis, over the taps of a
            convolution.
        source: number of the tensor that it reads; calls that read one tensor share it.
    """

    module: str
    rows: int
    source: int


@dataclass(frozen=True)
class ModuleScan:
    """What one run of a module showed.

    Attributes:
        sites: Linear and convolution modules with a weight, in the order in which they first ran.
        uncovered: (module, class, reason) of modules with weights that are no sites.
        calls: every run of a site's module, in order.
        siblings: Linear modules of one parent that read one tensor, one call each, in order.
        inputs: shape and type by name.
        outputs: names of the outputs.
    """

    sites: tuple[Site, ...]
    uncovered: tuple[tuple[str, str, str], ...]
    calls: tuple[SiteCall, ...]
    siblings: tuple[tuple[str, ...], ...]
    inputs: dict[str, tuple[tuple[int, ...], str]]
    outputs: tuple[str, ...]


def all_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer, also those that a state_dict leaves out, each name once."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def count_denormals(tensor: torch.Tensor) -> int:
    """Elements of a floating tensor that are denormal in its own type."""
    import torch

    if not tensor.is_floating_point():
        return 0
    tiny = torch.finfo(tensor.dtype).tiny
    return int(((tensor != 0) & (tensor.abs() < tiny)).sum())


def names_of(module: torch.nn.Module, name: str) -> tuple[str, ...]:
    """Every name under which the submodule called ``name`` is registered."""
    wanted = module.get_submodule(name)
    named = module.named_modules(remove_duplicate=False)
    return tuple(other for other, child in named if child is wanted)


def identity_sha256(module: torch.nn.Module, source: str) -> str:
    """Hash of the module: its factory's source, and every tensor's name, type, shape and bytes."""
    digest = sha256(source.encode())
    for name, tensor in sorted(all_tensors(module), key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def to_tensors(inputs: Arrays, device: str, base: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Inputs on ``device``; floating ones in ``base``, or as they are where it is None."""
    import torch

    found = {}
    for name, value in inputs.items():
        if value.dtype.name == "bfloat16":
            tensor = torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.array(value, order="C"))
        if base is not None and tensor.is_floating_point():
            tensor = tensor.to(base)
        found[name] = tensor.to(device)
    return found


def named_outputs(result: Any) -> dict[str, torch.Tensor]:
    """The tensors of what a module returned, by name.

    A tensor is ``output``; those of a mapping or a dataclass keep their names, those of a tuple
    are numbered. What is no tensor is left out.
    """
    import torch

    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        pairs = [(str(key), value) for key, value in result.items()]
    elif isinstance(result, tuple | list):
        pairs = [(f"output_{index}", value) for index, value in enumerate(result)]
    else:
        pairs = [(key, value) for key, value in vars(result).items() if not key.startswith("_")]
    return {name: value for name, value in pairs if isinstance(value, torch.Tensor)}


def scan(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> ModuleScan:
    """Run ``module`` once on ``inputs`` and see what its sites are and do.

    Raises:
        whatever the module raises.
    """
    import torch

    seen = _Seen()
    hooks = [
        child.register_forward_pre_hook(seen.before(name))
        for name, child in module.named_modules()
        if site_op(child)
    ]
    try:
        with torch.no_grad():
            result = module(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    children = dict(module.named_modules())
    ran = tuple(dict.fromkeys(call.module for call in seen.calls))
    return ModuleScan(
        sites=tuple(_site(name, children[name], seen.calls) for name in ran),
        uncovered=_uncovered(module, ran),
        calls=tuple(seen.calls),
        siblings=_siblings(children, seen.calls),
        inputs={
            k: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in inputs.items()
        },
        outputs=tuple(named_outputs(result)),
    )


def site_op(module: torch.nn.Module) -> str:
    """Linear, Conv or ConvTranspose; empty for a module that is no site."""
    import torch

    if isinstance(module, torch.nn.Linear):
        return "Linear"
    if isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
        return "Conv"
    transposed = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
    return "ConvTranspose" if isinstance(module, transposed) else ""


class _Seen:
    """Calls of sites, as hooks see them."""

    def __init__(self) -> None:
        self.calls: list[SiteCall] = []
        # Kept alive, so that no other tensor gets its address.
        self._sources: list[torch.Tensor] = []

    def before(self, name: str) -> Any:
        def hook(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
            value = given[0]
            number = next((i for i, t in enumerate(self._sources) if t is value), None)
            if number is None:
                self._sources.append(value)
                number = len(self._sources) - 1
            self.calls.append(SiteCall(name, _rows(module, value), number))

        return hook


def _rows(module: torch.nn.Module, value: torch.Tensor) -> int:
    summed = value.shape[-1] if site_op(module) == "Linear" else value.shape[1]
    return int(value.numel()) // int(summed)


def _site(name: str, module: torch.nn.Module, calls: list[SiteCall]) -> Site:
    op, weight = site_op(module), module.weight
    return Site(
        id=name + WEIGHT,
        node=name,
        op_type=op,
        weight=name + WEIGHT,
        weight_shape=tuple(int(n) for n in weight.shape),
        weight_axis=1 if op == "ConvTranspose" else 0,
        weight_input=1,
        activation=f"{name}:input",
        output=f"{name}:output",
        groups=int(getattr(module, "groups", 1)),
        biased=module.bias is not None,
        rows=max(call.rows for call in calls if call.module == name),
        pointwise=is_pointwise(module),
    )


def is_pointwise(module: torch.nn.Module) -> bool:
    """Whether a convolution is a product of matrices: one tap, stride 1, no padding, one group."""
    if site_op(module) != "Conv":
        return False
    ones = all(n == 1 for pair in (module.kernel_size, module.stride) for n in pair)
    return ones and not any(module.padding) and module.groups == 1


def _uncovered(module: torch.nn.Module, ran: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    found = []
    for name, child in module.named_modules():
        own = [p for p in child.parameters(recurse=False) if p.dim() >= 2]
        if not own or name in ran:
            continue
        reason = "did not run" if site_op(child) else "holds a weight and is no Linear or Conv"
        found.append((name or "(root)", type(child).__name__, reason))
    return tuple(found)


def _siblings(
    children: Mapping[str, torch.nn.Module], calls: list[SiteCall]
) -> tuple[tuple[str, ...], ...]:
    """Linear modules that one GEMM can compute: same parent, same input, one call each."""
    times = Counter(call.module for call in calls)
    groups: dict[tuple[str, int], list[str]] = {}
    for call in calls:
        if times[call.module] == 1 and site_op(children[call.module]) == "Linear":
            groups.setdefault((call.module.rpartition(".")[0], call.source), []).append(call.module)
    return tuple(
        tuple(names)
        for names in groups.values()
        if len(names) > 1 and len({children[n].bias is None for n in names}) == 1
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
