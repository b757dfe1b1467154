"""The worker process: one engine, one plan, commands from the controller.

Run as ``python -m bitworth.measurement.worker FD PARENT_PID [ENGINE]``; ENGINE is imported at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import (
    Arrays,
    Engine,
    EngineError,
    EngineOptions,
    LoweredModel,
    Runner,
    one_line,
)
from bitworth.engines.plan_file import plan_sha256
from bitworth.engines.registry import engine_named
from bitworth.errors import UserError
from bitworth.measurement.wire import receive, send

Reply = tuple[dict[str, Any], dict[str, NDArray[Any]]]
#: Answers one command, given with its arrays.
Handle = Callable[[dict[str, Any], dict[str, NDArray[Any]]], Reply]
_PR_SET_PDEATHSIG = 1


class InvalidRun(RuntimeError):
    """Calls ran, but not as their times claim."""


class Session:
    """What a worker holds between commands."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._runner: Runner | None = None
        self._bound: dict[str, str] | None = None
        self._streams = 1

    def handle(self, request: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Reply:
        """Answer one command.

        Raises:
            EngineError: the engine refused.
            InvalidRun: runs changed their inputs, or the clock went backwards.
        """
        match request.pop("op"):
            case "ping":
                return {}, {}
            case "probe":
                return self._probe(request["engine"]), {}
            case "decide":
                return self._decide(**request), {}
            case "build":
                return self._build(**request), {}
            case "load":
                return self._load(**request), {}
            case "bind":
                self._ready.bind(arrays)
                self._bound = _digests(self._ready.inputs())
                return {}, {}
            case "check":
                self._check()
                return {}, {}
            case "run":
                if arrays:
                    self._ready.bind(arrays)
                    self._bound = None
                self._ready.run()
                return {}, self._ready.outputs()
            case "block":
                return self._block(**request), {}
            case "profile":
                return self._profile(**request), {}
            case unknown:
                raise EngineError(f"unknown command {unknown}")

    @property
    def _ready(self) -> Runner:
        if self._runner is None:
            raise EngineError("no plan is loaded")
        return self._runner

    def _find(self, name: str) -> Engine:
        if self._engine is None:
            try:
                self._engine = engine_named(name)
                self._engine.probe()
            except ImportError as error:
                raise EngineError(f"{name} is not installed: {one_line(error)}") from error
        return self._engine

    def _probe(self, name: str) -> dict[str, Any]:
        info = self._find(name).probe()
        formats = {k: {"state": v.state, "reason": v.reason} for k, v in info.formats.items()}
        return {
            "name": info.name,
            "version": info.version,
            "device": info.device,
            "formats": formats,
            "details": dict(info.details),
        }

    def _decide(self, engine: str, model: str, options: dict[str, Any]) -> dict[str, Any]:
        lowered = LoweredModel(Path(model), "baseline")
        found = self._find(engine).decided(lowered, EngineOptions(**options))
        return {"threads": found.threads, "streams": found.streams}

    def _build(
        self,
        engine: str,
        model: str,
        label: str,
        precision: str,
        options: dict[str, Any],
        out: str,
    ) -> dict[str, Any]:
        lowered = LoweredModel(Path(model), label, precision)
        found = self._find(engine)
        start = perf_counter_ns()
        plan = found.build(lowered, EngineOptions(**options))
        elapsed = perf_counter_ns() - start
        plan.save(Path(out))
        return {
            "size_bytes": plan.size_bytes,
            "sha256": plan_sha256(Path(out)),
            "layers": list(plan.layers()),
            "build_ns": elapsed,
            "note": plan.note,
        }

    def _load(
        self, engine: str, plan: str, precision: str, options: dict[str, Any]
    ) -> dict[str, Any]:
        found = self._find(engine)
        before = _resident_bytes()
        self._streams = int(options.get("streams", 1))
        start = perf_counter_ns()
        self._runner = found.open(Path(plan), precision, EngineOptions(**options)).load()
        return {
            "load_ns": perf_counter_ns() - start,
            "resident_before_bytes": before,
            "precision": self._runner.precision(),
        }

    def _block(self, lead_in: int, iterations: int, inner: int = 1) -> dict[str, Any]:
        thrown_away = self._ready.time_block(lead_in) if lead_in else []
        samples = self._ready.time_block(iterations, inner)
        # The samples go back as they are; what is thrown away nobody else would see.
        if thrown_away and min(thrown_away) < 0:
            raise InvalidRun("the clock went backwards in the lead-in of a block")
        return {"samples": samples}

    def _profile(self, calls: int, plain: bool = True) -> dict[str, Any]:
        """Layer times, and with ``plain`` beside them the time of calls that nothing profiles."""
        before = self._plain_ns(calls) if plain else []
        layers = self._ready.profile(calls)
        after = self._plain_ns(calls) if plain else []
        told = median([*before, *after]) if plain else None
        return {"layers": [vars(layer) for layer in layers], "plain_ns": told}

    def _plain_ns(self, calls: int) -> list[int]:
        """Wall time of each of ``calls`` runs, after one that does not count."""
        if self._streams == 1:
            return self._ready.time_block(calls + 1)[1:]
        # A block's samples would be of as many runs as there are streams.
        samples = []
        for _ in range(calls + 1):
            start = perf_counter_ns()
            self._ready.run()
            samples.append(perf_counter_ns() - start)
        return samples[1:]

    def _check(self) -> None:
        """Compare the inputs with what was bound: a run must not have written to them."""
        if self._bound is None:
            raise EngineError("nothing is bound")
        now = _digests(self._ready.inputs())
        changed = [name for name, digest in self._bound.items() if now.get(name) != digest]
        if changed:
            raise InvalidRun(
                f"its runs overwrite the input {', '.join(changed)}: an output aliases it, and "
                "every call runs on other values"
            )


def serve(link: Connection, handle: Handle | None = None) -> None:
    """Answer commands, by default those of ``Session``, until the controller closes ``link``."""
    handle = handle or Session().handle
    while True:
        try:
            request, arrays = receive(link)
        except (EOFError, OSError):
            return
        try:
            header, answer = handle(request, arrays)
            header = {"ok": True, **header}
        except UserError as error:
            header, answer = {"ok": False, "kind": "user", "error": str(error)}, {}
        except EngineError as error:
            header, answer = {"ok": False, "kind": "refused", "error": str(error)}, {}
        except InvalidRun as error:
            header, answer = {"ok": False, "kind": "invalid", "error": str(error)}, {}
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            kind = "disk full" if full else "raised"
            header, answer = {"ok": False, "kind": kind, "error": one_line(error)}, {}
        except Exception as error:  # whatever an engine raises is that variant's result
            text = f"{type(error).__name__}: {one_line(error)}"
            header, answer = {"ok": False, "kind": "raised", "error": text}, {}
        try:
            send(link, header, {k: np.asarray(v) for k, v in answer.items()})
        except OSError:
            return


def preload(engine: str) -> None:
    """Import an engine's library before the first command; nothing for an empty name."""
    if engine:
        engine_named(engine).probe()


def _digests(inputs: Arrays) -> dict[str, str]:
    """A hash of each array's type, shape and bytes."""
    found = {}
    for name, value in inputs.items():
        plain = value.astype(np.str_) if value.dtype == object else value
        digest = hashlib.sha256(f"{plain.dtype} {plain.shape} ".encode())
        digest.update(np.ascontiguousarray(plain).tobytes())
        found[name] = digest.hexdigest()
    return found


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the controller dies, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the controller died before the request was in place
        sys.exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    with contextlib.suppress(Exception):  # whatever is wrong is told when the engine is asked for
        preload(sys.argv[3])
    serve(Connection(int(sys.argv[1])))
