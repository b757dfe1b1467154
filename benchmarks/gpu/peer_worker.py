"""A worker that runs a PyTorch module as one of several tools would, beside Bitworth's own plan.

A plan is a JSON file that names the way: ``bitworth`` with the path of a plan; ``compile``, that is
torch.compile on the module in bf16; or torchao's dynamic Float8 with one scale a tensor or a row.
All run under the same runner: one CUDA graph where there is a GPU, the same clock.
Run as ``python -m benchmarks.gpu.peer_worker FD PARENT_PID ENGINE``.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bitworth.engines import registry
from bitworth.engines.base import EngineInfo, EngineOptions, LoweredModel, Plan, Runner
from bitworth.engines.torch import ENGINE as TORCH
from bitworth.engines.torch_device import device_of, use_cache_folder
from bitworth.measurement.worker import die_with, serve
from bitworth.subject.torch_factory import Factory, make_module

NAME = "peer"
#: What each way does to a module in bf16 before it is compiled.
WAYS = ("bitworth", "compile", "torchao per-tensor", "torchao per-row")


class PeerPlan:
    """A way to run a module."""

    size_bytes = 0
    note = ""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        self._tree: dict[str, Any] = json.loads(path.read_text())
        self._options = options

    def save(self, path: Path) -> None:
        """Write what it was read from."""
        path.write_text(json.dumps(self._tree))

    def layers(self) -> tuple[str, ...]:
        """None: only time is asked for."""
        return ()

    def load(self) -> Runner:
        """The module on the device, ready to be bound."""
        import torch

        from bitworth.engines.torch_compile import Compiled
        from bitworth.engines.torch_runner import TorchRunner

        use_cache_folder()
        way = self._tree["way"]
        if way == "bitworth":
            told = EngineOptions(**{**vars(self._options), "extra": self._tree["options"]})
            return TORCH.open(Path(self._tree["plan"]), "bf16", told).load()  # type: ignore[no-any-return]
        device = device_of("")
        made = make_module(Factory(self._tree["factory"], self._tree["folder"]))
        module = made.to(torch.bfloat16).to(device)
        if way != "compile":
            quantize(module, way)
        compiled = Compiled(module, self._tree["regions"], {})
        return TorchRunner(compiled, "bf16", device, self._options.mode, graphed=True)


def quantize(module: Any, way: str) -> None:
    """Let torchao quantize the Linear modules of the lists of blocks, as its documents show."""
    import torch
    from torchao.quantization import (  # type: ignore[import-not-found]
        Float8DynamicActivationFloat8WeightConfig,
        PerRow,
        PerTensor,
        quantize_,
    )

    granularity = PerTensor() if way.endswith("tensor") else PerRow()
    config = Float8DynamicActivationFloat8WeightConfig(granularity=granularity)
    quantize_(
        module, config, lambda child, name: isinstance(child, torch.nn.Linear) and "blocks" in name
    )


class PeerEngine:
    """All ways under one engine's name."""

    name = NAME

    def probe(self) -> EngineInfo:
        """Torch's version."""
        return TORCH.probe()  # type: ignore[no-any-return]

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """Nothing is left to decide."""
        del lowered
        return options

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """The plan in a file."""
        return PeerPlan(lowered.path, options)

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan in a file."""
        del precision
        return PeerPlan(path, options)


ENGINE = PeerEngine()

if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    registry.MODULES[NAME] = "benchmarks.gpu.peer_worker"
    serve(Connection(int(sys.argv[1])))
