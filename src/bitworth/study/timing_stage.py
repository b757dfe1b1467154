"""Timing jobs of one cell: sessions until they say enough, or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic

from bitworth.measurement.tail import tail_shape
from bitworth.measurement.timing import (
    LONG_CALL_NS,
    BlockShape,
    SessionSamples,
    TimedPlan,
    TimingTarget,
    block_shape,
    measure_call_ns,
    run_session,
)
from bitworth.record.store import canonical, sha256
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.record.timing_verdicts import job_blocks
from bitworth.study.progress import Reporter
from bitworth.study.workspace import Workspace
from bitworth.verdict import (
    TimingRules,
    goal_reached,
    looks,
    rounds_in_session,
    session_schedule,
)

#: Labels of one job, the baseline and its copy included: more make a round too long.
MAX_LABELS = 8
MAX_LABELS_LONG_CALL = 4
#: Rounds of a session at least.
ROUNDS, ROUNDS_LONG_CALL = 10, 4
#: About the time in which a worker starts and loads its plan; only to guess the time left.
_START_S = 0.5
_Tick = Callable[[], None]
HIDDEN = "baseline again"


@dataclass(frozen=True)
class JobPlan:
    """One job before its sessions.

    Attributes:
        name: of its folder in the workspace.
        plans: the baseline, the baseline again, the variants.
        shape: calls of one block.
        minimum_rounds: rounds of a session at least.
        seed: of its schedules.
        streams: inferences in flight at once.
    """

    name: str
    plans: tuple[TimedPlan, ...]
    shape: BlockShape
    minimum_rounds: int
    seed: int
    streams: int = 1


def split_jobs(
    cell: str,
    baseline: TimedPlan,
    shared: Sequence[TimedPlan],
    variants: Sequence[TimedPlan],
    call_ns: float,
    seed: int,
    *,
    streams: int = 1,
    quantile: float | None = None,
    rounds: int = ROUNDS,
    gpu: bool = False,
    cold: bool = False,
) -> tuple[JobPlan, ...]:
    """Divide a cell's variants into jobs, each with the baseline and its hidden copy.

    Args:
        cell: its name.
        baseline: its baseline.
        shared: variants that the others are compared with as well: part of every job.
        variants: the others.
        call_ns: time of one call of the baseline.
        seed: of the schedules.
        streams: inferences in flight at once.
        quantile: what is compared in the tail; None where medians are.
        rounds: of a session at least.
        gpu: whether plans run on a GPU, whose clocks need a longer lead-in.
        cold: whether every call finds an empty cache: each is a sample of its own.
    """
    long_call = call_ns > LONG_CALL_NS
    room = max(1, (MAX_LABELS_LONG_CALL if long_call else MAX_LABELS) - 2 - len(shared))
    count = -(-len(variants) // room) or 1
    # Jobs of even size: a job of one variant would cost as much as a whole one.
    size = -(-len(variants) // count) or 1
    parts = [variants[i : i + size] for i in range(0, len(variants), size)] or [()]
    again = replace(baseline, label=HIDDEN)
    jobs = []
    for index, part in enumerate(parts):
        plans = (baseline, again, *shared, *part)
        shape = block_shape(call_ns, gpu=gpu, singly=streams > 1 or cold)
        minimum_rounds = ROUNDS_LONG_CALL if long_call else rounds
        if quantile is not None:
            shape, minimum_rounds = tail_shape(call_ns, quantile, len(plans), minimum_rounds)
        jobs.append(
            JobPlan(
                name=f"{cell}-job{index}-{_key(plans)}",
                plans=plans,
                shape=shape,
                minimum_rounds=minimum_rounds,
                seed=seed + index,
                streams=streams,
            )
        )
    return tuple(jobs)


def _key(plans: Sequence[TimedPlan]) -> str:
    """Sessions belong to these bytes: a plan that was built again is timed again."""
    return sha256(canonical([[p.label, p.sha256] for p in plans]))[:8]


def baseline_call_ns(
    workspace: Workspace, cell: str, target: TimingTarget, plan: TimedPlan
) -> float:
    """Time of one call of the baseline, measured once for a study.

    Raises:
        WorkerFailed: the baseline does not run.
    """
    stored = workspace.load("timing", f"{cell}-call")
    if stored is None:
        stored = measure_call_ns(target, plan)
        workspace.save(stored, "timing", f"{cell}-call")
    return float(stored)


def run_job(
    workspace: Workspace,
    target: TimingTarget,
    job: JobPlan,
    rules: TimingRules,
    budget_s: float,
    reporter: Reporter,
    *,
    min_speedup: float | None = None,
    quantile: float | None = None,
    what: str = "variants",
) -> TimingJob:
    """Run sessions until ``rules`` have what they ask for, or the budget or their number ends.

    Finished sessions of an earlier run are used first. At least ``rules.min_sessions`` run,
    whatever the budget: fewer give no verdict.

    Args:
        workspace: finished sessions.
        target: engine, options and inputs.
        job: plans and schedule.
        rules: constants, with the job's share of the cell's alpha.
        budget_s: seconds, those of an earlier run counted.
        reporter: progress.
        min_speedup: the policy's; with ``rules.until_settled`` the speed-up of every variant has
            to lie surely on one side of it.
        quantile: what the tail mode compares; None for the median.
        what: what the plans are, for the progress.
    """
    labels = tuple(p.label for p in job.plans)
    goal = _Goal(job, rules, min_speedup, quantile)
    sessions = list(_finished(workspace, job.name))
    spent = sum(s.wall_ns for s in sessions) / 1e9
    title = f"{target.engine}: timing {len(labels) - 2} {what}"
    if sessions:
        reporter.say(f"{title}: resuming after session {len(sessions)}")
    calls = job.shape.lead_in + job.shape.iterations * job.shape.inner
    # A block that takes a hundred times its time hangs.
    patience = max(60.0, 100 * calls * job.shape.call_ns / 1e9)
    target = replace(target, timeout_s=patience)
    with reporter.stage(title, 1.0) as advance:
        while not (stopped := goal.why_stop(sessions, spent, budget_s)):
            index = len(sessions)
            start = monotonic()
            tick = _ticker(advance, spent, _expected_s(job, spent, index, budget_s, rules))

            schedule = session_schedule(
                len(labels), seed=job.seed, session=index, minimum_rounds=job.minimum_rounds
            )
            failed = {
                i: f"not started: it failed in session {s.session}"
                for s in reversed(sessions)
                for i in s.failures
            }
            found = run_session(target, job.plans, schedule, job.shape, index, tick, failed)
            elapsed = monotonic() - start
            session = _facts(found, round(elapsed * 1e9), workspace.without_paths)
            workspace.save(session.model_dump(mode="json"), "timing", job.name, f"{index:03}")
            sessions.append(session)
            spent += elapsed
        advance(1.0)
    return as_job(job, sessions, stopped)


def _ticker(advance: Callable[[float], None], spent_s: float, expected_s: float) -> _Tick:
    start = monotonic()

    def tick() -> None:
        advance(min(0.99, (spent_s + monotonic() - start) / expected_s))

    return tick


def as_job(job: JobPlan, sessions: Sequence[SessionFacts], stopped: str) -> TimingJob:
    """The record's form of a job."""
    return TimingJob(
        labels=tuple(p.label for p in job.plans),
        seed=job.seed,
        lead_in=job.shape.lead_in,
        iterations=job.shape.iterations,
        inner=job.streams * job.shape.inner,
        call_ns=job.shape.call_ns,
        minimum_rounds=job.minimum_rounds,
        sessions=tuple(sessions),
        items=_items(job.plans),
        stopped=stopped,
    )


