"""Ranges of what the sites of a PyTorch module read, over the calibration samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitworth.calibration.observers import Calibration
from bitworth.calibration.statistics import RangeAccumulator

if TYPE_CHECKING:
    import torch


class ModuleRanges:
    """Collects the inputs of modules while the module around them runs.

    Args:
        module: in fp32.
        values: by name of the value, the module that reads it.
    """

    def __init__(self, module: torch.nn.Module, values: Mapping[str, str]) -> None:
        self._module = module
        self._collected = {name: RangeAccumulator() for name in values}
        self._values = values
        self._samples = 0

    def add(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Run one sample.

        Raises:
            whatever the module raises.
        """
        import torch

        hooks = [
            self._module.get_submodule(module).register_forward_pre_hook(self._note(name))
            for name, module in self._values.items()
        ]
        try:
            with torch.inference_mode():
                self._module(**inputs)
        finally:
            for hook in hooks:
                hook.remove()
        self._samples += 1

    def finish(self) -> Calibration:
        """What was seen so far."""
        statistics = {name: found.finish() for name, found in self._collected.items()}
        return Calibration(statistics, self._samples, 1, 0)

    def _note(self, name: str) -> Any:
        def hook(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
            self._collected[name].add(given[0].detach().float().cpu().numpy())

        return hook
