"""``python -m benchmarks.timing``: prove the timing verdict on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from benchmarks.timing.bank import Bank
from benchmarks.timing.collect import Design, gather
from benchmarks.timing.designs import TRIAL_SESSIONS, all_designs
from benchmarks.timing.identity import check_identity
from benchmarks.timing.machines import Sizes, synthetic_report
from benchmarks.timing.models import ENGINES, prepare
from benchmarks.timing.modes import LABELS as MODE_LABELS
from benchmarks.timing.modes import all_modes, mode_results
from benchmarks.timing.modes import fill as fill_modes
from benchmarks.timing.overhead import overhead
from benchmarks.timing.real import real_report
from benchmarks.timing.report import (
    TimingReport,
    insert,
    limits,
    read_report,
    render_report,
    write_report,
)
from bitworth.atomic import write_atomic
from bitworth.engines.cpu import usable_cores
from bitworth.errors import UserError
from bitworth.measurement.device_lock import device_lock
from bitworth.measurement.workers import WorkerFailed
from bitworth.study.environment import environment_facts, machine_name
from bitworth.verdict import TimingRules

SEED = 17


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def fill(designs: Sequence[Design], banks: Path, plans: Path, until: float) -> bool:
    """Gather sessions until every bank is full or the time is over; says whether all are full.

    The banks take turns, a trial's sessions at a time, so that the hours of those with many
    sessions are the same.
    """
    while True:
        open_ = 0
        for design in designs:
            have = len(Bank(banks / f"{design.bank}.jsonl.gz").sessions)
            if have >= design.sessions:
                continue
            open_ += 1
            if monotonic() >= until:
                return False
            _say(_left(designs, banks))
            wanted = min(design.sessions, have - have % TRIAL_SESSIONS + TRIAL_SESSIONS)
            target, plan = prepare(design.model, design.engine, plans, usable_cores())
            gather(replace(design, sessions=wanted), target, plan, banks, until, SEED, _say)
        if not open_:
            return True


def _left(designs: Sequence[Design], banks: Path) -> str:
    """Sessions and minutes that are left, by what each bank's sessions took so far."""
    done = {design.bank: Bank(banks / f"{design.bank}.jsonl.gz").sessions for design in designs}
    taken = [session.wall_ns for sessions in done.values() for session in sessions]
    usual = sum(taken) / len(taken) if taken else 1e10
    left_ns = 0.0
    for design in designs:
        here = [session.wall_ns for session in done[design.bank]]
        each = sum(here) / len(here) if here else usual
        left_ns += max(0, design.sessions - len(here)) * each
    wanted = sum(design.sessions for design in designs)
    return f"{len(taken)} of {wanted} sessions, about {left_ns / 6e10:.0f} min left"


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather, judge, write and show; 1 where a limit is not kept, 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=60.0,
        help="gather sessions for so long; 0 only judges what the banks hold (default 60)",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=Path("benchmarks/results") / machine_name(),
        help="folder of the banks and of the report (default: that of this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--plans", type=Path, default=Path("build/bench-timing"), help="folder of the built plans"
    )
    parser.add_argument(
        "--docs", type=Path,
        help="insert the tables into this document, between its marks",
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=int, default=1000,
        help="synthetic trials on identical plans; the others in proportion (default 1000)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    banks = given.results / "bank"
    try:
        check_identity(banks, given.plans)
        with device_lock("cpu"):
            until = monotonic() + 60 * given.minutes
            full = fill(all_designs(), banks, given.plans, until) and fill_modes(
                all_modes(), banks, given.plans, MODE_LABELS, TRIAL_SESSIONS, until, _say
            )
            if not full:
                _say("not every bank is full: run it again to go on")
            _say("overhead")
            harness = tuple(
                overhead(*prepare("matmul", engine, given.plans, usable_cores()))
                for engine in ENGINES
            )
        share = given.trials / 1000
        sizes = Sizes(*(max(10, round(share * n)) for n in vars(Sizes()).values()))
        report = TimingReport(
            environment=environment_facts(),
            rules=TimingRules(),
            real=real_report(banks, TimingRules()),
            synthetic=synthetic_report(sizes, SEED, _say),
            overhead=harness,
            modes=mode_results(all_modes(), banks, TimingRules()),
        )
    except (UserError, WorkerFailed) as error:
        _say(f"benchmarks.timing: {error}")
        return 2
    except KeyboardInterrupt:
        _say("benchmarks.timing: interrupted; finished sessions are kept, run it again to go on")
        return 130
    path = given.results / "timing.json"
    write_report(report, path)
    # As whoever reads the file renders it.
    tables = render_report(read_report(path))
    if given.docs is not None:
        write_atomic(given.docs, insert(given.docs.read_text(), tables).encode())
    sys.stdout.write(tables)
    missed = [text for text, kept in limits(report) if not kept]
    for text in missed:
        _say(f"not kept: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
