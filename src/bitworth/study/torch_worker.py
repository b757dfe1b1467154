"""The process that holds a PyTorch subject: scans it, observes its ranges, and lowers it.

Run as ``python -m bitworth.study.torch_worker FD PARENT_PID NAME``. It times nothing.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from bitworth.calibration import cache
from bitworth.calibration.torch_observe import ModuleRanges
from bitworth.calibration.torch_scales import is_per_row, scale_modules
from bitworth.engines.torch_device import device_of, exact_fp32
from bitworth.errors import UserError
from bitworth.lowering.torch_lower import used_siblings, write_lowered_module
from bitworth.lowering.torch_spec import LoweredSite, TorchSpec
from bitworth.measurement.worker import Reply, die_with, serve
from bitworth.recipe import FORMATS, Quantize, Site
from bitworth.recipe.granularity import PerBlock
from bitworth.study.site_facts import site_facts
from bitworth.subject.torch_factory import Factory, make_module, source_sha256
from bitworth.subject.torch_module import (
    all_tensors,
    count_denormals,
    identity_sha256,
    scan,
    to_tensors,
)

Pairs = TypeAdapter(tuple[tuple[Site, Quantize], ...])


class Subject:
    """The module and what is known of it."""

    def __init__(self) -> None:
        self._module: Any = None
        self._factory: Factory | None = None
        self._ranges: ModuleRanges | None = None
        self._device = "cpu"

    def handle(self, request: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Reply:
        """Answer one command.

        Raises:
            UserError: the user's module does not build or run.
        """
        match request.pop("op"):
            case "open":
                return self._open(**request), {}
            case "scan":
                return self._scan(arrays), {}
            case "observe":
                return self._observe(arrays, **request), {}
            case "ranges":
                assert self._ranges is not None
                return {}, cache.to_arrays(self._ranges.finish())
            case "lower":
                return self._lower(arrays, **request), {}
            case unknown:
                raise UserError(f"unknown command {unknown}")

    def _open(self, factory: str, folder: str) -> dict[str, Any]:
        import torch

        exact_fp32()
        self._factory = Factory(factory, folder)
        # The reference is in fp32, whatever the weights came in.
        self._module = make_module(self._factory).to(torch.float32)
        source = source_sha256(self._factory)
        return {
            "source_sha256": source,
            "identity_sha256": identity_sha256(self._module, source),
            "weights": sum(t.numel() for _, t in all_tensors(self._module)),
            "denormals": sum(count_denormals(t) for _, t in all_tensors(self._module)),
        }

    def _scan(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        import torch

        try:
            found = scan(self._module, to_tensors(arrays, "cpu", torch.float32))
        except Exception as error:  # the user's code may raise anything
            raise UserError(
                f"subject.torch: {_told(error)} on the first held-out sample"
            ) from error
        return {
            "sites": [vars(site) for site in found.sites],
            "uncovered": found.uncovered,
            "siblings": found.siblings,
            "inputs": found.inputs,
            "outputs": found.outputs,
        }

    def _observe(self, arrays: dict[str, NDArray[Any]], values: dict[str, str]) -> dict[str, Any]:
        import torch

        if self._ranges is None:
            self._device = device_of("")
            self._module.to(self._device)
            self._ranges = ModuleRanges(self._module, values)
        try:
            self._ranges.add(to_tensors(arrays, self._device, torch.float32))
        except Exception as error:  # the user's code may raise anything
            raise UserError(f"subject.torch: {_told(error)} on a calibration sample") from error
        return {}

    def _lower(
        self,
        arrays: dict[str, NDArray[Any]],
        path: str,
        base: str,
        pairs: list[Any],
        emulated: bool,
        fused: bool,
        siblings: list[list[str]],
    ) -> dict[str, Any]:
        assert self._factory is not None
        chosen = Pairs.validate_python(pairs)
        statistics = cache.from_arrays(arrays).statistics if arrays else {}
        names = [tuple(group) for group in siblings]
        formats = {site.node: (q.format, q.scheme, q.weights) for site, q in chosen}
        together = used_siblings(names, formats)
        scaled = scale_modules(chosen, self._weight, statistics, together if fused else ())
        entries = {site.id: entry for site, entry in chosen}
        made = {
            q.site.node: _lowered(q.site, entries[q.site.id], emulated) for q in scaled.quantized
        }
        spec = TorchSpec(
            factory=self._factory,
            source_sha256=source_sha256(self._factory),
            base=base,
            sites=tuple(made.values()),
            siblings=together,
        )
        by_module = {q.site.node: q for q in scaled.quantized}
        write_lowered_module(spec, self._module, by_module, Path(path))
        return {
            "sites": [f.model_dump(mode="json") for f in site_facts(scaled.quantized, entries)],
            "dead": scaled.dead,
            "left_out": scaled.left_out,
        }

    def _weight(self, name: str) -> NDArray[np.generic]:
        found: NDArray[np.generic] = self._module.get_parameter(name).detach().cpu().numpy()
        return found


def _lowered(site: Site, entry: Quantize, emulated: bool) -> LoweredSite:
    weights, block = entry.weights, FORMATS[entry.format].block or 0
    assert entry.scheme != "weight_only"
    return LoweredSite(
        module=site.node,
        format=entry.format,
        scheme=entry.scheme,
        weights="block" if isinstance(weights, PerBlock) else weights.kind,  # type: ignore[arg-type]
        activations="per_row" if is_per_row(entry) else "block" if block else "per_tensor",
        block=block,
        emulated=emulated,
    )


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"the module raised {type(error).__name__}: {text}"


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])), Subject().handle)
