"""The tables of results: verdicts with losses and sizes, bounds and checks, by cell."""

from __future__ import annotations

from collections.abc import Sequence

from bitworth.record.address import loss_unit
from bitworth.record.cells import NONE, Cell, Column, Path, Table, at, columns, key, line
from bitworth.record.names import AS_GIVEN, BASELINE
from bitworth.record.schema import Record, VariantFacts, VariantSummary

# A reason longer than this goes below the table.
_SHORT = 90


def decision_lines(record: Record) -> tuple[tuple[Cell, Cell], ...]:
    """Name and decision of each cell, with addresses."""
    return tuple(
        (cell_title(record, i), at(record, "derived", "cells", i, "decision", "sentence"))
        for i in range(len(record.derived.cells))
    )


def cell_title(record: Record, i: int) -> Cell:
    """Name of cell ``i``, as ``derive.cell_names`` writes it."""
    path = ("facts", "cells", i)
    name = line(
        at(record, *path, "engine"), " ", at(record, *path, "version"),
        ", ", at(record, *path, "threads"), " threads",
    )  # fmt: skip
    cell = record.facts.cells[i]
    if cell.mode == "throughput":
        streams = " stream" if cell.streams == 1 else " streams"
        name = line(name, ", throughput of ", at(record, *path, "streams"), streams)
    if cell.quantile is not None:
        name = line(name, ", tail at quantile ", at(record, *path, "quantile"))
    if cell.batch is not None:
        name = line(name, ", batch ", at(record, *path, "batch"))
    alike = [
        (c.engine, c.version, c.threads, c.mode, c.streams, c.quantile, c.batch)
        for c in record.facts.cells
    ]
    if alike.count(alike[i]) > 1:
        name = line(name, ", options ", at(record, *path, "options_sha256"))
    return name


def metric_names(record: Record) -> tuple[str, ...]:
    """Task metrics of the study: the policy's in its order, then the others by name."""
    found = {name for cell in record.derived.cells for v in cell.variants for name in v.scores}
    limited = [name for name, _ in record.facts.policy.max_loss if name in found]
    return (*limited, *sorted(found.difference(limited)))


def verdict_table(record: Record, i: int) -> Table:
    """Every variant of cell ``i``, the baseline first: verdict, speed, quality and size."""
    derived = record.derived.cells[i]
    metrics = metric_names(record)
    rival = any(v.against_best is not None for v in derived.variants)
    return Table(
        title=cell_title(record, i),
        columns=_verdict_columns(record, metrics, rival),
        rows=tuple(
            _verdict_row(record, i, j, metrics, rival) for j in range(len(derived.variants))
        ),
        notes=_verdict_notes(record, i),
    )


def bound_table(record: Record, i: int) -> Table:
    """The most that each group of cell ``i`` could give, from the baseline's own profile."""
    derived = record.derived.cells[i]
    path = ("derived", "cells", i)
    rows = tuple(
        (
            at(record, *path, "bounds", k, "group"),
            at(record, *path, "bounds", k, "share_of_profile"),
            at(record, *path, "bounds", k, "ceiling_speedup"),
            at(record, *path, "bounds", k, "evidence"),
        )
        for k in range(len(derived.bounds))
    )
    notes = []
    if derived.profile_coverage is not None:
        names = [v.name for v in record.facts.cells[i].variants]
        j = names.index(BASELINE)
        notes = [
            line(
                "From the baseline's own profile of ",
                at(record, "facts", "cells", i, "variants", j, "profile", "layers"),
                " layers, of whose time ",
                at(record, *path, "profile_coverage"),
                " is mapped to sites. The ceiling is the whole's speed-up if the group took no "
                "time at all and everything else stayed as it is.",
            )
        ]
    titles = ("group", ">share of profiled time", ">speed-up at most", "evidence")
    return Table(cell_title(record, i), columns(*titles), rows, tuple(notes))


