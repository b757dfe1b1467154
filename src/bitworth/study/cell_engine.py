"""The engine of a cell, with the options that it is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.measurement.timing import TimingTarget
from bitworth.recipe.rules import Preference
from bitworth.study.context import StudyContext, file_key

#: Options of torch that say where and as what a module runs, and not how fast.
_KEPT = ("device", "fuse")


@dataclass(frozen=True)
class CellEngine:
    """The engine of a cell.

    Attributes:
        engine: its name.
        cell: name of the cell, for files.
        info: what the probe found.
        options: the cell's options.
        preferred: what ``auto`` in a recipe resolves to.
        inputs: what a timed call runs on.
        batch: held-out samples that a timed call takes together; empty for one at a time.
    """

    engine: str
    cell: str
    info: dict[str, Any]
    options: EngineOptions
    preferred: Preference
    inputs: Arrays
    batch: tuple[int, ...] = ()

    def plan_path(self, study: StudyContext, variant: str) -> Path:
        """Where a variant's plan is saved."""
        return study.workspace.path("plans", self.cell, file_key(variant), "plan.bin")

    def with_options(self, extra: Mapping[str, str]) -> CellEngine:
        """The engine with further options of its own."""
        if not extra:
            return self
        return replace(self, options=replace(self.options, extra={**self.options.extra, **extra}))

    @property
    def device(self) -> str:
        """What its timing has to itself: ``cpu``, or ``cuda:0``."""
        wanted = self.options.extra.get("device", "")
        gpu = "compute_capability" in self.info["details"]
        return "cuda:0" if gpu and wanted in ("", "cuda") else "cpu"

    def target(self, log: Path) -> TimingTarget:
        """What its plans are timed on."""
        gpu = 0 if self.device == "cuda:0" else None
        return TimingTarget(self.engine, self.options, self.inputs, log, gpu=gpu)

    @property
    def unoptimized(self) -> EngineOptions:
        """What its models are run with, unoptimized, to hold them against."""
        extra = {
            k: v for k, v in self.options.extra.items() if self.engine == "torch" and k in _KEPT
        }
        return EngineOptions(self.options.threads, "none", extra)

    def support(self, name: str) -> tuple[str, str]:
        """State and reason of a format."""
        found = self.info["formats"].get(
            name, {"state": "absent", "reason": f"{self.engine} has no {name}"}
        )
        return found["state"], found["reason"]
