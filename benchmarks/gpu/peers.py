"""``python -m benchmarks.gpu.peers STUDY.toml OUT.json [VARIANT]``: a module, as peers run it.

In one job, by the session loop and the rules of a study: torch.compile on the module in bf16,
region by region and as one graph; Bitworth's baseline and one of its variants; torchao's dynamic
Float8 with one scale a tensor and one a row. Each with the seconds that its first process took to
load and compile.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.peer_worker import NAME
from bitworth.engines.base import EngineOptions, LoweredModel
from bitworth.engines.torch import ENGINE as TORCH
from bitworth.measurement.timing import TimedPlan, TimingTarget, block_shape, run_session
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.recipe.eligibility import excluded
from bitworth.recipe.rules import preference, resolve
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.record.timing_verdicts import judge_job
from bitworth.study.config import read_study_file
from bitworth.study.data_stage import dataset
from bitworth.study.sections import StudyConfig, VariantConfig
from bitworth.study.torch_inputs import module_inputs
from bitworth.study.torch_process import ModuleProcess
from bitworth.study.variants import group_sites, recipe_of
from bitworth.subject.torch_factory import factory_of
from bitworth.verdict import TimingRules, session_schedule

MODULE = "benchmarks.gpu.peer_worker"
SEED = 11
SESSIONS = 6


def plans(config: StudyConfig, folder: Path, variant: str | None, out: Path) -> list[TimedPlan]:
    """One JSON file for each way; Bitworth's plans are lowered here."""
    assert config.subject.torch is not None
    factory = factory_of(config.subject.torch, folder)
    options = dict(config.cell[0].options)
    ways: dict[str, dict[str, Any]] = {
        "torch.compile, region by region": {"way": "compile", "regions": "blocks"},
        "bitworth, baseline": ours(config, folder, None, out / "baseline.bin"),
    }
    chosen = next((v for v in config.variant if v.name == variant), None)
    if chosen is not None:
        ways[f"bitworth, {variant}"] = ours(config, folder, chosen, out / "variant.bin")
    ways["torch.compile, one graph"] = {"way": "compile", "regions": "whole"}
    for way in ("torchao per-tensor", "torchao per-row"):
        ways[f"{way}, region by region"] = {"way": way, "regions": "blocks"}
    found = []
    for index, (label, tree) in enumerate(ways.items()):
        path = out / f"{index}.json"
        whole = {**tree, "factory": factory.name, "folder": factory.folder, "options": options}
        path.write_text(json.dumps(whole))
        found.append(TimedPlan(label, path, "bf16"))
    return found


def ours(
    config: StudyConfig, folder: Path, variant: VariantConfig | None, plan: Path
) -> dict[str, Any]:
    """Bitworth's own plan of the baseline or a variant."""
    assert config.subject.torch is not None
    process = ModuleProcess(factory_of(config.subject.torch, folder), plan.with_suffix(".log"))
    specs = module_inputs(config.data, folder)
    try:
        scan = process.scan(next(iter(dataset(config.data, folder, specs, "holdout", 1))).inputs)
        pairs, statistics = [], {}
        if variant is not None:
            groups = group_sites(config.group, variant.groups, scan.sites, {})
            preferred = preference("torch", ())
            entries = recipe_of(variant).quantize
            pairs = [(s, resolve(e, preferred, s)) for e in entries for s in groups[e.group]]
            left_out = excluded("torch", pairs)
            pairs = [pair for pair in pairs if pair[0].id not in left_out]
            data = dataset(config.data, folder, specs, "calibration", 1)
            values = {s.activation: s.node for s, _ in pairs}
            found = process.observe((x.inputs for x in data), values, lambda _: None)
            statistics = dict(found.statistics)
        options = dict(config.cell[0].options)
        lowered = plan.with_suffix(".safetensors")
        fused = options.get("fuse") == "on"
        process.lower(lowered, config.subject.base, pairs, statistics, scan, fused=fused)
    finally:
        process.close()
    TORCH.build(LoweredModel(lowered, plan.stem), EngineOptions(1, extra=options)).save(plan)
    return {"way": "bitworth", "plan": str(plan)}


