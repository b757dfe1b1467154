"""How the bound and the expectation of each variant compare with what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bitworth.record.schema import Record
from bitworth.record.store import read_record
from bitworth.record.variant_outlook import beyond

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
DOCUMENT = ROOT / "docs" / "screen.md"
BEGIN = "<!-- bound: rendered by benchmarks.bound -->"
END = "<!-- bound: end -->"


@dataclass(frozen=True)
class Row:
    """One variant of one cell of one record.

    Attributes:
        model, engine, machine: where.
        variant: its name.
        ceiling: speed-up at most, derived.
        expected: speed-up expected, estimated; None where none was.
        low, measured, high: measured speed-up with its interval.
        beyond: whether the whole interval lies above the ceiling.
    """

    model: str
    engine: str
    machine: str
    variant: str
    ceiling: float
    expected: float | None
    low: float
    measured: float
    high: float
    beyond: bool


def records(folder: Path = STUDIES) -> Iterator[tuple[Path, Record]]:
    """Every committed record, whole ones alone."""
    for path in sorted(folder.glob("*/*/*.json")):
        if not path.name.endswith(".partial.json"):
            yield path, read_record(path)


def rows(found: Iterable[tuple[Path, Record]]) -> list[Row]:
    """A row for each variant that has both a bound and a measured time."""
    made = []
    for path, record in found:
        for cell in record.derived.cells:
            times = {v.variant: v.comparison for v in cell.variants}
            for entry in cell.outlooks:
                timed = times.get(entry.variant)
                if timed is None or timed.verdict == "void" or timed.time_ratio is None:
                    continue
                assert timed.time_ratio_low is not None
                assert timed.time_ratio_high is not None
                made.append(
                    Row(
                        model=record.facts.subject.name,
                        engine=cell.engine,
                        machine=path.parent.name,
                        variant=entry.variant,
                        ceiling=entry.ceiling_speedup,
                        expected=entry.expected_speedup,
                        low=1 / timed.time_ratio_high,
                        measured=1 / timed.time_ratio,
                        high=1 / timed.time_ratio_low,
                        beyond=beyond(entry, timed),
                    )
                )
    return made


def apart(some: Sequence[Row]) -> float | None:
    """Median distance of the expected speed-up from the measured one, over the measured."""
    found = [abs(r.expected - r.measured) / r.measured for r in some if r.expected is not None]
    return median(found) if found else None


def render(some: Sequence[Row]) -> str:
    """The tables, by engine and row by row."""
    engines = list(dict.fromkeys(r.engine for r in some))
    lines = [
        "| engine | variants | measured beyond the bound | expected against measured, median |",
        "|---|--:|--:|--:|",
    ]
    for engine in engines:
        mine = [r for r in some if r.engine == engine]
        off = apart(mine)
        told = "–" if off is None else f"{off:.0%}"
        lines.append(f"| {engine} | {len(mine)} | {sum(r.beyond for r in mine)} | {told} |")
    lines += [
        "",
        "| model | engine | variant | at most | expected | measured (interval) |",
        "|---|---|---|--:|--:|--:|",
    ]
    lines += [
        f"| {r.model} | {r.engine} | {r.variant} | {r.ceiling:.2f}× | "
        f"{'–' if r.expected is None else f'{r.expected:.2f}×'} | "
        f"{r.measured:.2f}× ({r.low:.2f} to {r.high:.2f}) |"
        for r in some
    ]
    return "\n".join(lines) + "\n"


def insert(document: str, table: str) -> str:
    """The document with the rendered tables between its two markers.

    Raises:
        ValueError: the document has no place for them.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables: the document needs '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"
