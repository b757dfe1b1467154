"""What this machine can study: engines, versions, and formats with their reasons."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitworth.measurement.workers import Worker, WorkerFailed


@dataclass(frozen=True)
class EngineReport:
    """One engine on this machine.

    Attributes:
        engine: its name.
        version, device: empty when it does not start.
        formats: format, state and reason.
        details: further facts.
        problem: why it does not start; empty when it does.
    """

    engine: str
    version: str
    device: str
    formats: tuple[tuple[str, str, str], ...]
    details: dict[str, str]
    problem: str


def examine(engines: Sequence[str]) -> tuple[EngineReport, ...]:
    """Probe each engine in a process of its own: one that crashes is a line, not an end."""
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            with Worker(f"{engine}/probe", Path(folder) / "log") as worker:
                try:
                    info, _ = worker.ask("probe", timeout_s=120.0, engine=engine)
                except WorkerFailed as failure:
                    reports.append(EngineReport(engine, "", "", (), {}, str(failure)))
                    continue
            formats = tuple((k, v["state"], v["reason"]) for k, v in info["formats"].items())
            reports.append(
                EngineReport(engine, info["version"], info["device"], formats, info["details"], "")
            )
    return tuple(reports)
