"""The mock engine's time: a script of what calls take and of how the machine disturbs them.

Noise has two homes. A ``ScriptedClock`` belongs to one runner in one process: the noise of single
samples, and a bias that this process keeps. A ``ScriptedMachine`` belongs to the runners that take
turns on it: noise of whole blocks, drift, the effect of a position in a round and what one block
leaves behind for the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Literal

import numpy as np

Fault = Literal[
    "build", "crash_build", "crash_run", "raise_run", "hang_run", "nan", "backwards", "alias"
]


@dataclass(frozen=True)
class ClockScript:
    """Scripted time of one call of each variant, and the noise of the machine.

    Raises ValueError for an autocorrelation outside -1 to 1.

    Attributes:
        base_ns: time of the baseline.
        ratios: time over the baseline's, by variant label; 1 where none is given.
        sigma: standard deviation of the log of a sample within its block.
        spike_share, spike_ratio: share of samples that take ``spike_ratio`` times as long.
        session_bias: standard deviation of a bias that one session gives to one variant.
        block_sigma: standard deviation of the log of what all samples of a block share.
        autocorrelation: of that noise from one block of the machine to its next (AR(1)).
        block_spike_share, block_spike_mean: share of blocks that take longer as a whole, by a log
            that is exponentially distributed with this mean.
        drift: growth of the time from the first to the last block of a session, 0.1 for 10%.
        position_effect: what the last position of a round takes over the first, 0.02 for 2%.
        carry_over: what a block takes more when another label's follows the baseline's.
        stream_ratio: with several streams, time of a call over that of one stream.
        faults: scripted faults by variant label.
        fault_after: runs of the clock that a run fault lets pass first.
        seed: seed of all of it.
    """

    base_ns: float = 1e6
    ratios: Mapping[str, float] = field(default_factory=dict)
    sigma: float = 0.01
    spike_share: float = 0.0
    spike_ratio: float = 3.0
    session_bias: float = 0.0
    block_sigma: float = 0.0
    autocorrelation: float = 0.0
    block_spike_share: float = 0.0
    block_spike_mean: float = 0.0
    drift: float = 0.0
    position_effect: float = 0.0
    carry_over: float = 0.0
    stream_ratio: float = 1.0
    faults: Mapping[str, Fault] = field(default_factory=dict)
    fault_after: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not -1 < self.autocorrelation < 1:
            raise ValueError(f"autocorrelation lies between -1 and 1, got {self.autocorrelation}")

    @classmethod
    def parse(cls, text: str) -> ClockScript:
        """A script from JSON; unknown keys are a ``TypeError``."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """The script as JSON."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)})


class ScriptedMachine:
    """What the runners of one session share, in one process.

    Args:
        script: the noise.
        session: distinguishes sessions of one script.
        slots: runners that take turns; slot 0 is the baseline. With one of them there is no
            position and nothing carries over.
        blocks: blocks of the whole session, over which it drifts; 0 where nobody knows: no drift.
    """

    def __init__(self, script: ClockScript, session: str, slots: int = 1, blocks: int = 0) -> None:
        self._script = script
        self._random = _generator(script, "machine", session)
        self._slots = slots
        self._blocks = blocks
        self._begun = 0
        self._round: set[int] = set()
        self._last = -1
        # The noise starts in its stationary state: a session begins at no particular moment.
        self._noise = script.block_sigma * self._random.standard_normal()
        self._fresh = script.block_sigma * math.sqrt(1 - script.autocorrelation**2)

    def begin_block(self, slot: int) -> float:
        """Begin the next block of the machine, by this slot; the log of what it takes longer.

        A round ends when a slot comes again, so that a runner that failed shifts no later round.
        """
        script = self._script
        if slot in self._round:
            self._round.clear()
        log = 0.0
        if self._slots > 1:
            log += math.log1p(script.position_effect * len(self._round) / (self._slots - 1))
        if self._blocks > 1:
            log += math.log1p(script.drift * self._begun / (self._blocks - 1))
        if self._last == 0 and slot != 0:
            log += math.log1p(script.carry_over)
        if script.block_sigma:
            fresh = self._fresh * self._random.standard_normal()
            self._noise = script.autocorrelation * self._noise + fresh
            log += self._noise
        if script.block_spike_share and self._random.random() < script.block_spike_share:
            log += self._random.exponential(script.block_spike_mean)
        self._round.add(slot)
        self._last = slot
        self._begun += 1
        return log


class ScriptedClock:
    """Draws the samples of one variant in one process.

    Args:
        script: times and noise.
        label: the variant.
        process: distinguishes processes of one plan.
        machine: the machine that it runs on; by default one that nobody else uses.
        slot: its place among the runners of the machine.
        streams: inferences in flight; over 1, a sample is the time in which so many complete.
    """

    def __init__(
        self,
        script: ClockScript,
        label: str,
        process: str,
        machine: ScriptedMachine | None = None,
        slot: int = 0,
        streams: int = 1,
    ) -> None:
        self._random = _generator(script, label, process)
        self._script = script
        self._machine = machine or ScriptedMachine(script, f"{label}/{process}")
        self._slot = slot
        self._center = math.log(script.base_ns * script.ratios.get(label, 1.0))
        self._center += script.session_bias * self._random.standard_normal()
        if streams > 1:
            self._center += math.log(streams * script.stream_ratio)
        self._block = 0.0

    def begin_block(self) -> None:
        """What follows is the next block of the machine."""
        self._block = self._machine.begin_block(self._slot)

    def draw(self, count: int) -> list[int]:
        """``count`` samples of the present block in ns."""
        script = self._script
        log = script.sigma * self._random.standard_normal(count) + (self._center + self._block)
        if script.spike_share:
            log += np.log(script.spike_ratio) * (self._random.random(count) < script.spike_share)
        times: list[int] = np.maximum(np.rint(np.exp(log)), 1).astype(np.int64).tolist()
        return times


def _generator(script: ClockScript, name: str, process: str) -> np.random.Generator:
    key = sha256(f"{script.seed}/{name}/{process}".encode()).digest()
    return np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
