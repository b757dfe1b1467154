"""Worker processes as the controller sees them: start, ask, stop while idle, continue, end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.measurement.wire import receive, send

_ADVICE = "free some space or choose another folder with --output"
FailureKind = Literal["refused", "raised", "invalid", "crashed", "timed out"]


class WorkerFailed(Exception):
    """A worker refused, raised, ran wrongly, crashed or hung: the result of its variant.

    Attributes:
        kind: what happened.
        detail: the engine's own words, or the signal that ended the process.
    """

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: FailureKind = kind
        self.detail = detail


class TimingWorker(Protocol):
    """What a timing session asks of whatever runs a plan."""

    @property
    def pid(self) -> int:
        """Id of the process that runs it."""

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: object,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a command and wait for its answer; raises ``WorkerFailed``."""

    def stop(self) -> None:
        """Keep it from using the device while another is timed."""

    def resume(self) -> None:
        """End ``stop``."""

    def peak_resident_bytes(self) -> int | None:
        """The process's peak resident memory so far, None where nobody can tell."""


def start_process(
    link: int, name: str, output: IO[bytes], preload: str, module: str
) -> subprocess.Popen[bytes]:
    """A fresh interpreter that runs ``module`` over the socket ``link``; see ``Worker``."""
    return subprocess.Popen(
        [
            sys.executable,
            "-P",  # a user's onnx.py in the current folder is not the library
            "-m",
            module,
            str(link),
            str(os.getpid()),
            preload,
        ],
        pass_fds=[link],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # A Ctrl-C at the terminal is the controller's to handle, not the workers'.
        start_new_session=True,
        env={**os.environ, "BITWORTH_WORKER": name},
    )


class Worker:
    """One worker process.

    Args:
        name: distinguishes processes of one plan (``session/slot``).
        log: file that takes what the engine prints; created.
        preload: engine to import at once, while other workers start; empty for none.
        module: what the process runs, with the arguments of ``bitworth.measurement.worker``.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        preload: str = "",
        module: str = "bitworth.measurement.worker",
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._process = start_process(theirs.fileno(), name, output, preload, module)
        self._link = Connection(ours.detach())
        self._stopped = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: object,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a command and wait for its answer.

        Raises:
            WorkerFailed: the command failed, the process died, or no answer came in time (the
                process is then killed).
            UserError: a mistake in the user's own code that it runs; the disk is full.
        """
        try:
            send(self._link, {"op": op, **request}, arrays or {})
            if not self._link.poll(timeout_s):
                self.close()
                raise WorkerFailed("timed out", f"{op}: no answer in {timeout_s:.0f} s")
            header, answer = receive(self._link)
        except (EOFError, OSError):
            raise WorkerFailed("crashed", f"{op}: {self._ending()}") from None
        if not header.pop("ok"):
            if header["kind"] == "user":
                raise UserError(header["error"])
            if header["kind"] == "disk full":  # the machine's fault, and no result of the variant
                raise UserError(f"{op}: a file cannot be written ({header['error']}); {_ADVICE}")
            raise WorkerFailed(header["kind"], header["error"])
        return header, answer

    def stop(self) -> None:
        """Suspend the idle process: a waiting thread pool spins and slows its neighbours."""
        self._signal(signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """Continue a suspended process."""
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False

    def peak_resident_bytes(self) -> int | None:
        """The process's peak resident memory so far, None where the system does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        except OSError:
            return None
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self._link.close()
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _ending(self) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "the worker closed its connection"
        if code >= 0:
            return f"the worker process exited with code {code}"
        try:
            return f"the worker process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the worker process died of signal {-code}"
