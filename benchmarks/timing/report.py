"""The whole report: figures as canonical JSON, and the tables that are rendered from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.timing import render_real, render_synthetic
from benchmarks.timing.machines import SyntheticReport
from benchmarks.timing.modes import ModeResult, mode_tables
from benchmarks.timing.overhead import LIMIT, Overhead, overhead_table
from benchmarks.timing.real import RealReport
from bitworth.atomic import write_atomic
from bitworth.record.schema import EnvironmentFacts
from bitworth.verdict import TimingRules

BEGIN = "<!-- timing-benchmark:begin -->\n"
END = "<!-- timing-benchmark:end -->"


@dataclass(frozen=True)
class TimingReport:
    """Everything that ``python -m benchmarks.timing`` found on one machine."""

    environment: EnvironmentFacts
    rules: TimingRules
    real: RealReport
    synthetic: SyntheticReport
    overhead: tuple[Overhead, ...]
    modes: tuple[ModeResult, ...]


_ADAPTER = TypeAdapter(TimingReport)


def write_report(report: TimingReport, path: Path) -> None:
    """Write the figures as JSON with sorted keys, one number a line."""
    tree: Any = _ADAPTER.dump_python(report, mode="json")
    write_atomic(path, (json.dumps(tree, sort_keys=True, indent=1) + "\n").encode())


def read_report(path: Path) -> TimingReport:
    """Read a report; raises pydantic's ValidationError for another file."""
    return _ADAPTER.validate_json(path.read_bytes())


def limits(report: TimingReport) -> Sequence[tuple[str, bool]]:
    """What the benchmark has to show, and whether it does; too few trials show nothing."""
    real, synthetic = report.real, report.synthetic
    tallies = [spread.tally for spread in real.identical.values()]
    trials, false = sum(t.trials for t in tallies), sum(t.found for t in tallies)
    found = [
        (
            f"identical plans: {false} of {trials} real trials are false, at most 10 of 200",
            trials >= 200 and false <= 0.05 * trials,
        )
    ]
    for ratio in ("1.05", "1.1"):
        held = real.truth.get(ratio)
        told = "no trial" if held is None else f"held by {held.covered} of {held.trials} intervals"
        kept = held is not None and held.trials >= 100 and held.covered >= 0.92 * held.trials
        found.append((f"true ratio {ratio}: {told}, at least 92 of 100", kept))
    found += [
        (
            f"identical plans, {row.noise}: {row.false_verdicts} of {row.trials} false, "
            "at most 60 of 1000",
            row.trials >= 1000 and row.passed,
        )
        for row in synthetic.identical
    ]
    found += [
        (
            f"true ratio {row.time_ratio:g}, {row.noise}: held by {row.covered} of {row.trials}, "
            "at least 92%",
            row.trials >= 100 and row.passed,
        )
        for row in synthetic.truth
    ]
    found += [
        (
            f"power, {row.comparisons} comparisons, {row.sessions} sessions: {row.detected} of "
            f"{row.trials} at the predicted effect, prediction off by {100 * row.error:.0f}%",
            row.trials >= 400 and row.passed,
        )
        for row in synthetic.power
    ]
    found += [
        (
            f"{row.name}: {row.found.false_verdicts} of {row.found.trials} studies false, at most "
            f"5%, intervals of {row.found.covered} hold the truth, at least 92%",
            row.found.false_verdicts <= 0.05 * row.found.trials
            and row.found.covered >= 0.92 * row.found.trials,
        )
        for row in synthetic.stopping
    ]
    found += [
        (
            f"an empty runner costs {100 * row.sample.block_share:.3f}% of a block, at most "
            f"{100 * LIMIT:g}%",
            row.sample.block_share < LIMIT,
        )
        for row in report.overhead
    ]
    trials, false = (
        sum(m.tally.trials for m in report.modes),
        sum(m.tally.found for m in report.modes),
    )
    text = f"modes: {false} of {trials} trials are false, at most 5%"
    found.append((text, trials > 0 and false <= 0.05 * trials))
    return found


def render_report(report: TimingReport) -> str:
    """The tables as Markdown."""
    real, synthetic = report.real, report.synthetic
    parts = [
        ("Identical plans, measured", render_real.identical_table(real.identical)),
        ("Injected work, measured", render_real.truth_table(real.truth)),
        ("Identical plans, synthetic", render_synthetic.identical_table(synthetic.identical)),
        (
            "Injected ratios, synthetic: intervals that hold the truth",
            render_synthetic.truth_table(synthetic.truth),
        ),
        ("Power, synthetic", render_synthetic.power_table(synthetic.power)),
        ("Rules of stopping, synthetic", render_synthetic.stopping_table(synthetic.stopping)),
        ("Carry-over that stays", render_synthetic.carry_over_table(synthetic.carry_over)),
        ("Block length", render_real.block_table(real.blocks)),
        ("Lead-in", render_real.settling_table(real.settling)),
        ("What an interval costs", render_real.price_table(real.prices)),
        ("Sessions foretold", render_real.foretold_table(real.foretold)),
        ("A process for each plan, or one for all", render_real.arrangement_table(real)),
        ("What the harness costs", overhead_table(report.overhead)),
        ("Throughput and tail: identical plans", mode_tables(report.modes)),
    ]
    return "\n\n".join(f"### {title}\n\n{text}" if title else text for title, text in parts) + "\n"


def insert(document: str, tables: str) -> str:
    """``document`` with ``tables`` between its marks; raises ValueError without them."""
    before, mark, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError("the document has no place for the benchmark's tables")
    return f"{before}{BEGIN}{tables}{END}{after}"
