"""Work of known size: k calls of a plan timed as one.

A plan of k + 1 units takes (k + 1) / k of the time of k of them, whatever the machine does: both
run the same bytes, and the cost of a call is in every unit. A spin of a given time would not slow
down with the machine as real work does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from bitworth.measurement.timing import TimingTarget
from bitworth.measurement.workers import Worker


class UnitsAsOne:
    """A worker whose every sample is the sum of ``units`` calls."""

    def __init__(self, worker: Worker, units: int) -> None:
        self._worker = worker
        self._units = units

    @property
    def pid(self) -> int:
        """Process id."""
        return self._worker.pid

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: Any,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Ask the worker; a block runs ``units`` calls a sample."""
        if op != "block":
            return self._worker.ask(op, arrays, timeout_s=timeout_s, **request)
        k = self._units
        many = {**request, **{name: k * request[name] for name in ("lead_in", "iterations")}}
        header, rest = self._worker.ask(op, arrays, timeout_s=timeout_s, **many)
        calls = header["samples"]
        header["samples"] = [sum(calls[i : i + k]) for i in range(0, len(calls), k)]
        return header, rest

    def stop(self) -> None:
        """Suspend the process."""
        self._worker.stop()

    def resume(self) -> None:
        """Continue the process."""
        self._worker.resume()

    def peak_resident_bytes(self) -> int | None:
        """Peak resident memory of the process."""
        return self._worker.peak_resident_bytes()


@contextmanager
def units_as_one(name: str, target: TimingTarget, units: int) -> Iterator[UnitsAsOne]:
    """A process of its own that times ``units`` calls as one."""
    with Worker(name, target.log, target.engine) as worker:
        yield UnitsAsOne(worker, units)
