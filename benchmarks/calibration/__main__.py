"""``python -m benchmarks.calibration``: what calibration costs, against quantize_static."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.calibration.job import Call, Cost, Job, OurRun
from benchmarks.calibration.pairs import PAIRS, Pair
from benchmarks.calibration.processes import Stopped, run
from benchmarks.calibration.render import insert, render_report
from benchmarks.calibration.report import (
    CALIBRATORS,
    CalibrationReport,
    Round,
    limits,
    read_report,
    write_report,
)
from benchmarks.calibration.samples import Sample, write_samples
from benchmarks.calibration.theirs import prepare
from bitworth.atomic import write_atomic
from bitworth.engines.cpu import usable_cores
from bitworth.errors import UserError
from bitworth.measurement.device_lock import device_lock
from bitworth.study.environment import environment_facts, machine_name

SEED = 0
#: Bitworth runs before every so many calls, and after the last one.
CALLS_BETWEEN = 8


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def recogniser() -> Path:
    """PP-OCRv6's recogniser, from rapidocr's wheel."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("rapidocr is not installed; pip install '.[example]'")
    return Path(spec.submodule_search_locations[0]) / "models" / "PP-OCRv6_rec_small.onnx"


def lines(count: int) -> Iterator[Sample]:
    """Rendered text lines."""
    from examples.ocr.inputs import calibration

    return (inputs for inputs, _ in calibration(count, SEED))


def one_round(
    job: Job, pairs: Sequence[Pair], cached: bool, limit_bytes: int, limit_s: float
) -> Round:
    """Bitworth and the calls in turns, each in a process of its own.

    Raises:
        Stopped: Bitworth's own process failed, or the one with cached ranges.
    """
    ours: list[OurRun] = []
    theirs: list[Call] = []
    whole = replace(job, side="ours", pairs=tuple(pair.name for pair in pairs))
    for start in range(0, len(pairs), CALLS_BETWEEN):
        ours.append(run(whole, limit_bytes, limit_s))
        _say(f"Bitworth, {len(pairs)} variants: {ours[-1].cost.wall_s:.1f} s")
        for pair in pairs[start : start + CALLS_BETWEEN]:
            theirs.append(
                _call(replace(job, side="theirs", pairs=(pair.name,)), limit_bytes, limit_s)
            )
            cost = theirs[-1].cost
            _say(f"  {pair.name}: {f'{cost.wall_s:.1f} s' if cost else theirs[-1].failed}")
    ours.append(run(whole, limit_bytes, limit_s))
    _say(f"Bitworth, {len(pairs)} variants: {ours[-1].cost.wall_s:.1f} s")
    again: tuple[Call, ...] = ()
    if cached:
        # Its FP8 takes its time over the weights: a cache of ranges saves next to nothing.
        names = tuple(pair.name for pair in pairs if pair.call.method != "Distribution")
        again = run(replace(job, side="cached", pairs=names), limit_bytes, limit_s)
        _say(f"  with a cache of ranges: {sum(c.cost.wall_s for c in again if c.cost):.1f} s")
    return Round(tuple(ours), tuple(theirs), again)


def _call(job: Job, limit_bytes: int, limit_s: float) -> Call:
    try:
        found: Call = run(job, limit_bytes, limit_s)
    except Stopped as stopped:
        return Call(job.pairs[0], None, stopped.held_bytes, failed=str(stopped))
    return found


def measure(given: argparse.Namespace, folder: Path) -> CalibrationReport:
    """Run everything.

    Raises:
        Stopped: Bitworth's own process failed.
    """
    model = given.model or recogniser()
    name, shape = write_samples(lines(max(given.samples, given.many)), folder / "samples.bin")
    prepared = {opset: folder / f"{opset}.onnx" for opset in {p.call.opset for p in PAIRS}}
    costs: dict[int, Cost] = {}
    for opset, path in sorted(prepared.items()):
        costs[opset] = prepare(model, opset, path)
    job = Job(
        "ours", model, folder / "samples.bin", name, shape, given.samples, (), usable_cores(),
        folder, prepared,
    )  # fmt: skip
    limit_bytes, limit_s = round(given.memory_gb * 1e9), 60 * given.minutes
    before = os.getloadavg()[0]
    rounds = tuple(
        one_round(job, PAIRS, not given.uncached, limit_bytes, limit_s) for _ in range(given.rounds)
    )
    after = os.getloadavg()[0]
    kinds = tuple(
        next(p.name for p in PAIRS if p.entry.calibrator.name == kind) for kind in CALIBRATORS
    )
    many = run(replace(job, count=given.many, pairs=kinds), limit_bytes, limit_s)
    _say(f"Bitworth, {given.many} samples: {many.cost.wall_s:.1f} s")
    return CalibrationReport(
        environment=environment_facts(),
        model=model.name,
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        model_bytes=model.stat().st_size,
        threads=job.threads,
        load=(round(before, 2), round(after, 2)),
        prepared=costs,
        rounds=rounds,
        many=(many,),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and show; 1 where a limit is not kept, 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=1, help="rounds of 16 calls (default 1)")
    add("--samples", type=int, default=96, help="calibration samples (default 96)")
    add("--many", type=int, default=1024, help="samples of the memory run (default 1024)")
    add("--uncached", action="store_true", help="leave out the calls with a cache of ranges")
    add("--memory-gb", type=float, default=10.0, help="stop a process that holds more (default 10)")
    add("--minutes", type=float, default=15.0, help="stop a process after so long (default 15)")
    add("--model", type=Path, help="another recogniser with the same input")
    add(
        "--results", type=Path, default=Path("benchmarks/results") / machine_name(),
        help="folder of the report (default: that of this machine)",
    )  # fmt: skip
    add("--docs", type=Path, help="insert the tables into this document, between its marks")
    given = parser.parse_args(arguments)
    try:
        with device_lock("cpu"), tempfile.TemporaryDirectory(prefix="bench-calibration-") as folder:
            report = measure(given, Path(folder))
    except (UserError, Stopped) as error:
        _say(f"benchmarks.calibration: {error}")
        return 2
    path = given.results / "calibration.json"
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
