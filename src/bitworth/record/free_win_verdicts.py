"""What each change to the baseline gave, by the verdict's rules, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from bitworth.record.free_win_facts import FreeWinSearch, FreeWinTry, FreeWinVerdict, Outcome
from bitworth.record.timing_facts import TimingJob
from bitworth.record.timing_verdicts import judge_job
from bitworth.verdict import Comparison, TimingRules, sig6

#: Largest relative L2 change of an output that still counts as the same result.
SAME_RESULT = 1e-5


def judge_free_wins(
    search: FreeWinSearch | None,
    jobs: Sequence[TimingJob],
    rules: TimingRules,
    quantile: float | None = None,
) -> tuple[FreeWinVerdict, ...]:
    """A verdict on every try; they share one error rate, apart from that of the variants."""
    if search is None:
        return ()
    total = sum(len(job.labels) - 2 for job in jobs)
    found = {
        c.variant: c for job in jobs for c in judge_job(job, rules, total, {}, quantile).comparisons
    }
    return tuple(_verdict(one, found.get(one.name), search.same_result) for one in search.tries)


def worth_joining(search: FreeWinSearch, verdicts: Sequence[FreeWinVerdict]) -> tuple[str, ...]:
    """Options that make the baseline faster and leave its result as it is, the best first."""
    tries = {one.name: one for one in search.tries}
    found = [
        (v.comparison.time_ratio_high, v.name)
        for v in verdicts
        if v.comparison is not None
        and v.comparison.verdict == "faster"
        and v.comparison.time_ratio_high is not None
        and tries[v.name].kind == "options"
        and is_same(tries[v.name].result_change, search.same_result)
    ]
    return tuple(name for _, name in sorted(found))


def is_same(change: float | None, limit: float = SAME_RESULT) -> bool:
    """Whether outputs that changed by this much are still the same result."""
    return change is not None and change <= limit


def _verdict(one: FreeWinTry, comparison: Comparison | None, limit: float) -> FreeWinVerdict:
    ratio = None
    if comparison is not None and comparison.verdict != "void" and comparison.time_ratio:
        ratio = sig6(comparison.time_ratio * one.items)
    outcome, reason = _outcome(one, comparison, limit)
    return FreeWinVerdict(
        name=one.name, comparison=comparison, call_time_ratio=ratio, outcome=outcome, reason=reason
    )


def _outcome(one: FreeWinTry, comparison: Comparison | None, limit: float) -> tuple[Outcome, str]:
    if one.failed:
        return "failed", one.failed
    if comparison is None:
        return "failed", "it was not timed"
    if one.kind == "undone":
        return "in the baseline", "what it undoes is in the baseline and in every variant"
    if one.applied:
        return "applied", "joined the baseline and every variant"
    if comparison.verdict != "faster":
        return "left out", f"its verdict is {comparison.verdict}"
    if one.kind == "batch":
        return "offered", "for whom samples may wait for each other"
    if not is_same(one.result_change, limit):
        return "offered", "it changes the result: give it as a variant, which is judged for quality"
    return "offered", "a change of the same setting that gains more joined the baseline"
