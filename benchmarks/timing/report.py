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
    """What the benchmark has to show, and whether it does."""
    real, synthetic = report.real, report.synthetic
    tallies = [spread.tally for spread in real.identical.values()]
    trials, false = sum(t.trials for t in tallies), sum(t.found for t in tallies)
    found = [
        (f"identical plans: {false} of {trials} real trials are false, at most 5%",
         false <= 0.05 * trials),
    ]  # fmt: skip
    found += [
        (f"true ratio {ratio}: held by {t.covered} of {t.trials} intervals, at least 92%",
         t.covered >= 0.92 * t.trials)
        for ratio, t in real.truth.items()
    ]  # fmt: skip
    found += [
        (f"identical plans, {s.noise}: {s.false_verdicts} of {s.trials} false, at most 6%",
         s.passed)
        for s in synthetic.identical
    ]  # fmt: skip
    found += [
        (f"true ratio {t.time_ratio:g}, {t.noise}: held by {t.covered} of {t.trials}", t.passed)
        for t in synthetic.truth
    ]
    found += [
        (f"power, {p.comparisons} comparisons, {p.sessions} sessions: {p.detected} of {p.trials} "
         f"at the predicted effect, prediction off by {100 * p.error:.0f}%", p.passed)
        for p in synthetic.power
    ]  # fmt: skip
    found += [
        (f"an empty runner costs {100 * o.sample.block_share:.3f}% of a block, at most "
         f"{100 * LIMIT:g}%", o.sample.block_share < LIMIT)
        for o in report.overhead
    ]  # fmt: skip
    trials, false = sum(m.trials for m in report.modes), sum(m.false for m in report.modes)
    found.append((f"modes: {false} of {trials} trials are false, at most 5%",
                  false <= 0.05 * trials))  # fmt: skip
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
        ("", render_synthetic.stopping_line(synthetic.stopping)),
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
