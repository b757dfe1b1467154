"""``python -m benchmarks.timing.gpu OUT.json``: block clocks and a power cap on an NVIDIA GPU.

A large product in bf16 against the same in FP8, by the session loop and the rules of a study: one
of the two draws more power, so that a capped GPU runs it at another clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.timing.gpu_worker import ENGINE
from benchmarks.timing.render_real import table
from bitworth.engines.base import EngineOptions
from bitworth.measurement.timing import (
    BlockShape,
    TimedPlan,
    TimingTarget,
    block_shape,
    run_session,
)
from bitworth.measurement.workers import Worker
from bitworth.record.schema import CellFacts
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.record.timing_verdicts import cycle_ratios, judge_job
from bitworth.verdict import TimingRules, session_schedule

LABELS = ("bf16", "bf16 again", "fp8")
FORMATS = ("bf16", "bf16", "fp8_e4m3")
SESSIONS = 8
SEED = 5
#: NVML's clocks event reason of a GPU that keeps within its power.
SW_POWER_CAP = 0x04


def measure(sessions: int = SESSIONS) -> TimingJob:
    """Time both formats on GPU 0."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "gpu.log"
        target = TimingTarget(
            ENGINE.name, EngineOptions(threads=1), {"seed": np.array([SEED])}, log, gpu=0
        )
        plans = [
            TimedPlan(label, Path(folder) / label, format_)
            for label, format_ in zip(LABELS, FORMATS, strict=True)
        ]
        shape = block_shape(1_500_000, gpu=True)
        found = [_session(target, plans, shape, index) for index in range(sessions)]
    return TimingJob(
        labels=LABELS, seed=SEED, lead_in=shape.lead_in, iterations=shape.iterations,
        call_ns=shape.call_ns, minimum_rounds=10, sessions=tuple(found), stopped="",
    )  # fmt: skip


def _session(
    target: TimingTarget, plans: list[TimedPlan], shape: BlockShape, index: int
) -> SessionFacts:
    def start(plan: int) -> Worker:
        return Worker(f"{index}/{plan}", target.log, target.engine, "benchmarks.timing.gpu_worker")

    schedule = session_schedule(len(plans), seed=SEED, session=index)
    found = asdict(run_session(target, plans, schedule, shape, index, start_worker=start))
    found.update(found.pop("interference"))
    found["samples_ns"] = found.pop("samples")
    return SessionFacts(**found, wall_ns=0)


def judged(job: TimingJob) -> Mapping[str, Any]:
    """The verdict and the cycle ratio of the job, as a study derives them."""
    rules = TimingRules()
    verdict = judge_job(job, rules, 1, {})
    cell = CellFacts.model_construct(jobs=(job,), quantile=None)
    return {
        "verdict": asdict(verdict),
        "cycles": [asdict(ratio) for ratio in cycle_ratios(cell, rules)],
    }


def read(path: Path) -> TimingJob:
    """The job of a file that ``main`` wrote."""
    return TimingJob.model_validate(json.loads(path.read_bytes())["job"])


def clock_table(job: TimingJob) -> str:
    """What NVML showed in the blocks of each format, as Markdown."""
    titles = ("plan", ">SM clock, MHz", ">power, W", ">blocks under the power cap", ">blocks")
    rows = []
    for index, label in enumerate(job.labels):
        clock, power, bits = (_seen(job, index, n) for n in ("sm_mhz", "power_w", "throttle_bits"))
        capped = sum(int(b) & SW_POWER_CAP != 0 for b in bits)
        rows.append(
            [label, f"{median(clock):.0f}", f"{median(power):.0f}", str(capped), str(len(bits))]
        )
    return table(titles, rows)


def result_line(job: TimingJob) -> str:
    """Time and cycles of the FP8 product against the bf16 one, in a sentence."""
    found = judge_job(job, TimingRules(), 1, {}).comparisons[0]
    (cycles,) = cycle_ratios(CellFacts.model_construct(jobs=(job,), quantile=None), TimingRules())
    return (
        f"The FP8 product takes {found.time_ratio:.3f} of the time ({found.time_ratio_low:.3f} to "
        f"{found.time_ratio_high:.3f}) and {cycles.cycle_ratio:.3f} of the cycles "
        f"({cycles.cycle_ratio_low:.3f} to {cycles.cycle_ratio_high:.3f}), at "
        f"{cycles.clock_ratio:.3f} of the clock, over {cycles.n} sessions."
    )


def _seen(job: TimingJob, label: int, name: str) -> list[float]:
    return [
        value
        for session in job.sessions
        for order, row in zip(session.order, session.clocks[name], strict=True)
        for index, value in zip(order, row, strict=True)
        if index == label and value is not None
    ]


def main(out: Path) -> int:
    """Measure, judge, write and show."""
    job = measure()
    tree = {"job": job.model_dump(mode="json"), "derived": judged(job)}
    out.write_text(json.dumps(tree, sort_keys=True) + "\n")
    sys.stdout.write(json.dumps(tree["derived"], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
