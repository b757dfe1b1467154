"""PyTorch: modules whose regions Inductor compiles, in a CUDA graph where there is a GPU.

A plan is the lowered module as one file (``lowering.torch_spec``): its tensors, and the
specification of what computes how. Inductor compiles it in every process that loads it; its caches,
in the user's cache folder, make that seconds.

Options of its own (all ``on`` or ``off`` but the first two):

    device                 cpu or cuda; the GPU where there is one
    compile                blocks (the members of the module's lists of blocks, each one graph),
                           whole (the module as one graph), eager
    cuda_graph             calls are captured in a CUDA graph (on)
    fuse                   Linear modules that read one tensor become one GEMM (off)
    persistent_reductions  Inductor also tries reductions that hold a whole row (off)
    tune_pointwise         Inductor tries more sizes of pointwise and reduction kernels (off)
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitworth.engines.base import (
    EngineError,
    EngineInfo,
    EngineOptions,
    FormatSupport,
    LoweredModel,
    Plan,
    Runner,
    one_line,
)
from bitworth.engines.cpu import cpu_model, isa
from bitworth.engines.plan_file import plan_bytes, publish
from bitworth.engines.torch_device import device_of, exact_fp32, use_cache_folder
from bitworth.errors import UserError
from bitworth.lowering.torch_spec import TorchSpec, read_spec, read_tensors, write_spec
from bitworth.subject.torch_factory import source_sha256

if TYPE_CHECKING:
    from torch import nn

#: Options and the values that they take.
OPTIONS: dict[str, tuple[str, ...]] = {
    "device": ("cpu", "cuda"),
    "compile": ("blocks", "whole", "eager"),
    **dict.fromkeys(
        ("cuda_graph", "fuse", "persistent_reductions", "tune_pointwise"), ("on", "off")
    ),
}
_ADA = (8, 9)
_NO_BLOCKS = (
    "scales of blocks are multiplied by NVIDIA's Blackwell (10.0 and later) alone, and this engine "
    "has run on none"
)


class TorchPlan:
    """A lowered module as a file."""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        self._path = path
        self._options = options

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return plan_bytes(self._path)

    @property
    def note(self) -> str:
        """How it is compiled."""
        extra = self._options.extra
        mode = "eager" if self._options.optimization == "none" else extra.get("compile", "blocks")
        return {
            "blocks": "compiled by torch.compile, region by region, in each process that loads it",
            "whole": "compiled by torch.compile as one graph in each process that loads it",
            "eager": "",
        }[mode]

    def save(self, path: Path) -> None:
        """Copy the file to ``path``."""
        publish(self._path, path)

    def load(self) -> Runner:
        """The module on its device, compiled when inputs are bound.

        Raises:
            EngineError: the factory fails, makes another module, or its source has changed.
        """
        from bitworth.engines.torch_compile import Compiled
        from bitworth.engines.torch_runner import TorchRunner

        device = _device(self._options)
        spec, module = self.module(device)
        plain = self._options.optimization == "none"
        mode = "eager" if plain else self._options.extra.get("compile", "blocks")
        if plain:
            exact_fp32()
        graphed = not plain and self._options.extra.get("cuda_graph", "on") == "on"
        if self._options.mode != "host" and device != "cuda":
            raise EngineError(f"torch: mode {self._options.mode} is for a GPU; use host")
        compiled = Compiled(module, mode, self._options.extra)
        return TorchRunner(compiled, spec.base, device, self._options.mode, graphed)

    def module(self, device: str) -> tuple[TorchSpec, nn.Module]:
        """The specification, and the module with its tensors on ``device``."""
        from bitworth.lowering.torch_swap import build_module

        try:
            spec = read_spec(self._path)
            if source_sha256(spec.factory) != spec.source_sha256:
                raise EngineError(
                    f"torch: the source of {spec.factory.name} has changed since the plan was made"
                )
            fused = self._options.extra.get("fuse") == "on"
            tensors = read_tensors(self._path, device)
            return spec, build_module(spec, tensors, device, fused)
        except (UserError, ValueError) as error:
            raise EngineError(f"torch: {one_line(error)}") from error

    def layers(self) -> tuple[str, ...]:
        """Classes of the modules that hold tensors, lowered ones with their format."""
        from bitworth.lowering.torch_layers import EmulatedLinear, LoweredLinear
        from bitworth.lowering.torch_swap import structure

        names: list[str] = []
        for child in structure(read_spec(self._path)).modules():
            own = [*child.parameters(recurse=False), *child.buffers(recurse=False)]
            if isinstance(child, LoweredLinear | EmulatedLinear):
                names.append(f"{type(child).__name__} {child.format}")
            elif own:
                names.append(type(child).__name__)
        return tuple(names)


class Torch:
    """The engine."""

    name = "torch"

    def probe(self) -> EngineInfo:
        """Version, device and formats."""
        use_cache_folder()
        import torch

        device = device_of("")
        if device == "cpu":
            return EngineInfo(
                self.name, torch.__version__, cpu_model(), _cpu_formats(),
                {"isa": " ".join(isa()), "compiler": "Inductor"},
            )  # fmt: skip
        capability = torch.cuda.get_device_capability(0)
        return EngineInfo(
            self.name,
            torch.__version__,
            torch.cuda.get_device_name(0),
            gpu_formats(capability),
            {
                "compute_capability": ".".join(map(str, capability)),
                "cuda": str(torch.version.cuda),
                "compiler": "Inductor",
            },
        )

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """One stream: several are for engines on a CPU."""
        del lowered
        return replace(options, streams=1)

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """The plan of a lowered module: its file, with the options that it was built under.

        Raises:
            EngineError: an option is unknown, or the file is none of these.
        """
        check_options(options)
        folder = Path(tempfile.mkdtemp(prefix="bitworth-torch-"))
        plan = TorchPlan(folder / "plan.bin", options)
        weakref.finalize(plan, shutil.rmtree, folder, ignore_errors=True)
        try:
            spec = read_spec(lowered.path)
            told = tuple(sorted((k, v) for k, v in options.extra.items() if k != "device"))
            write_spec(
                replace(spec, options=told), read_tensors(lowered.path, "cpu"), folder / "plan.bin"
            )
        except ValueError as error:
            raise EngineError(f"torch: {one_line(error)}") from error
        return plan

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``."""
        del precision  # the file says what it computes in
        check_options(options)
        return TorchPlan(path, options)