def measure(study: Path, variant: str | None, sessions: int) -> dict[str, Any]:
    """Time every way; the job, the verdicts, and the seconds to load and compile."""
    config, folder = read_study_file(study), study.parent
    specs = module_inputs(config.data, folder)
    inputs = next(iter(dataset(config.data, folder, specs, "holdout", 1))).inputs
    hot = config.cell[0].mode == "hot"
    options, gpu = EngineOptions(1, mode="hot" if hot else "host"), 0 if hot else None
    with TemporaryDirectory() as name:
        out = Path(name)
        ways = plans(config, folder, variant, out)
        log = out / "peers.log"
        target = TimingTarget(NAME, options, inputs, log, timeout_s=1200, gpu=gpu)
        loads = {plan.label: first_load(target, plan) for plan in ways}
        compile_s = {label: load and load[0] for label, load in loads.items()}
        timed = [p for p in ways if loads[p.label] is not None]
        both = [timed[0], TimedPlan("baseline again", timed[0].path, "bf16"), *timed[1:]]
        call_ns = next(load[1] for load in loads.values() if load is not None)
        shape = block_shape(call_ns, gpu=gpu is not None)
        found = [session(target, both, shape, index) for index in range(sessions)]
    job = TimingJob(
        labels=tuple(p.label for p in both), seed=SEED, lead_in=shape.lead_in,
        iterations=shape.iterations, call_ns=shape.call_ns, minimum_rounds=10,
        sessions=tuple(found), stopped="",
    )  # fmt: skip
    return {
        "study": study.name,
        "compile_s": compile_s,
        "job": job.model_dump(mode="json"),
        "verdict": asdict(judge_job(job, TimingRules(), len(both) - 2, {})),
    }


def first_load(target: TimingTarget, plan: TimedPlan) -> tuple[float, float] | None:
    """Seconds until a process that knows nothing yet has a result, and ns of a call.

    None: it failed.
    """
    with Worker("compile/0", target.log, NAME, MODULE) as worker:
        try:
            worker.ask("ping", timeout_s=300)
            start = time.monotonic()
            worker.ask(
                "load", timeout_s=1200, engine=NAME, plan=str(plan.path), precision="bf16",
                options={**vars(target.options), "extra": {}},
            )  # fmt: skip
            worker.ask("bind", target.inputs, timeout_s=1200)
            seconds = round(time.monotonic() - start, 1)
            block, _ = worker.ask("block", timeout_s=300, lead_in=5, iterations=9)
            return seconds, median(block["samples"])
        except WorkerFailed as failure:
            sys.stderr.write(f"{plan.label}: {failure}\n")
            return None


def session(target: TimingTarget, ways: list[TimedPlan], shape: Any, index: int) -> SessionFacts:
    """One session of all ways."""

    def start(plan: int) -> Worker:
        return Worker(f"{index}/{plan}", target.log, NAME, MODULE)

    schedule = session_schedule(len(ways), seed=SEED, session=index)
    found = asdict(run_session(target, ways, schedule, shape, index, start_worker=start))
    found.update(found.pop("interference"))
    found["samples_ns"] = found.pop("samples")
    return SessionFacts(**found, wall_ns=0)


def main(study: Path, out: Path, variant: str | None = None, sessions: int = SESSIONS) -> int:
    """Measure, write and show."""
    tree = measure(study, variant, sessions)
    out.write_text(json.dumps(tree, sort_keys=True) + "\n")
    for label, seconds in tree["compile_s"].items():
        sys.stdout.write(f"{label}: {seconds} s to load and compile\n")
    for found in tree["verdict"]["comparisons"]:
        low, high = found["time_ratio_low"], found["time_ratio_high"]
        told = f"{found['time_ratio']} ({low} to {high})"
        sys.stdout.write(f"{found['variant']}: {found['verdict']} {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), next(iter(sys.argv[3:]), None)))
