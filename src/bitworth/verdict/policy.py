"""The decision: ship a variant, do not ship, or undecided and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bitworth.verdict.criteria import (
    NOT_RUN,
    Candidate,
    CandidateCriteria,
    Criterion,
    MetricLoss,
    Policy,
    evaluate,
)
from bitworth.verdict.rounding import number_text
from bitworth.verdict.rules import TimingRules

__all__ = [
    "Candidate",
    "CandidateCriteria",
    "Criterion",
    "Decision",
    "DecisionKind",
    "MetricLoss",
    "Policy",
    "decide",
    "worst_cell",
]

DecisionKind = Literal["ship", "do not ship", "undecided"]

# Evidence that the whole study lacks: named first, and once, however many variants wait for it.
_STUDY_WIDE = ("quality evidence", "task metric", "quality limit")


@dataclass(frozen=True)
class Decision:
    """The answer of one cell, or of a study.

    Attributes:
        kind: the answer.
        variant: what to ship; None for the other kinds.
        sentence: one sentence with its numbers.
        candidates: every candidate's criteria, in the order given.
        settle: what would settle an undecided one, a phrase each; empty for the other kinds.
    """

    kind: DecisionKind
    variant: str | None
    sentence: str
    candidates: tuple[CandidateCriteria, ...]
    settle: tuple[str, ...] = ()


def decide(
    candidates: Sequence[Candidate],
    policy: Policy,
    *,
    rules: TimingRules,
    has_quality_evidence: bool,
    has_task_metric: bool,
) -> Decision:
    """Decide for one cell.

    Ship when a variant passes every criterion, though others are open. Do not ship when every
    variant fails one: that needs no quality evidence where speed alone fails it, as quality cannot
    make a variant faster. Else undecided. Among several that pass, those whose speed-up interval
    reaches the best lower bound count as equally fast; of them the one with the smallest loss
    (by the policy's metrics in their order, then relative L2), then the fewest bytes, then the
    best lower bound, then the first given.

    Args:
        candidates: the variants of the cell, without the baseline; names all different.
        policy: what must be reached.
        rules: those that the comparisons follow; they say how many more sessions would settle one.
        has_quality_evidence: False when the inputs were random.
        has_task_metric: whether the study has a task metric.

    Raises ValueError when two candidates share a name.
    """
    if len({candidate.name for candidate in candidates}) != len(candidates):
        raise ValueError("two candidates share a name")
    judged = tuple(
        evaluate(
            candidate,
            policy,
            rules,
            has_quality_evidence=has_quality_evidence,
            has_task_metric=has_task_metric,
        )
        for candidate in candidates
    )
    if not judged:
        text = "no variant was studied"
        return Decision("undecided", None, f"undecided: {text}", (), (text,))
    passing = [i for i, item in enumerate(judged) if item.state == "pass"]
    if passing:
        return _ship(candidates, judged, passing, policy)
    if all(item.state == "fail" for item in judged):
        return Decision("do not ship", None, f"do not ship: {_failures(judged)}", judged)
    return _undecided(judged)


def _ship(
    candidates: Sequence[Candidate],
    judged: tuple[CandidateCriteria, ...],
    passing: Sequence[int],
    policy: Policy,
) -> Decision:
    best_low = max(_speed(judged[i]).low or 0.0 for i in passing)
    equal = [i for i in passing if (_speed(judged[i]).high or 0.0) >= best_low]
    chosen = min(
        equal, key=lambda i: (*_rank(candidates[i], policy), -(_speed(judged[i]).low or 0))
    )
    item = judged[chosen]
    sentence = f"ship {item.name}: {', '.join(criterion.text for criterion in item.criteria)}"
    if others := [judged[i].name for i in equal if i != chosen]:
        sentence += f"; as fast within the intervals: {', '.join(others)}"
    return Decision("ship", item.name, sentence, judged)


def _speed(item: CandidateCriteria) -> Criterion:
    return item.criteria[0]


def _rank(candidate: Candidate, policy: Policy) -> tuple[float, ...]:
    losses = {loss.metric: loss.loss for loss in candidate.losses}
    return (
        *(losses.get(metric, math.inf) for metric, _ in policy.max_loss),
        math.inf if candidate.rel_l2 is None else candidate.rel_l2,
        math.inf if candidate.plan_bytes is None else candidate.plan_bytes,
    )


def _failures(judged: Sequence[CandidateCriteria]) -> str:
    """What each failing variant fails by; those that do not run stand together at the end."""
    failed = [item for item in judged if item.state == "fail"]
    ran = [item for item in failed if not _speed(item).text.startswith(NOT_RUN)]
    texts = [
        f"{item.name} fails, {next(c.text for c in item.criteria if c.state == 'fail')}"
        for item in ran
    ]
    if absent := [item for item in failed if item not in ran]:
        why = (f"{item.name} ({_speed(item).text.removeprefix(NOT_RUN)})" for item in absent)
        texts.append(NOT_RUN + ", ".join(why))
    return "; ".join(texts)


def _undecided(judged: tuple[CandidateCriteria, ...]) -> Decision:
    waiting = [item for item in judged if item.state == "open"]
    still = [(item.name, c) for item in waiting for c in item.criteria if c.state == "open"]
    wide = list(dict.fromkeys(c.text for _, c in still if c.name in _STUDY_WIDE))
    own = [f"{name}, {c.text}" for name, c in still if c.name not in _STUDY_WIDE]
    # With evidence missing study-wide, the reader still wants to know what speed is at stake.
    reached = [f"{item.name}, {_speed(item).text}" for item in waiting if wide]
    parts = wide + [text for text in reached if text not in own] + own
    failed = [item.name for item in judged if item.state == "fail"]
    if failed:
        parts.append(f"{', '.join(failed)} {'fails' if len(failed) == 1 else 'fail'}")
    sentence = f"undecided: {'; '.join(parts)}"
    return Decision("undecided", None, sentence, judged, (*wide, *own))


def worst_cell(decisions: Mapping[str, Decision]) -> Decision:
    """Combine the cells of a study: its decision is that of its worst cell.

    Worst is ``do not ship``, then ``undecided``, then ``ship``; of several alike the first given.
    Where every cell ships, the study ships the variant that passes in all of them and whose lowest
    speed-up bound is best, with the numbers of the cell that bounds it; where no variant passes
    in all, it is undecided, as no one answer is true of every cell.

    Args:
        decisions: decision of each cell by the cell's name.

    Raises ValueError for no cells.
    """
    if not decisions:
        raise ValueError("a study without cells has no decision")
    for kind in ("do not ship", "undecided"):
        for cell, decision in decisions.items():
            if decision.kind == kind:
                return _named(cell, decision, len(decisions))
    if len(decisions) == 1:
        return next(iter(decisions.values()))
    passing = {
        cell: {item.name: item for item in decision.candidates if item.state == "pass"}
        for cell, decision in decisions.items()
    }
    common = [
        name for name in next(iter(passing.values())) if all(name in x for x in passing.values())
    ]
    if not common:
        text = "no variant passes in every cell: " + ", ".join(
            f"{cell} ships {decision.variant}" for cell, decision in decisions.items()
        )
        settle = ("ship a variant for each cell, or give the cells weights",)
        return Decision("undecided", None, f"undecided: {text}", (), settle)

    def bound(name: str, cell: str) -> float:
        return _speed(passing[cell][name]).low or 0.0

    name = max(common, key=lambda x: min(bound(x, cell) for cell in passing))
    cell = min(passing, key=lambda x: bound(name, x))
    texts = ", ".join(criterion.text for criterion in passing[cell][name].criteria)
    lowest = number_text(bound(name, cell))
    return Decision(
        "ship",
        name,
        f"ship {name}: it passes in all {len(decisions)} cells, with a speed-up of at least "
        f"{lowest} in the worst, {cell} ({texts})",
        decisions[cell].candidates,
    )


def _named(cell: str, decision: Decision, cells: int) -> Decision:
    if cells == 1:
        return decision
    head, _, rest = decision.sentence.partition(": ")
    return Decision(
        decision.kind, decision.variant, f"{head}: in {cell}, {rest}",
        decision.candidates, decision.settle,
    )  # fmt: skip
