"""What was tried to make the baseline fair: engine options, undone changes, a batch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bitworth.record.part import Part
from bitworth.verdict import Comparison

Outcome = Literal["applied", "in the baseline", "offered", "left out", "failed"]


class FreeWinTry(Part):
    """One change to the baseline, alone.

    Kinds: ``options`` of the engine, which can join the baseline; ``undone``: the baseline without
    something that it has; ``batch``: several samples in one call, which is offered alone.
    """

    name: str
    kind: Literal["options", "undone", "batch"]
    settings: dict[str, str] = Field(default={}, description="what it sets, by the engine's keys")
    items: int = Field(default=1, description="samples that one call takes")
    n: int = Field(description="samples on which the outputs were compared")
    result_change: float | None = Field(
        description="largest relative L2 change of an output; None: not finite, or not compared"
    )
    plan_sha256: str | None = Field(description="None: it was not built")
    failed: str = Field(default="", description="why it has no time")
    applied: bool = Field(default=False, description="whether it joined the baseline")


class FreeWinSearch(Part):
    """All that was tried in one cell, each against the fair baseline before any option joined."""

    given: dict[str, str] = Field(description="the options of that baseline")
    tries: tuple[FreeWinTry, ...]
    same_result: float = Field(
        default=1e-5,
        description="largest change that is the same result; under a 16-bit base its own error",
    )


class FreeWinVerdict(Part):
    """One change to the baseline: its comparison with it, and what became of it."""

    name: str
    comparison: Comparison | None = Field(description="of one sample; None: it was not timed")
    call_time_ratio: float | None = Field(
        description="time of a whole call over that of the baseline's; None: not timed, or void"
    )
    outcome: Outcome
    reason: str
