"""Runs a job in a process of its own, and stops it when it holds too much memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.calibration.job import Call, Job, OurRun
from benchmarks.calibration.memory import resident_bytes

ROOT = Path(__file__).parents[2]
#: Seconds between two looks at a process's memory.
LOOK_S = 0.02
_JOB = TypeAdapter(Job)
_ANSWERS: dict[str, TypeAdapter[Any]] = {
    "ours": TypeAdapter(OurRun),
    "theirs": TypeAdapter(Call),
    "cached": TypeAdapter(tuple[Call, ...]),
}


class Stopped(Exception):
    """A process was stopped, or ended without an answer; the message says why.

    Attributes:
        held_bytes: the most that it was seen to hold.
    """

    def __init__(self, held_bytes: int, reason: str) -> None:
        super().__init__(reason)
        self.held_bytes = held_bytes


def run(job: Job, limit_bytes: int, limit_s: float) -> Any:
    """The job's answer: an ``OurRun``, a ``Call`` or several.

    Raises:
        Stopped: it held more than ``limit_bytes``, took longer than ``limit_s``, or failed.
    """
    with tempfile.TemporaryDirectory(dir=job.folder, prefix="job-") as folder:
        asked, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        asked.write_bytes(_JOB.dump_json(job))
        module = "benchmarks.calibration.processes"
        command = [sys.executable, "-m", module, str(asked), str(answer)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(job.threads)}
        with (Path(folder) / "stderr").open("wb+") as told:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=told)
            held, reason = _watch(process, limit_bytes, limit_s)
            told.seek(0)
            lines = told.read().decode(errors="replace").strip().splitlines()
        if not reason and process.returncode:
            reason = lines[-1][:200] if lines else f"exit status {process.returncode}"
        if reason:
            raise Stopped(held, reason)
        return _ANSWERS[job.side].validate_json(answer.read_bytes())


def _watch(process: subprocess.Popen[bytes], limit_bytes: int, limit_s: float) -> tuple[int, str]:
    """Wait for the end; what it held at most, and why it was stopped."""
    end, held = time.monotonic() + limit_s, 0
    while process.poll() is None:
        try:
            held = max(held, resident_bytes(process.pid))
        except OSError:
            continue  # it has just ended
        reason = ""
        if held > limit_bytes:
            reason = f"stopped at {held / 1e9:.1f} GB"
        elif time.monotonic() > end:
            reason = f"stopped after {limit_s:.0f} s"
        if reason:
            process.kill()
            process.wait()
            return held, reason
        time.sleep(LOOK_S)
    return held, ""


def answer_to(job: Job) -> Any:
    """Do the job in this process. Only its own side is imported: that is the baseline."""
    if job.side == "ours":
        from benchmarks.calibration import ours

        return ours.run(job)
    from benchmarks.calibration import theirs
    from benchmarks.calibration.pairs import chosen

    if job.side == "cached":
        return theirs.calls(job)
    (pair,) = chosen(job.pairs)
    return theirs.call(job, pair)


if __name__ == "__main__":
    asked_path, answer_path = map(Path, sys.argv[1:])
    wanted = _JOB.validate_json(asked_path.read_bytes())
    answer_path.write_bytes(_ANSWERS[wanted.side].dump_json(answer_to(wanted)))