def uncovered_table(record: Record, i: int) -> Table:
    """What no recipe of cell ``i`` covers, and how much of the time it takes."""
    path = ("derived", "cells", i, "uncovered")
    rows = tuple(
        tuple(
            at(record, *path, k, field)
            for field in ("node", "what", "share_of_profile", "evidence")
        )
        for k in range(len(record.derived.cells[i].uncovered))
    )
    titles = ("node", "left out", ">share of profiled time", "evidence")
    title = line("What no recipe covers: ", cell_title(record, i))
    return Table(title, columns(*titles), rows)


def _verdict_columns(record: Record, metrics: Sequence[str], rival: bool) -> tuple[Column, ...]:
    def column(title: str | Cell, block: str, numeric: bool = True) -> Column:
        return Column(line(title), numeric, block)

    found = [
        column("variant", "", numeric=False),
        column("verdict", "time", numeric=False),
        column("speed-up (interval)", "time"),
        column("half-width", "time"),
        column("sessions", "sessions"),
        column("detects from", "sessions"),
        column("more sessions to a verdict", "sessions"),
    ]
    if rival:
        found.append(column("against the best free win", "rival"))
    for metric in metrics:
        title = metric_title(record, metric)
        unit = loss_unit(record, metric)
        unit = f", {unit} (interval)" if unit else " (interval)"
        found += [column(title, metric), column(line("loss", unit), metric)]
    found += [
        column("n", "error"),
        column("relative L2", "error"),
        column("plan", "size"),
        column("peak memory", "size"),
        column("load", "size"),
        column("evidence", "size", numeric=False),
    ]
    return tuple(found)


def metric_title(record: Record, metric: str) -> Cell:
    """The metric's name, at the address of the first score that has it."""
    for i, cell in enumerate(record.derived.cells):
        for j, summary in enumerate(cell.variants):
            if metric in summary.scores:
                return key(record, "derived", "cells", i, "variants", j, "scores", metric)
    return line(metric)


def _verdict_row(
    record: Record, i: int, j: int, metrics: Sequence[str], rival: bool
) -> tuple[Cell, ...]:
    summary = record.derived.cells[i].variants[j]
    path = ("derived", "cells", i, "variants", j)
    cells = [
        at(record, *path, "variant"),
        *_time_cells(record, i, j),
        *_session_cells(record, i, j),
    ]
    if rival:
        # A void comparison has no number against any other variant either.
        void = summary.comparison is not None and summary.comparison.verdict == "void"
        known = summary.against_best is not None and not void
        cells.append(speedup(record, (*path, "against_best")) if known else NONE)
    for metric in metrics:
        cells += _metric_cells(record, i, j, metric)
    number, fact = fact_of(record, i, summary.variant)
    facts = ("facts", "cells", i, "variants", number)
    plan = NONE
    if fact.plan is not None:
        plan = at(record, *facts, "plan", "bytes")
        if summary.plan_bytes_ratio is not None and summary.variant != BASELINE:
            plan = line(plan, " (", at(record, *path, "plan_bytes_ratio"), ")")
    cells += [
        at(record, *facts, "quality", "n") if fact.quality is not None else NONE,
        _known(record, summary.rel_l2, *path, "rel_l2"),
        plan,
        _known(record, summary.peak_bytes, *path, "peak_bytes"),
        _known(record, summary.load_ns, *path, "load_ns"),
        at(record, *path, "evidence"),
    ]
    return tuple(cells)


def fact_of(record: Record, i: int, variant: str) -> tuple[int, VariantFacts]:
    """Index and facts of a variant of cell ``i``."""
    variants = record.facts.cells[i].variants
    return next((k, v) for k, v in enumerate(variants) if v.name == variant)


def _time_cells(record: Record, i: int, j: int) -> list[Cell]:
    """Verdict, speed-up and half-width; a void comparison shows no number."""
    summary = record.derived.cells[i].variants[j]
    path = ("derived", "cells", i, "variants", j)
    number, fact = fact_of(record, i, summary.variant)
    if fact.state != "measured":
        word = "failed" if fact.state == "failed" else "not run"
        reason = at(record, "facts", "cells", i, "variants", number, "reason")
        short = line(f"{word}: ", reason) if len(reason.text) <= _SHORT else line("see below")
        return [line(word), short, NONE]
    if summary.variant == BASELINE:
        return [line("baseline"), NONE, NONE]
    comparison = summary.comparison
    if comparison is None:
        return [line("not timed"), NONE, NONE]
    verdict = at(record, *path, "comparison", "verdict")
    if comparison.verdict == "void" or comparison.half_width_ratio is None:
        return [verdict, line("see below"), NONE]
    width = at(record, *path, "comparison", "half_width_ratio")
    return [verdict, speedup(record, (*path, "comparison")), width]


