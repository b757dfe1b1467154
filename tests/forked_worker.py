"""Worker processes that are forked from one that has imported everything.

A measured engine gets a fresh interpreter: what is forked has its memory laid out like all its
siblings. The mock's times are scripted, and nobody reads those of PyTorch in a test; a fresh
interpreter costs both more than their study.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from bitworth.measurement.workers import start_process

WORKER, SUBJECT = "bitworth.measurement.worker", "bitworth.study.torch_worker"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "bitworth.measurement.worker", "bitworth.engines.mock", "onnx", "onnxruntime", "torch",
        SUBJECT,
    ]
)  # fmt: skip


class ForkedProcess:
    """What ``Worker`` uses of a ``subprocess.Popen``."""

    def __init__(self, link: int, name: str, log: Path, module: str) -> None:
        environment = {**os.environ, "BITWORTH_WORKER": name}
        connection = Connection(os.dup(link))
        self._process = _CONTEXT.Process(
            target=_serve, args=(connection, str(log), environment, module), daemon=True
        )
        self._process.start()
        connection.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(self.pid, number)


def start(link: int, name: str, output: IO[bytes], preload: str, module: str) -> object:
    """A forked process in place of ``workers.start_process``; for a measured engine a real one."""
    if module not in (WORKER, SUBJECT) or preload not in ("", "mock", "torch"):
        return start_process(link, name, output, preload, module)
    return ForkedProcess(link, name, Path(output.name), module)


def _serve(link: Connection, log: str, environment: dict[str, str], module: str) -> None:
    from bitworth.measurement.worker import serve
    from bitworth.study.torch_worker import Subject

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout = sys.stderr = Path(log).open("a", encoding="utf-8")  # noqa: SIM115
    serve(link, Subject().handle if module == SUBJECT else None)
