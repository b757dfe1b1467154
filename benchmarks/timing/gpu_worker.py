"""A worker whose engine is a large matrix product on the GPU, in bf16 or in FP8.

Not an engine of the product: it exists to see what block clocks and a power cap do to a verdict.
Run as ``python -m benchmarks.timing.gpu_worker FD PARENT_PID ENGINE``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitworth.engines import registry
from bitworth.engines.base import Arrays, EngineInfo, EngineOptions, LayerTime, LoweredModel, Plan
from bitworth.measurement.worker import die_with, serve

#: Rows, inner size and columns: about 1.5 ms in bf16 on an H200, and enough to reach its power cap.
SIZE = 8192


class Product:
    """A product of two random matrices that stay on the GPU."""

    def __init__(self, format_: str) -> None:
        self._format = format_
        self._run: Callable[[], Any] = lambda: None

    def bind(self, inputs: Arrays) -> None:
        """Draw both matrices; ``inputs`` only gives the seed."""
        import torch

        torch.manual_seed(int(inputs["seed"][0]))
        a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        if self._format == "bf16":
            out = torch.empty_like(a)
            self._run = lambda: torch.mm(a, b, out=out)
        else:
            one = torch.ones((), device="cuda")
            left = a.to(torch.float8_e4m3fn)
            right = b.t().contiguous().to(torch.float8_e4m3fn).t()
            self._run = lambda: torch._scaled_mm(
                left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
            )
        self._seed = dict(inputs)

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The seed."""
        return {name: np.array(value) for name, value in self._seed.items()}

    def run(self) -> None:
        """Multiply and wait."""
        import torch

        self._run()
        torch.cuda.synchronize()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """None: only time is asked for."""
        return {}

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        """Wall time of every ``inner`` products in ns."""
        samples = []
        for _ in range(iterations):
            start = perf_counter_ns()
            for _ in range(inner):
                self.run()
            samples.append(perf_counter_ns() - start)
        return samples

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """None."""
        del calls
        return []

    def precision(self) -> str:
        """The products' format."""
        return self._format


class ProductPlan:
    """A format: there is nothing to save."""

    size_bytes = 0
    note = ""

    def __init__(self, format_: str) -> None:
        self._format = format_

    def save(self, path: Path) -> None:
        """Write the format's name."""
        path.write_text(self._format)

    def load(self) -> Product:
        """A product in this format."""
        return Product(self._format)

    def layers(self) -> tuple[str, ...]:
        """One product."""
        return ("MatMul",)


class ProductEngine:
    """Products on the GPU."""

    name = "gpu_product"

    def probe(self) -> EngineInfo:
        """The GPU's name and torch's version."""
        import torch

        return EngineInfo(self.name, torch.__version__, torch.cuda.get_device_name(0), {})

    def decided(self, options: EngineOptions) -> EngineOptions:
        """Nothing is left to decide."""
        return options

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """The plan of a format."""
        del options
        return ProductPlan(lowered.precision)

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``."""
        del path, options
        return ProductPlan(precision)


ENGINE = ProductEngine()

if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    registry.MODULES[ENGINE.name] = "benchmarks.timing.gpu_worker"
    serve(Connection(int(sys.argv[1])))