def _session_cells(record: Record, i: int, j: int) -> list[Cell]:
    """Sessions, the change that they would have found, and how many more a verdict needs."""
    comparison = record.derived.cells[i].variants[j].comparison
    if comparison is None:
        return [NONE, NONE, NONE]
    path = ("derived", "cells", i, "variants", j, "comparison")
    void = comparison.verdict == "void"
    effect = None if void else comparison.detectable_ratio
    more = _known(record, comparison.more_sessions, *path, "more_sessions")
    if comparison.more_sessions is None and not void:
        more = line("over ", at(record, "derived", "timing", "max_sessions"), " in all")
    return [
        at(record, *path, "sessions"),
        _known(record, effect, *path, "detectable_ratio"),
        more,
    ]


def speedup(record: Record, path: Path) -> Cell:
    """Speed-up with its interval: its lower end comes from the upper end of the time ratio."""
    value, low, high = (
        at(record, *path, name) for name in ("time_ratio", "time_ratio_high", "time_ratio_low")
    )
    if "unknown" in (value.text, low.text, high.text):
        return NONE
    return line(value, "× (", low, " to ", high, ")")


def _metric_cells(record: Record, i: int, j: int, metric: str) -> list[Cell]:
    summary = record.derived.cells[i].variants[j]
    path = ("derived", "cells", i, "variants", j)
    score = at(record, *path, "scores", metric) if metric in summary.scores else NONE
    for k, loss in enumerate(summary.losses):
        if loss.metric == metric:
            value, low, high = (
                at(record, *path, "losses", k, name) for name in ("loss", "low", "high")
            )
            return [score, line(value, " (", low, " to ", high, ")")]
    return [score, NONE]


def _known(record: Record, value: float | None, *path: str | int) -> Cell:
    return NONE if value is None else at(record, *path)


def _verdict_notes(record: Record, i: int) -> tuple[Cell, ...]:
    notes = []
    for j, summary in enumerate(record.derived.cells[i].variants):
        path = ("derived", "cells", i, "variants", j)
        name = at(record, *path, "variant")
        number, fact = fact_of(record, i, summary.variant)
        reason = at(record, "facts", "cells", i, "variants", number, "reason")
        if fact.state == "emulated":
            text = " is emulated: its quality was computed without the engine, so it has no time"
            why = line(": ", reason, ".") if len(reason.text) > _SHORT else line(".")
            notes.append(line(name, text, why))
        elif fact.state != "measured" and len(reason.text) > _SHORT:
            notes.append(line(name, f": {fact.state}: ", reason))
        elif fact.state == "measured" and fact.reason:
            notes.append(line(name, ": ", reason, "."))
        if _needs_reason(summary):
            verdict = at(record, *path, "comparison", "verdict")
            why = at(record, *path, "comparison", "reason")
            notes.append(line(name, ": ", verdict, ": ", why))
        if summary.comparison is not None and summary.comparison.widened_ratio:
            by = at(record, *path, "comparison", "widened_ratio")
            text = " on each side, as it warms up otherwise than the baseline."
            notes.append(line(name, ": its interval is widened by ", by, text))
        if summary.variant == AS_GIVEN:
            notes.append(
                line(
                    name,
                    " is the model and the options before the changes that every other row has "
                    "and that change no result, such as denormal weights set to zero.",
                )
            )
    rivals = [j for j, v in enumerate(record.derived.cells[i].variants) if v.against_best]
    if rivals:
        best = at(record, "derived", "cells", i, "variants", rivals[0], "against_best", "baseline")
        notes.append(line("The best free win that passes is ", best, "."))
    return tuple(notes)


def _needs_reason(summary: VariantSummary) -> bool:
    comparison = summary.comparison
    return comparison is not None and comparison.verdict in ("void", "not distinguishable")