def _items(plans: Sequence[TimedPlan]) -> tuple[int, ...]:
    items = tuple(plan.items for plan in plans)
    return items if max(items) > 1 else ()


def finished_job(workspace: Workspace, job: JobPlan) -> TimingJob:
    """What an interrupted job has so far."""
    return as_job(job, list(_finished(workspace, job.name)), "interrupted")


def _finished(workspace: Workspace, name: str) -> Sequence[SessionFacts]:
    found: list[SessionFacts] = []
    while (stored := workspace.load("timing", name, f"{len(found):03}")) is not None:
        found.append(SessionFacts.model_validate(stored))
    return found


@dataclass(frozen=True)
class _Goal:
    """What the sessions of a job have to reach."""

    job: JobPlan
    rules: TimingRules
    min_speedup: float | None
    quantile: float | None

    def why_stop(self, sessions: Sequence[SessionFacts], spent_s: float, budget_s: float) -> str:
        """Why no further session is begun; empty when one is."""
        rules, n = self.rules, len(sessions)
        if n < rules.min_sessions:
            return ""
        if self._is_reached(sessions):
            if not self._looks_at_verdicts:
                return f"every half-width over sessions is at most {rules.precision:.1%}"
            return f"every comparison is settled at {self._look(n)}"
        limit = ""
        if n >= rules.max_sessions:
            limit = f"{rules.max_sessions} sessions"
        # A session that would end beyond the budget is not begun.
        elif spent_s + spent_s / n > budget_s:
            limit = f"the budget of {budget_s:.0f} s"
        if limit and self._looks_at_verdicts:
            return f"{limit}, with comparisons open after {self._look(n)}"
        return limit

    @property
    def _looks_at_verdicts(self) -> bool:
        # With the baseline and its copy alone there is none to look at.
        return self.rules.until_settled and len(self.job.plans) > 2

    def _is_reached(self, sessions: Sequence[SessionFacts]) -> bool:
        if self._looks_at_verdicts and len(sessions) not in looks(self.rules):
            return False
        job = as_job(self.job, sessions, "")
        blocks = job_blocks(job, self.quantile)  # as the record will judge them
        return goal_reached(blocks, job.labels, self.rules, min_speedup=self.min_speedup)

    def _look(self, n: int) -> str:
        ladder = looks(self.rules)
        past = sum(look <= n for look in ladder)
        return f"look {past} of {len(ladder)} (after {', '.join(map(str, ladder))} sessions)"


def _expected_s(
    job: JobPlan, spent_s: float, sessions: int, budget_s: float, rules: TimingRules
) -> float:
    """Seconds that the job will take at most, as far as is known."""
    labels, shape = len(job.plans), job.shape
    if sessions:
        each = spent_s / sessions
    else:
        blocks = labels * rounds_in_session(labels, job.minimum_rounds)
        calls = blocks * (shape.lead_in + shape.iterations * shape.inner)
        each = calls * shape.call_ns / 1e9 + labels * _START_S
    return max(budget_s, each * rules.min_sessions)


def _facts(
    found: SessionSamples, wall_ns: int, without_paths: Callable[[str], str]
) -> SessionFacts:
    tree = asdict(found)
    tree["failures"] = {i: without_paths(text) for i, text in found.failures.items()}
    load = tree.pop("interference")
    tree["samples_ns"] = tree.pop("samples")
    return SessionFacts(**tree, **load, wall_ns=wall_ns)
