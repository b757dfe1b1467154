"""Compiles a module region by region, and holds what was compiled against what was meant.

A region is one member of the module's outermost list of blocks: they share one code object, so that
Inductor compiles the list once. What lies outside runs eagerly, inside the same CUDA graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from bitworth.engines.base import EngineError, one_line
from bitworth.lowering.torch_layers import LoweredLinear

#: Calls in dynamo's graph that are products of a weight, by the format that they compute in.
_PRODUCTS: Mapping[Any, str] = {torch._scaled_mm: "fp8_e4m3", torch._int_mm: "int8"}
#: Variants of one block that dynamo may compile, for inputs of different shapes.
RECOMPILES = 64
#: What a cell may set, and what of Inductor's it is. A kernel of several forms that comes out of
#: Inductor's cache fails to load in torch 2.11 (its lock is None), so there is none for it.
SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "persistent_reductions": {"triton.multi_kernel": 1, "force_disable_caches": True},
    "tune_pointwise": {"max_autotune_pointwise": True},
}


class Compiled:
    """A module whose regions are compiled when they first run.

    Attributes:
        module: the module.
        regions: their names.
    """

    def __init__(self, module: nn.Module, mode: str, settings: Mapping[str, str]) -> None:
        self.module = module
        self.regions = () if mode == "eager" else regions(module, mode)
        self._products: Counter[str] = Counter()
        self._graphs = 0
        self._patches = _patches(settings)
        if self.regions:
            torch._dynamo.config.recompile_limit = RECOMPILES
            torch._dynamo.config.accumulated_recompile_limit = 4 * RECOMPILES
        for name in self.regions:
            region = module.get_submodule(name) if name else module
            region.compile(fullgraph=True, dynamic=False, backend=self._backend)

    @property
    def graphs(self) -> int:
        """Graphs compiled so far: it may not grow while calls are timed."""
        return self._graphs

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Run the module.

        Raises:
            EngineError: a region breaks into several graphs, or was compiled too often.
        """
        try:
            return self.module(**inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise EngineError(
                f"torch.compile: {one_line(error, 500)}; a region has to be one graph: mend the "
                'module there, or set options = { compile = "eager" } for the whole study'
            ) from error

    def check(self) -> None:
        """Check that every lowered module was compiled to a product in its format.

        Raises:
            EngineError: one was not.
        """
        for name in self.regions:
            region = self.module.get_submodule(name) if name else self.module
            for form in ("fp8_e4m3", "int8"):
                meant = sum(
                    isinstance(m, LoweredLinear) and m.format == form for m in region.modules()
                )
                # Regions of one shape share a graph, so each must have been seen at least once.
                if meant and self._products[f"{form} {meant}"] == 0:
                    raise EngineError(
                        f"torch.compile: region '{name}' has {meant} modules in {form}, and no "
                        "compiled graph has as many products in it: a site ran in the base "
                        "precision"
                    )

    def _backend(
        self, graph: torch.fx.GraphModule, example: list[torch.Tensor]
    ) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        self._graphs += 1
        found: Counter[str] = Counter()
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target in _PRODUCTS:
                found[_PRODUCTS[node.target]] += 1
        for form, count in found.items():
            self._products[f"{form} {count}"] += 1
        made: Callable[..., Any] = compile_fx(graph, example, config_patches=dict(self._patches))
        return made


def regions(module: nn.Module, mode: str) -> tuple[str, ...]:
    """Names of what is compiled on its own; the empty name is the whole module.

    Args:
        module: the module.
        mode: ``blocks``: the members of its outermost lists of modules; where it has none, or for
            ``whole``, the module itself.
    """
    if mode != "whole":
        found: list[str] = []
        for name, child in module.named_modules():
            if _runs(child) and not _inside(name, found):
                found += [f"{name}.{index}" for index in range(len(child))]
        if found:
            return tuple(found)
    return ("",)


def _runs(module: nn.Module) -> bool:
    """Whether it is a list whose members run: a list of lists has none."""
    lists = nn.ModuleList | nn.ModuleDict
    return (
        isinstance(module, nn.ModuleList)
        and len(module) > 1
        and not any(isinstance(member, lists) for member in module)
    )


def _inside(name: str, regions: list[str]) -> bool:
    return any(name.startswith(f"{region}.") for region in regions)


def _patches(settings: Mapping[str, str]) -> dict[str, Any]:
    patches: dict[str, Any] = {}
    for key, values in SWITCHES.items():
        if settings.get(key) == "on":
            patches |= values
    return patches
