"""Runs a loaded module: bound inputs, a CUDA graph where there is a GPU, and times of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bitworth.engines.base import Arrays, EngineError, LayerTime
from bitworth.engines.torch_compile import Compiled
from bitworth.engines.torch_device import CacheFlush
from bitworth.engines.torch_profile import profile_calls
from bitworth.lowering.torch_swap import DTYPES
from bitworth.subject.torch_module import named_outputs, to_tensors

Mode = Literal["host", "hot", "cold"]
#: Runs before a graph is captured: they compile, and let the libraries choose and allocate.
_WARM_UP = 3


class TorchRunner:
    """A module with its inputs.

    Args:
        compiled: the module.
        base: precision of its floating inputs.
        device: cpu or cuda.
        mode: what a sample is: ``host`` the wall time of calls and the wait for them; ``hot`` and
            ``cold`` the GPU's own time of graph replays, back to back or each on a flushed cache.
        graphed: whether calls are captured in a CUDA graph.
    """

    def __init__(
        self, compiled: Compiled, base: str, device: str, mode: Mode, graphed: bool
    ) -> None:
        self._compiled = compiled
        self._base = base
        self._device = device
        self._mode = mode
        self._graphed = graphed and device == "cuda"
        self._inputs: dict[str, torch.Tensor] = {}
        self._given: dict[str, NDArray[np.generic]] = {}
        self._result: Any = None
        self._graph: Any = None
        self._known_graphs = 0
        self._flush = CacheFlush() if mode == "cold" else None

    def bind(self, inputs: Arrays) -> None:
        """Copy ``inputs`` to the device; a graph of their shapes is captured once."""
        made = to_tensors(inputs, self._device, DTYPES[self._base])
        same = {k: (v.shape, v.dtype) for k, v in made.items()} == {
            k: (v.shape, v.dtype) for k, v in self._inputs.items()
        }
        self._given = {name: np.array(value) for name, value in inputs.items()}
        if same and self._inputs:
            for name, value in made.items():
                self._inputs[name].copy_(value)
        else:
            self._inputs, self._graph = made, None
            self._warm_up()
        self._known_graphs = self._compiled.graphs

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is bound now, copied to the host; floating ones as the device holds them."""
        return {name: _array(value) for name, value in self._inputs.items()}

    def run(self) -> None:
        """Run once and wait."""
        self._start()
        self._wait()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run, in fp32 where they are of 16 bits."""
        return {name: _array(value) for name, value in named_outputs(self._result).items()}

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        """``iterations`` samples in ns, each of ``inner`` calls.

        Raises:
            ValueError: several calls a sample where each is to find an empty cache.
            EngineError: something was compiled while calls were timed.
        """
        if self._flush is not None and inner != 1:
            raise ValueError("a cold sample has one call")
        clock = self._host_samples if self._mode == "host" else self._device_samples
        samples = clock(iterations, inner)
        if self._compiled.graphs != self._known_graphs:
            raise EngineError("torch.compile: a region was compiled again while calls were timed")
        return samples

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """Time of each kernel over ``calls`` runs outside any CUDA graph, from CUPTI or the CPU's
        own operator events.
        """
        return profile_calls(
            self._plain, self._compiled.module, calls, self._device, bool(self._compiled.regions)
        )

    def precision(self) -> str:
        """Type of most of the module's floating weights."""
        from bitworth.lowering.torch_layers import EmulatedLinear, LoweredLinear
        from bitworth.lowering.torch_swap import BASES

        counts: dict[str, int] = {}
        for module in self._compiled.module.modules():
            if isinstance(module, LoweredLinear | EmulatedLinear):
                continue
            for tensor in module.parameters(recurse=False):
                if name := BASES.get(tensor.dtype):
                    counts[name] = counts.get(name, 0) + tensor.numel()
        return max(counts, key=lambda name: counts[name]) if counts else self._base

    def _warm_up(self) -> None:
        if not self._graphed:
            for _ in range(_WARM_UP):
                self._plain()
            self._compiled.check()
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._plain()
        torch.cuda.current_stream().wait_stream(stream)
        self._compiled.check()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._plain()
        self._wait()

    def _plain(self) -> None:
        with torch.inference_mode():
            self._result = self._compiled.run(self._inputs)

    def _start(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._plain()

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _host_samples(self, iterations: int, inner: int) -> list[int]:
        samples = []
        for _ in range(iterations):
            start = perf_counter_ns()
            for _ in range(inner):
                self._start()
            self._wait()
            samples.append(perf_counter_ns() - start)
        return samples

    def _device_samples(self, iterations: int, inner: int) -> list[int]:
        marks = []
        for _ in range(iterations):
            if self._flush is not None:
                self._flush()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            first.record()
            for _ in range(inner):
                self._start()
            last.record()
            marks.append((first, last))
        self._wait()
        return [round(first.elapsed_time(last) * 1e6) for first, last in marks]


def _array(value: torch.Tensor) -> NDArray[np.generic]:
    plain = value.detach().cpu()
    if plain.dtype in (torch.bfloat16, torch.float16):
        plain = plain.float()
    # A copy: what the device writes next must not change it.
    return np.array(plain.numpy())
