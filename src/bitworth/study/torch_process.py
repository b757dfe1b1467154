"""The subject's process as the study sees it: started when it is needed, ended in between."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitworth.calibration import Calibration, cache
from bitworth.calibration.statistics import RangeStatistics
from bitworth.engines.base import Arrays
from bitworth.errors import UserError
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe import Quantize, Site
from bitworth.subject.torch_factory import Factory

#: A large module takes minutes to build and to write.
_TIMEOUT_S = 1800.0
_MODULE = "bitworth.study.torch_worker"


@dataclass(frozen=True)
class Scan:
    """What one run showed; see ``subject.torch_module.ModuleScan``."""

    sites: tuple[Site, ...]
    uncovered: tuple[tuple[str, str, str], ...]
    siblings: tuple[tuple[str, ...], ...]
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    outputs: tuple[str, ...]


class ModuleProcess:
    """A process that holds the module while there is something to ask it.

    Args:
        factory: makes the module.
        log: file that takes what it prints.
    """

    def __init__(self, factory: Factory, log: Path) -> None:
        self._factory = factory
        self._log = log
        self._worker: Worker | None = None
        self._opened: dict[str, Any] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes of source and module, and how many weights it has.

        Raises:
            UserError: the factory fails, or torch is not installed.
        """
        if not self._opened:
            self._running()
        return self._opened

    def scan(self, sample: Arrays) -> Scan:
        """Run the module once."""
        found = self._ask("scan", sample)
        return Scan(
            sites=tuple(_site(tree) for tree in found["sites"]),
            uncovered=tuple(tuple(row) for row in found["uncovered"]),
            siblings=tuple(tuple(names) for names in found["siblings"]),
            inputs={k: (tuple(shape), dtype) for k, (shape, dtype) in found["inputs"].items()},
            outputs=tuple(found["outputs"]),
        )

    def observe(
        self, samples: Iterable[Arrays], values: Mapping[str, str], progress: Callable[[int], None]
    ) -> Calibration:
        """Ranges of ``values`` (name to the module that reads it) over ``samples``.

        The process ends with it: on a GPU it holds memory that a timed plan may need.
        """
        for done, sample in enumerate(samples, start=1):
            self._ask("observe", sample, values=dict(values))
            progress(done)
        found = cache.from_arrays(self._running().ask("ranges", timeout_s=_TIMEOUT_S)[1])
        self.close()
        return found

    def lower(
        self,
        path: Path,
        base: str,
        pairs: Sequence[tuple[Site, Quantize]],
        statistics: Mapping[str, RangeStatistics],
        scan: Scan,
        *,
        emulated: bool = False,
        fused: bool = False,
    ) -> dict[str, Any]:
        """Write the lowered module; the record's form of its sites, dead ones and left-out ones."""
        used = {
            s.activation: statistics[s.activation] for s, _ in pairs if s.activation in statistics
        }
        return self._ask(
            "lower",
            cache.to_arrays(Calibration(used, 1, 1, 0)) if used else {},
            path=str(path),
            base=base,
            pairs=[[asdict(site), asdict(entry)] for site, entry in pairs],
            emulated=emulated,
            fused=fused,
            siblings=scan.siblings,
        )

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ask(self, op: str, arrays: Arrays, **request: Any) -> dict[str, Any]:
        try:
            return self._running().ask(op, arrays, timeout_s=_TIMEOUT_S, **request)[0]
        except WorkerFailed as failure:
            raise UserError(f"subject.torch: {self._factory.name}: {failure}") from None

    def _running(self) -> Worker:
        if self._worker is None:
            check_installed()
            worker = Worker("subject", self._log, "", _MODULE)
            try:
                self._opened, _ = worker.ask(
                    "open", timeout_s=_TIMEOUT_S, factory=self._factory.name,
                    folder=self._factory.folder,
                )  # fmt: skip
            except WorkerFailed as failure:
                worker.close()
                raise UserError(f"subject.torch: {failure.detail}") from None
            except BaseException:
                worker.close()
                raise
            self._worker = worker
        return self._worker


def check_installed() -> None:
    """Raise UserError where the packages of the extra are missing."""
    for name in ("torch", "safetensors"):
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"subject.torch: {name} is not installed; pip install 'bitworth[torch]'"
            )


def _site(tree: dict[str, Any]) -> Site:
    return Site(**{**tree, "weight_shape": tuple(tree["weight_shape"])})
