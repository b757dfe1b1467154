"""The figures as JSON, what they have to show, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.calibration.job import NOTHING, Call, Cost, OurRun, total
from benchmarks.calibration.pairs import PAIRS
from bitworth.atomic import write_atomic
from bitworth.record.schema import EnvironmentFacts

#: How many times faster the sixteen variants have to be.
FASTER = 5.0
#: What may be resident beyond the interpreter and the model.
BEYOND_BYTES = 300_000_000
CALIBRATORS = ("max", "percentile", "entropy", "mse")


@dataclass(frozen=True)
class Round:
    """Both sides in turns.

    Attributes:
        ours: runs of Bitworth, each for all variants.
        theirs: a call of quantize_static for each pair, in a process of its own.
        cached: the calls again, but those with FP8, with a cache of ranges; empty if left out.
    """

    ours: tuple[OurRun, ...]
    theirs: tuple[Call, ...]
    cached: tuple[Call, ...]


@dataclass(frozen=True)
class CalibrationReport:
    """Everything that ``python -m benchmarks.calibration`` found on one machine.

    Attributes:
        environment: the machine and the versions.
        model: file name.
        model_sha256: of the file.
        model_bytes: its size.
        threads: of every session, on both sides.
        load: the machine's load average before the first round and after the last one.
        prepared: what preparing the model took for quantize_static, by opset, once.
        rounds: the comparison.
        many: runs of Bitworth with many samples, for their memory.
    """

    environment: EnvironmentFacts
    model: str
    model_sha256: str
    model_bytes: int
    threads: int
    load: tuple[float, float]
    prepared: Mapping[int, Cost]
    rounds: tuple[Round, ...]
    many: tuple[OurRun, ...]

    @property
    def ours(self) -> tuple[OurRun, ...]:
        """The timed runs of Bitworth."""
        return tuple(run for round_ in self.rounds for run in round_.ours)


_ADAPTER = TypeAdapter(CalibrationReport)


def write_report(report: CalibrationReport, path: Path) -> None:
    """Write the figures as JSON with sorted keys."""
    tree: Any = _ADAPTER.dump_python(report, mode="json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(tree, sort_keys=True, indent=1) + "\n").encode())


def read_report(path: Path) -> CalibrationReport:
    """Read a report; raises pydantic's ValidationError for another file."""
    return _ADAPTER.validate_json(path.read_bytes())


@dataclass(frozen=True)
class Comparison:
    """Totals of both sides, one for each run or round.

    Attributes:
        what: is compared.
        ours, theirs: totals.
    """

    what: str
    ours: tuple[Cost, ...]
    theirs: tuple[Cost, ...]

    def ratio(self, cpu: bool = False) -> float:
        """How many times longer quantize_static takes, by the means."""
        return _mean(self.theirs, cpu) / _mean(self.ours, cpu)

    @property
    def extremes(self) -> tuple[float, float]:
        """The same, by the clock, with each side's worst and best total against the other's."""
        ours, theirs = ([c.wall_s for c in side] for side in (self.ours, self.theirs))
        return min(theirs) / max(ours), max(theirs) / min(ours)


def comparisons(report: CalibrationReport) -> tuple[Comparison, ...]:
    """What is compared: all variants first. A call that did not end counts nothing."""
    equal = [pair.name for pair in PAIRS if pair.likeness == "equal"]
    number = len(PAIRS)
    cheapest = [min(_ended(round_.theirs), key=lambda c: c.wall_s) for round_ in report.rounds]
    found = [
        Comparison(
            f"all {number} variants",
            tuple(run.cost for run in report.ours),
            tuple(_theirs(report, round_.theirs) for round_ in report.rounds),
        ),
        Comparison(
            f"the {len(equal)} with an equal call",
            tuple(_ours(run, equal) for run in report.ours),
            tuple(_theirs(report, round_.theirs, equal) for round_ in report.rounds),
        ),
        Comparison(
            f"all {number}, every call as cheap as the cheapest",
            tuple(run.cost for run in report.ours),
            tuple(Cost(number * call.wall_s, number * call.cpu_s) for call in cheapest),
        ),
    ]
    if all(round_.cached for round_ in report.rounds):
        names = [call.pair for call in report.rounds[0].cached]
        found.append(
            Comparison(
                f"{len(names)} without its FP8, calls with a cache of ranges",
                tuple(_ours(run, names) for run in report.ours),
                tuple(_theirs(report, round_.cached) for round_ in report.rounds),
            )
        )
    one = PAIRS[0].name
    found.append(
        Comparison(
            "one variant alone",
            tuple(_ours(run, [one]) for run in report.ours),
            tuple(_theirs(report, round_.theirs, [one]) for round_ in report.rounds),
        )
    )
    return tuple(found)


def limits(report: CalibrationReport) -> Sequence[tuple[str, bool]]:
    """What the benchmark has to show, and whether it does."""
    whole = comparisons(report)[0]
    low = whole.extremes[0]
    found = [
        (
            f"{len(PAIRS)} variants are {low:.2g} times faster at least, {FASTER:g} wanted",
            low >= FASTER,
        )
    ]
    allowed = report.model_bytes + BEYOND_BYTES
    for runs in (report.ours, report.many):
        seen = {name for run in runs for name in run.beyond_bytes}
        peak = max((max(run.beyond_bytes.values()) for run in runs), default=0)
        counts = ", ".join(f"{count:,}" for count in sorted({run.count for run in runs}))
        found.append(
            (
                f"{counts or 'no'} samples: {peak / 1e6:.0f} MB beyond the interpreter, at most "
                f"{allowed / 1e6:.0f}",
                0 < peak <= allowed and seen >= {"one pass", *CALIBRATORS},
            )
        )
    for pair in PAIRS:
        if pair.likeness != "equal":
            continue
        ours = {run.variants[pair.name].weights for run in report.ours}
        theirs = {c.weights for r in report.rounds for c in r.theirs if c.pair == pair.name}
        found.append(
            (f"{pair.name}: quantized weights {ours}, {theirs}", ours == theirs and 0 not in ours)
        )
    return found


def _ours(run: OurRun, names: Collection[str]) -> Cost:
    return total(run.shared) + total({name: run.variants[name].cost for name in names})


def _theirs(
    report: CalibrationReport, calls: Sequence[Call], names: Collection[str] | None = None
) -> Cost:
    """The calls, and what preparing the model for them took."""
    wanted = [call for call in calls if names is None or call.pair in names]
    opsets = {pair.name: pair.call.opset for pair in PAIRS}
    prepared = [report.prepared[opset] for opset in {opsets[call.pair] for call in wanted}]
    return sum([*prepared, *_ended(wanted)], NOTHING)


def _ended(calls: Sequence[Call]) -> list[Cost]:
    return [call.cost for call in calls if call.cost is not None]


def _mean(costs: Sequence[Cost], cpu: bool) -> float:
    return sum(c.cpu_s if cpu else c.wall_s for c in costs) / len(costs)
