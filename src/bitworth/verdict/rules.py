"""The constants of a timing verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class TimingRules:
    """The constants of a timing verdict; fractions, so 0.005 is half a percent.

    Raises ValueError for a constant outside its range.

    Attributes:
        eps: a change of time up to this is never called faster or slower: two copies of one plan
            differ by as much through memory placement alone.
        delta: an interval that lies wholly within this of no change is called equivalent.
        alpha: error rate of a cell, shared by its comparisons. Under 0.05, as stopping on
            precision costs coverage: with 0.035 the interval keeps 94.5% at the worst spread.
        precision: sessions are added until every half-width is at most this, unless
            ``until_settled``.
        min_sessions: fewer sessions give no verdict.
        max_sessions: a study stops here whatever its precision.
        warmup_limit: largest difference between variant and baseline of the log of first over
            second half of their blocks.
        drop_limit: largest share of dropped rounds.
        autocorrelation_limit: lag-1 autocorrelation of the session estimates that gives a warning.
        power: probability with which the detectable effect is detected.
        gate_alpha: error rate of the A/A' and of the warm-up gate, each. A gate may void at most
            2% of sound cells; at ``alpha`` the A/A' gate would void up to 3.5%.
        until_settled: sessions are added until every verdict is settled instead of until every
            half-width is small, with looks and levels as ``looks`` gives them.
    """

    eps: float = 0.005
    delta: float = 0.01
    alpha: float = 0.035
    precision: float = 0.02
    min_sessions: int = 6
    max_sessions: int = 60
    warmup_limit: float = 0.005
    drop_limit: float = 0.10
    autocorrelation_limit: float = 0.6
    power: float = 0.80
    gate_alpha: float = 0.01
    until_settled: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be a finite number of at least 0, got {value}")
        for name in ("alpha", "power", "gate_alpha"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.delta <= 0 or self.precision <= 0:
            raise ValueError("delta and precision must be over 0")
        # One session has no spread, so no interval.
        if self.min_sessions < 2 or self.max_sessions < self.min_sessions:
            raise ValueError(
                "min_sessions must be at least 2 and at most max_sessions, got "
                f"{self.min_sessions} and {self.max_sessions}"
            )
