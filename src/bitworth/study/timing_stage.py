"""Timing jobs of one cell: sessions until they are precise enough, or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic

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
from bitworth.record.schema import SessionFacts, TimingJob
from bitworth.record.store import canonical, sha256
from bitworth.study.progress import Reporter
from bitworth.study.workspace import Workspace
from bitworth.verdict import (
    TimingRules,
    blocks_from_samples,
    rounds_in_session,
    session_schedule,
    settled,
)

#: Labels of one job, the baseline and its copy included: more make a round too long.
MAX_LABELS = 8
MAX_LABELS_LONG_CALL = 4
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
    """

    name: str
    plans: tuple[TimedPlan, ...]
    shape: BlockShape
    minimum_rounds: int
    seed: int


def split_jobs(
    cell: str,
    baseline: TimedPlan,
    shared: Sequence[TimedPlan],
    variants: Sequence[TimedPlan],
    call_ns: float,
    seed: int,
) -> tuple[JobPlan, ...]:
    """Divide a cell's variants into jobs, each with the baseline and its hidden copy.

    Args:
        cell: its name.
        baseline: its baseline.
        shared: variants that the others are compared with as well: part of every job.
        variants: the others.
        call_ns: time of one call of the baseline.
        seed: of the schedules.
    """
    long_call = call_ns > LONG_CALL_NS
    room = max(1, (MAX_LABELS_LONG_CALL if long_call else MAX_LABELS) - 2 - len(shared))
    count = -(-len(variants) // room) or 1
    # Jobs of even size: a job of one variant would cost as much as a whole one.
    size = -(-len(variants) // count) or 1
    parts = [variants[i : i + size] for i in range(0, len(variants), size)] or [()]
    again = replace(baseline, label=HIDDEN)
    return tuple(
        JobPlan(
            name=f"{cell}-job{index}-{_key((baseline, *shared, *part))}",
            plans=(baseline, again, *shared, *part),
            shape=block_shape(call_ns),
            minimum_rounds=4 if long_call else 10,
            seed=seed + index,
        )
        for index, part in enumerate(parts)
    )


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
) -> TimingJob:
    """Run sessions until every half-width is precise enough, or the budget or their number ends.

    Finished sessions of an earlier run are used first. At least ``rules.min_sessions`` run,
    whatever the budget: fewer give no verdict.
    """
    labels = tuple(p.label for p in job.plans)
    sessions = list(_finished(workspace, job.name))
    spent = sum(s.wall_ns for s in sessions) / 1e9
    title = f"{target.engine}: timing {len(labels) - 2} variants"
    if sessions:
        reporter.say(f"{title}: resuming after session {len(sessions)}")
    calls = job.shape.lead_in + job.shape.iterations
    # A block that takes a hundred times its time hangs.
    patience = max(60.0, 100 * calls * job.shape.call_ns / 1e9)
    target = replace(target, timeout_s=patience)
    with reporter.stage(title, 1.0) as advance:
        while not (stopped := _why_stop(sessions, labels, rules, spent, budget_s)):
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
        call_ns=job.shape.call_ns,
        minimum_rounds=job.minimum_rounds,
        sessions=tuple(sessions),
        stopped=stopped,
    )


def finished_job(workspace: Workspace, job: JobPlan) -> TimingJob:
    """What an interrupted job has so far."""
    return as_job(job, list(_finished(workspace, job.name)), "interrupted")


def _finished(workspace: Workspace, name: str) -> Sequence[SessionFacts]:
    found: list[SessionFacts] = []
    while (stored := workspace.load("timing", name, f"{len(found):03}")) is not None:
        found.append(SessionFacts.model_validate(stored))
    return found


def _why_stop(
    sessions: Sequence[SessionFacts],
    labels: Sequence[str],
    rules: TimingRules,
    spent_s: float,
    budget_s: float,
) -> str:
    if len(sessions) < rules.min_sessions:
        return ""
    blocks = [blocks_from_samples(s.order, s.samples_ns) for s in sessions]
    if settled(blocks, labels, rules):
        return f"every half-width is at most {rules.precision:.1%}"
    if len(sessions) >= rules.max_sessions:
        return f"{rules.max_sessions} sessions"
    # A session that would end beyond the budget is not begun.
    if spent_s + spent_s / len(sessions) > budget_s:
        return f"the budget of {budget_s:.0f} s"
    return ""


def _expected_s(
    job: JobPlan, spent_s: float, sessions: int, budget_s: float, rules: TimingRules
) -> float:
    """Seconds that the job will take at most, as far as is known."""
    labels, shape = len(job.plans), job.shape
    if sessions:
        each = spent_s / sessions
    else:
        blocks = labels * rounds_in_session(labels, job.minimum_rounds)
        calls = blocks * (shape.lead_in + shape.iterations)
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
