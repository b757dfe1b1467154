"""What the timing of a cell's plans took: every sample, with its schedule."""

from __future__ import annotations

from pydantic import Field

from bitworth.record.part import Part


class SessionFacts(Part):
    """One timing session; indices count the job's labels."""

    session: int
    start_order: tuple[int, ...]
    order: tuple[tuple[int, ...], ...]
    samples_ns: tuple[tuple[tuple[int, ...], ...], ...]
    failures: dict[int, str]
    load_ns: dict[int, int]
    peak_bytes: dict[int, int | None] = Field(description="of the whole worker process")
    engine_bytes: dict[int, int | None] = Field(description="of that, what loading and runs added")
    wall_ns: int
    steal_ratio: float | None
    others_ratio: float | None
    clocks: dict[str, tuple[tuple[float | None, ...], ...]] = Field(
        default={}, description="what was observed in each block, [round][position], by quantity"
    )
    not_observable: dict[str, str] = Field(
        default={}, description="quantities that this machine does not show, and why"
    )


class TimingJob(Part):
    """Variants that were timed together: label 0 is the baseline, label 1 the same plan again."""

    labels: tuple[str, ...]
    seed: int
    lead_in: int
    iterations: int
    inner: int = Field(default=1, description="inferences that one sample took together")
    items: tuple[int, ...] = Field(
        default=(), description="samples of the data in one call, by label; empty: one in each"
    )
    call_ns: int
    minimum_rounds: int
    sessions: tuple[SessionFacts, ...]
    stopped: str = Field(description="why no further session ran")
