"""One cell of a study, step by step; what is done so far can be read at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bitworth.calibration.taps import RunError
from bitworth.engines.base import Arrays, EngineOptions
from bitworth.engines.cpu import usable_cores
from bitworth.measurement.device_lock import device_lock
from bitworth.measurement.tail import samples_needed
from bitworth.measurement.timing import TimedPlan
from bitworth.measurement.workers import WorkerFailed
from bitworth.recipe.consistency import engine_hint
from bitworth.recipe.rules import Preference, preference
from bitworth.record.device_profile import DeviceProfile
from bitworth.record.names import AS_GIVEN, BASELINE
from bitworth.record.profile_facts import site_times
from bitworth.record.schema import CellFacts, VariantFacts
from bitworth.record.store import canonical, sha256
from bitworth.record.timing_facts import TimingJob
from bitworth.record.variant_bounds import WorkFact
from bitworth.study.cell_engine import CellEngine
from bitworth.study.cell_stage import decided_options, probe_engine
from bitworth.study.context import StudyContext, slug
from bitworth.study.device_limits import device_limits
from bitworth.study.free_win_stage import FoundFreeWins, find_free_wins, told_options
from bitworth.study.preferences import told_preferences
from bitworth.study.sections import CellConfig
from bitworth.study.subject_stage import Subject
from bitworth.study.timed_input import batch_samples, timed_input
from bitworth.study.timing_stage import (
    JobPlan,
    baseline_call_ns,
    finished_job,
    run_job,
    split_jobs,
)
from bitworth.study.variant_run import run_plain, run_variant
from bitworth.study.variants import group_sites

#: What a time is in the modes of a GPU.
_GPU_MODES = {
    "hot": "a time is the GPU's own between two events around a call, calls back to back",
    "cold": "a time is the GPU's own between two events around a call, each on a flushed cache",
}


@dataclass
class CellRun:
    """The state of one cell; ``facts`` gives what is known at any moment."""

    study: StudyContext
    config: CellConfig
    name: str
    engine: CellEngine | None = None
    given: CellEngine | None = None
    variants: list[VariantFacts] = field(default_factory=list)
    limits: DeviceProfile | None = None
    work: dict[str, WorkFact] = field(default_factory=dict)
    jobs: list[TimingJob] = field(default_factory=list)
    free_wins: FoundFreeWins | None = None
    running: JobPlan | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)

    def prepare(self, budget_s: float | None = None) -> None:
        """Probe the engine, make the baseline fair, build and judge it and every variant.

        Args:
            budget_s: seconds for the cell's timing, of which the search for free wins takes a
                share; None: nothing is timed, and none is searched for.
        """
        info = probe_engine(self.study.workspace, self.config.engine)
        batch = batch_samples(self.study.data.inputs, self.config.batch)
        self.engine = CellEngine(
            self.config.engine,
            self.name,
            info,
            self._options(),
            self._preference(info),
            self.inputs,
            batch if len(batch) > 1 else (),
        )
        self.given = given = self.engine
        if budget_s is not None:
            found = find_free_wins(self.study, given, self.config, self.quantile, budget_s)
            self.engine = replace(given, options=found.options)
            self.free_wins = found
        fair = self.study.subject.fair_model(self.study.workspace)
        baseline = run_plain(self.study, self.engine, BASELINE, fair, judged=True)
        self.variants.append(baseline)
        if baseline.state != "measured":
            return
        win = self.study.subject.free_win
        if (win is not None and win.applied) or given.options != self.engine.options:
            original = self.study.subject.given_model(self.study.workspace)
            as_given = run_plain(self.study, given, AS_GIVEN, original, judged=False)
            told = told_options(given.options, self.config.mode)
            self.variants.append(as_given.model_copy(update={"options": told}))
        if baseline.profile is not None and baseline.profile.failed:
            self.failures.append(("profile of the baseline", baseline.profile.failed))
        times = self.site_times()
        for variant in self.study.config.variant:
            if variant.engines and self.config.engine not in variant.engines:
                self.failures.append((variant.name, "the study asks for it on another engine"))
            else:
                self.variants.append(run_variant(self.study, self.engine, variant, times))
        self._measure_limits(self.engine)

    def _measure_limits(self, engine: CellEngine) -> None:
        """What the device can do at the shapes of the sites that some variant quantizes."""
        quantized = {
            entry.site for v in self.variants if v.state == "measured" for entry in v.sites
        }
        baseline = self.variants[0].profile
        # With several streams a call has a part of the threads, and no profile of its own.
        if not quantized or baseline is None or not baseline.layers or engine.options.streams > 1:
            return
        subject = self.study.subject
        if not isinstance(subject, Subject):
            return  # products of a PyTorch module are not measured on their own yet
        try:
            self.limits, self.work = device_limits(
                self.study, engine.cell, engine.engine, engine.info, engine.options,
                engine.inputs, quantized, subject,
            )  # fmt: skip
        except (WorkerFailed, RunError) as failure:
            self.failures.append(("limits of the device", str(failure)))

    def _options(self) -> EngineOptions:
        """The cell's options; what throughput leaves to the engine is decided once for a study."""
        config = self.config
        options = EngineOptions(
            config.threads or usable_cores(),
            config.optimization,
            dict(config.options),
            mode=config.mode if config.mode in ("hot", "cold") else "host",
        )
        if config.mode != "throughput":
            return options
        left = replace(options, threads=config.threads, streams=config.streams)
        fair = self.study.subject.fair_model(self.study.workspace)
        return decided_options(self.study.workspace, self.name, config.engine, fair, left)

    @property
    def inputs(self) -> Arrays:
        """What every timed call runs on."""
        return timed_input(self.study.data.inputs, self.config.batch)

    @property
    def quantile(self) -> float | None:
        """What is compared in the tail; None where medians are."""
        return self.config.quantile if self.config.mode == "tail" else None

    def time(self, budget_s: float) -> None:
        """Time every variant that runs, together with the baseline."""
        timed = [v for v in self.variants if v.state == "measured"]
        if self.engine is None or not timed or timed[0].name != BASELINE:
            return
        study, workspace = self.study, self.study.workspace
        target = self.engine.target(workspace.path("logs", f"{self.engine.engine}.log"))
        plans = [self._timed_plan(v) for v in timed]
        # What an engine gives for free is what every other variant has to beat.
        free = [v.name for v in timed[1:] if self._is_free_win(v)]
        shared = [p for p in plans[1:] if p.label in free]
        others = [p for p in plans[1:] if p.label not in free]
        with device_lock(self.engine.device):
            try:
                call_ns = baseline_call_ns(workspace, self.name, target, plans[0])
            except WorkerFailed as failure:
                self.failures.append(("timing", f"the baseline does not run: {failure}"))
                return
            seed = study.config.timing.seed
            jobs = split_jobs(
                self.name, plans[0], shared, others, call_ns, seed,
                streams=self.engine.options.streams, quantile=self.quantile,
                gpu=target.gpu is not None, cold=target.options.mode == "cold",
            )  # fmt: skip
            total = sum(len(job.plans) - 2 for job in jobs)
            for job in jobs:
                self.running = job
                share = budget_s / len(jobs)
                # The cell's error rate is shared by all of its comparisons, as in the record.
                alpha = study.rules.alpha * max(1, len(job.plans) - 2) / max(1, total)
                rules = replace(study.rules, alpha=alpha)
                done = run_job(
                    workspace, target, job, rules, share, study.reporter,
                    min_speedup=study.policy.min_speedup, quantile=self.quantile,
                )  # fmt: skip
                self.jobs.append(done)
                self.running = None

    @property
    def spent_s(self) -> float:
        """Seconds that the cell's sessions took, those of earlier runs included."""
        return _seconds(self.jobs)

    @property
    def search_s(self) -> float:
        """Seconds that the sessions of its free wins took."""
        return _seconds(self.free_wins.jobs if self.free_wins else ())

    def facts(self) -> CellFacts | None:
        """The record's form of the cell as far as it went; None before its engine was probed."""
        if self.engine is None:
            return None
        info, options = self.engine.info, self.engine.options
        jobs = list(self.jobs)
        if self.running is not None:
            jobs.append(finished_job(self.study.workspace, self.running))
        preferred = self.engine.preferred
        told = told_options(options, self.config.mode)
        return CellFacts(
            engine=self.engine.engine,
            version=info["version"],
            device=info["device"],
            formats={k: (v["state"], v["reason"]) for k, v in info["formats"].items()},
            details=info["details"],
            shape={name: tuple(value.shape) for name, value in self.inputs.items()},
            mode=self.config.mode,
            streams=options.streams,
            batch=self.config.batch,
            quantile=self.quantile,
            threads=options.threads,
            options=told,
            options_sha256=sha256(canonical(told)),
            preferences=told_preferences(preferred),
            free_wins=tuple(v.name for v in self.variants if self._is_free_win(v)),
            notes=self._notes(),
            free_win_search=self.free_wins.search if self.free_wins else None,
            free_win_jobs=self.free_wins.jobs if self.free_wins else (),
            groups=self._groups(),
            variants=tuple(self.variants),
            jobs=tuple(jobs),
            limits=self.limits,
            work=self.work,
        )

    def _preference(self, info: dict[str, Any]) -> Preference:
        return preference(self.config.engine, info["details"].get("isa", "").split())

    def _groups(self) -> dict[str, tuple[str, ...]]:
        """The sites of every group of the study, as they resolve in this cell."""
        sites = self.study.subject.sites
        if not sites:
            return {}
        times = self.site_times()
        # Without a profile a group by share of time has no members that anyone could name.
        known = [g for g in self.study.config.group if times or g.top_share is None]
        names = ["all", *(g.name for g in known)]
        found = group_sites(known, names, sites, times, self.study.subject.attention)
        return {name: tuple(s.id for s in members) for name, members in found.items()}

    def _notes(self) -> tuple[str, ...]:
        win = self.study.subject.free_win
        base = self.study.subject.base
        hint = self.engine.info["formats"][base]["reason"] if self.engine else ""
        notes = [f"the baseline computes in {base}, {hint}"] if hint else []
        if win is not None:
            notes.append(win.text)
        if self.free_wins is not None and self.free_wins.search is not None:
            notes += [
                f"joined the baseline and every variant: {one.name}"
                for one in self.free_wins.search.tries
                if one.applied
            ]
        return (*notes, *self._mode_notes())

    def _mode_notes(self) -> list[str]:
        """What a time means in this cell, where it is not that of one call on one sample."""
        notes = []
        if self.config.mode in _GPU_MODES:
            notes.append(_GPU_MODES[self.config.mode])
        if self.engine is not None and (streams := self.engine.options.streams) > 1:
            notes.append(
                f"{streams} inferences are kept in flight, and a time is that in which {streams} "
                "of them ended"
            )
        if self.quantile is not None:
            notes.append(
                f"compared is the time that {self.quantile:.4g} of all calls keep within; each "
                f"session takes at least {samples_needed(self.quantile)} calls of every variant"
            )
        if self.config.batch is not None and self.config.batch > 1:
            notes.append(
                f"one call takes {self.config.batch} held-out samples together: the time of one "
                f"sample is that of a call divided by {self.config.batch}; its outputs are those "
                "of the samples alone, which is checked for every variant"
            )
        return notes

    def _timed_plan(self, variant: VariantFacts) -> TimedPlan:
        assert self.engine is not None
        assert variant.plan is not None
        base = self.study.subject.base
        precision = engine_hint(variant.recipe.base) if variant.recipe is not None else base
        path = self.engine.plan_path(self.study, variant.name)
        own = self.given if variant.name == AS_GIVEN else None
        options = (own or self.engine.with_options(variant.options)).options
        return TimedPlan(variant.name, path, precision, variant.plan.sha256, options)

    @staticmethod
    def _is_free_win(variant: VariantFacts) -> bool:
        return variant.source == "precision" and variant.name not in (BASELINE, AS_GIVEN)

    def site_times(self) -> dict[str, float]:
        """Time of each site in the baseline's own profile."""
        profiles = (v.profile for v in self.variants[:1])
        layers = [layer for p in profiles if p is not None for layer in p.layers]
        return site_times(layers)


def _seconds(jobs: Sequence[TimingJob]) -> float:
    return sum(s.wall_ns for job in jobs for s in job.sessions) / 1e9


def cell_names(cells: Sequence[CellConfig]) -> tuple[str, ...]:
    """A distinct name for each cell, for files."""
    names = [slug(f"{c.engine}-{_file_part(c)}") for c in cells]
    return tuple(
        name if names.count(name) == 1 else f"{name}-{names[:i].count(name)}"
        for i, name in enumerate(names)
    )


def _file_part(cell: CellConfig) -> str:
    """What tells a cell from others of its engine."""
    parts = [f"{cell.threads or usable_cores()}t"]
    if cell.mode == "throughput":
        # Of what the engine decides nothing is known yet.
        threads = f"{cell.threads}t" if cell.threads else "auto"
        parts = [threads, "throughput", f"{cell.streams}s" if cell.streams else "auto"]
    elif cell.mode == "tail":
        parts += ["tail", f"q{cell.quantile:g}"]
    if cell.batch is not None:
        parts.append(f"b{cell.batch}")
    return "-".join(parts)
