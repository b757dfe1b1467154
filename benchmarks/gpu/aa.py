"""``python -m benchmarks.gpu.aa STUDY.toml BANK.jsonl.gz MINUTES``: identical plans on this device.

Each session has the plan of a study's baseline ten times, and a trial is six sessions of two of
them: five disjoint pairs. The bank goes on where it stopped; without minutes it is only shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from benchmarks.gpu.peers import ours
from benchmarks.timing.bank import Bank, as_session
from benchmarks.timing.trials import identical_trials, tally
from bitworth.engines.base import EngineOptions
from bitworth.measurement.timing import (
    BlockShape,
    TimedPlan,
    TimingTarget,
    block_shape,
    measure_call_ns,
    run_session,
)
from bitworth.study.config import read_study_file
from bitworth.study.data_stage import dataset
from bitworth.study.torch_inputs import module_inputs
from bitworth.verdict import TimingRules, session_schedule

LABELS = 10
SEED = 3


def gather(study: Path, bank: Bank, minutes: float) -> None:
    """Add sessions until the time is up; one that would end later is not begun."""
    config, folder = read_study_file(study), study.parent
    specs = module_inputs(config.data, folder)
    inputs = next(iter(dataset(config.data, folder, specs, "holdout", 1))).inputs
    hot = config.cell[0].mode == "hot"
    told = EngineOptions(
        1, extra=dict(config.cell[0].options), mode="hot" if hot else "host"
    )  # fmt: skip
    end, longest = monotonic() + 60 * minutes, 0.0
    with TemporaryDirectory() as name:
        plan = Path(name) / "plan.bin"
        ours(config, folder, None, plan)
        log = Path(name) / "aa.log"
        target = TimingTarget("torch", told, inputs, log, gpu=0 if hot else None)
        plans = [TimedPlan(str(i), plan, config.subject.base) for i in range(LABELS)]
        shape = block_shape(measure_call_ns(target, plans[0]), gpu=hot)
        while monotonic() + longest < end:
            start = monotonic()
            _add(target, plans, shape, bank)
            longest = max(longest, monotonic() - start)


def _add(target: TimingTarget, plans: list[TimedPlan], shape: BlockShape, bank: Bank) -> None:
    index, start = len(bank.sessions), monotonic()
    schedule = session_schedule(LABELS, seed=SEED, session=index)
    found = run_session(target, plans, schedule, shape, index)
    if found.failures:
        raise SystemExit(f"session {index}: {found.failures}")
    bank.add(as_session(found, shape, round((monotonic() - start) * 1e9), 0))


def show(bank: Bank) -> str:
    """How many trials of identical plans got which answer."""
    trials = list(identical_trials(bank.sessions))
    if not trials:
        return f"{len(bank.sessions)} sessions, and no trial of six yet"
    found = tally(trials, 1.0, TimingRules())
    width = "–" if found.half_width is None else f"±{found.half_width:.2%}"
    return (
        f"{found.trials} trials of identical plans in {len(bank.sessions)} sessions: "
        f"{found.found} called faster or slower {found.verdicts}, median half-width {width}"
    )


def main(study: Path, path: Path, minutes: float) -> int:
    """Gather and show."""
    bank = Bank(path)
    if minutes > 0:
        gather(study, bank, minutes)
    sys.stdout.write(show(bank) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), float(next(iter(sys.argv[3:]), "0"))))
