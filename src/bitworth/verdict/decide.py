"""From sessions to a verdict for each variant of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitworth.verdict.blocks import SessionBlocks
from bitworth.verdict.comparison import (
    Comparison,
    RatioInterval,
    check_labels,
    judge_pair,
    ratio_interval,
)
from bitworth.verdict.estimate import session_estimates
from bitworth.verdict.gates import Gate, aa_gate
from bitworth.verdict.rules import TimingRules


@dataclass(frozen=True)
class CellVerdict:
    """Verdicts of one cell.

    Attributes:
        comparisons: one for each label other than the baseline and its hidden copy, in order.
        aa: the hidden copy over the baseline, at ``TimingRules.gate_alpha``; None without data.
        gates: the checks of the cell as a whole; a failed one voids every comparison.
    """

    comparisons: tuple[Comparison, ...]
    aa: RatioInterval | None
    gates: tuple[Gate, ...]


def judge_cell(
    sessions: Sequence[SessionBlocks],
    labels: Sequence[str],
    *,
    rules: TimingRules,
    extra_gates: Mapping[str, Sequence[Gate]] | None = None,
    hidden: int = 1,
) -> CellVerdict:
    """Judge every variant of a cell against its baseline, label 0.

    Args:
        sessions: sessions of one cell, k labels each.
        labels: names of the k labels, all different; label 0 is the baseline.
        rules: the constants.
        extra_gates: checks from outside by label name; a failed one voids that label's comparison,
            and those of the baseline and of its copy void the cell.
        hidden: index of the baseline's hidden copy.

    Raises ValueError for labels that do not fit the sessions and for gates of unknown labels.
    """
    check_labels(sessions, labels, hidden, 0)
    outside = dict(extra_gates or {})
    if unknown := sorted(set(outside) - set(labels)):
        raise ValueError(f"gates for {', '.join(unknown)}, which the cell does not have")
    pairs = [(label, 0) for label in range(1, len(labels))]
    by_session = [session_estimates(blocks, pairs) for blocks in sessions]
    estimates = {label: [found[i] for found in by_session] for i, (label, _) in enumerate(pairs)}
    cell_gates = (
        aa_gate(estimates[hidden], rules),
        *outside.get(labels[0], ()),
        *outside.get(labels[hidden], ()),
    )
    variants = variant_labels(labels, hidden)
    share = rules.alpha / max(1, len(variants))
    comparisons = tuple(
        judge_pair(
            sessions, labels, label, 0, estimates[label],
            rules, share, (*cell_gates, *outside.get(labels[label], ())),
        )
        for label in variants
    )  # fmt: skip
    return CellVerdict(comparisons, ratio_interval(estimates[hidden], rules.gate_alpha), cell_gates)


def variant_labels(labels: Sequence[str], hidden: int) -> list[int]:
    """Indices of the labels that are compared: all but the baseline and its hidden copy."""
    return [label for label in range(1, len(labels)) if label != hidden]
