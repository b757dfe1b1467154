"""A resumable bank of timing sessions: one gzip member a session in one file a bank.

A bank is facts only: what was asked, and what was measured. Trials are cut out of it later.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitworth.atomic import write_atomic
from bitworth.errors import UserError
from bitworth.measurement.timing import BlockShape, SessionSamples
from bitworth.verdict import SessionBlocks, blocks_from_samples


@dataclass(frozen=True)
class BankSession:
    """One session of a bank.

    Attributes:
        order: plan indices at each position of each round.
        samples_ns: ``[round][position][sample]``.
        lead_in: discarded calls before each block.
        call_ns: time of a call from which the block was shaped.
        wall_ns: of the whole session, starting the workers included.
        start_ns: of that, until the first block.
        steal_ratio, others_ratio: shares of CPU time that went elsewhere.
        failures: what failed, by plan index.
        inner: calls of one sample.
    """

    order: tuple[tuple[int, ...], ...]
    samples_ns: tuple[tuple[tuple[int, ...], ...], ...]
    lead_in: int
    call_ns: int
    wall_ns: int
    start_ns: int
    steal_ratio: float | None
    others_ratio: float | None
    failures: dict[str, str]
    inner: int = 1

    def blocks(self, first: int = 0, count: int | None = None) -> SessionBlocks:
        """Block medians, of ``count`` samples from ``first`` on."""
        end = None if count is None else first + count
        return blocks_from_samples(
            self.order, [[block[first:end] for block in row] for row in self.samples_ns]
        )


def as_session(
    found: SessionSamples, shape: BlockShape, wall_ns: int, start_ns: int
) -> BankSession:
    """The bank's form of a session."""
    return BankSession(
        order=found.order,
        samples_ns=found.samples,
        lead_in=shape.lead_in,
        call_ns=shape.call_ns,
        wall_ns=wall_ns,
        start_ns=start_ns,
        steal_ratio=found.interference.steal_ratio,
        others_ratio=found.interference.others_ratio,
        failures={str(k): v for k, v in found.failures.items()},
        inner=shape.inner,
    )


class Bank:
    """The sessions of one file, in the order in which they ran."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = path.read_bytes() if path.exists() else b""
        self.sessions: list[BankSession] = [_restored(tree, path) for tree in self._trees()]

    def _trees(self) -> Sequence[dict[str, Any]]:
        try:
            lines = gzip.decompress(self._bytes).decode().splitlines() if self._bytes else []
            return [json.loads(line) for line in lines]
        except (OSError, EOFError, ValueError) as error:
            raise UserError(f"{self._path}: not a bank of sessions ({error}); remove it") from None

    def add(self, session: BankSession) -> None:
        """Append a session; the file is replaced whole, so that a kill loses nothing."""
        line = json.dumps(asdict(session), separators=(",", ":")) + "\n"
        self._bytes += gzip.compress(line.encode(), mtime=0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, self._bytes)
        self.sessions.append(session)


def _restored(tree: dict[str, Any], path: Path) -> BankSession:
    try:
        tree["order"] = tuple(tuple(row) for row in tree["order"])
        tree["samples_ns"] = tuple(tuple(tuple(b) for b in row) for row in tree["samples_ns"])
        return BankSession(**tree)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: a session lacks {error}; remove the file") from None