def check_options(options: EngineOptions) -> None:
    """Refuse an option that nothing reads.

    Raises:
        EngineError: an unknown option or value.
    """
    for key, value in options.extra.items():
        if key not in OPTIONS:
            raise EngineError(f"torch: no option '{key}'; known: {', '.join(OPTIONS)}")
        if value not in OPTIONS[key]:
            raise EngineError(
                f"torch: option {key} is '{value}'; it takes {' or '.join(OPTIONS[key])}"
            )


def _device(options: EngineOptions) -> str:
    import torch

    use_cache_folder()
    device = device_of(options.extra.get("device", ""))
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError("torch: there is no CUDA device here; leave device out, or set cpu")
    if device == "cpu":
        torch.set_num_threads(options.threads)
    return device


def gpu_formats(capability: tuple[int, int]) -> dict[str, FormatSupport]:
    """What a GPU of this compute capability multiplies in."""
    told = f"compute capability {capability[0]}.{capability[1]}"
    fp8 = FormatSupport("native", "scaled_mm")
    if capability < _ADA:
        fp8 = FormatSupport("emulated", f"{told}: no FP8 instructions before 8.9")
    return _formats(told, "in torch with TF32 off", fp8)


def _cpu_formats() -> dict[str, FormatSupport]:
    fp8 = FormatSupport("emulated", "this CPU has no FP8 instructions")
    return _formats("this CPU", "in torch", fp8)


def _formats(told: str, exact: str, fp8: FormatSupport) -> dict[str, FormatSupport]:
    int8 = FormatSupport("native", "_int_mm")
    e5m2 = FormatSupport(
        "emulated", f"{told}: scaled_mm takes no two E5M2 operands (torch 2.11 and 2.14)"
    )
    blocks = FormatSupport("emulated", f"{told}: {_NO_BLOCKS}")
    weights = FormatSupport("absent", "this engine lowers no weights on their own")
    names = ("int8", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4")
    return {
        "fp32": FormatSupport("native", exact),
        "bf16": FormatSupport("native", ""),
        "fp16": FormatSupport("native", ""),
        "int8": int8,
        "int8 dynamic": int8,
        "int4": weights,
        "fp8_e4m3": fp8,
        "fp8_e4m3 dynamic": fp8,
        "fp8_e5m2": e5m2,
        "fp8_e5m2 dynamic": e5m2,
        "mxfp8": blocks,
        "nvfp4": blocks,
        **{f"{name} weight_only": weights for name in names},
    }


ENGINE: Any = Torch()
