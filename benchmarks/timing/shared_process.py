"""All plans of a session in one process: the arrangement that separate processes are judged by."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bitworth.engines.base import EngineError, one_line
from bitworth.measurement.wire import receive, send
from bitworth.measurement.worker import Session
from bitworth.measurement.workers import WorkerFailed


class SharedProcess:
    """Starts one process with the first plan and gives every plan a slot in it."""

    def __init__(self, log: Path, engine: str, name: str) -> None:
        self._log = log
        self._engine = engine
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None

    @contextmanager
    def __call__(self, index: int) -> Iterator[Slot]:
        """The slot of plan ``index``."""
        if self._process is None:
            self._start()
        try:
            assert self._link is not None
            assert self._process is not None
            yield Slot(self._link, index, self._process.pid)
        finally:
            self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.timing.shared_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "BITWORTH_WORKER": self._name},
            )
        self._link = Connection(ours.detach())

    def _end(self) -> None:
        if self._process is not None and self._link is not None:
            self._link.close()
            self._process.kill()
            self._process.wait()
            self._process = self._link = None


class Slot:
    """One plan of the shared process."""

    def __init__(self, link: Connection, index: int, pid: int) -> None:
        self._link = link
        self._index = index
        self.pid = pid

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: object,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a command to this plan's slot and wait for its answer."""
        try:
            send(self._link, {"op": op, "slot": self._index, **request}, arrays or {})
            if not self._link.poll(timeout_s):
                raise WorkerFailed("timed out", op)
            header, answer = receive(self._link)
        except (EOFError, OSError):
            raise WorkerFailed("crashed", op) from None
        if not header.pop("ok"):
            raise WorkerFailed("raised", header["error"])
        return header, answer

    def stop(self) -> None:
        """Nothing: the process that idles is the one that will be timed."""

    def resume(self) -> None:
        """Nothing."""

    def peak_resident_bytes(self) -> int | None:
        """Not known for one plan of many."""
        return None


def serve(link: Connection) -> None:
    """Answer commands, each for its slot, until the controller closes the connection."""
    slots: dict[int, Session] = {}
    while True:
        try:
            request, arrays = receive(link)
        except (EOFError, OSError):
            return
        slot = slots.setdefault(request.pop("slot"), Session())
        try:
            header, answer = slot.handle(request, arrays)
            header = {"ok": True, **header}
        except (EngineError, RuntimeError) as error:
            header, answer = {"ok": False, "error": one_line(error)}, {}
        send(link, header, answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
