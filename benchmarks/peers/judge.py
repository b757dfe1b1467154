"""Why a model of Bitworth's is further from the float model than the best peer's, where it is."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.causes import LEFT_OUT, UNKNOWN
from benchmarks.peers.results import Comparison, Run

#: Up to this factor an error counts as no larger.
ALLOWED = 1.10

#: Methods of which the best peer is looked for, with the runs that follow it.
FAMILIES = {
    "int8 max": ("int8_max", "int8_max_per_channel", "int8_max_symmetric"),
    "int8 entropy": ("int8_entropy",),
    "fp8 max": ("fp8_max", "fp8"),
}


def family(run: Run) -> str:
    """The method that a run follows."""
    return next(name for name, methods in FAMILIES.items() if run.method in methods)


def best(comparison: Comparison, name: str) -> Run | None:
    """The peer's run of a family with the smallest error; None where none wrote a model."""
    runs = [r for r in comparison.runs if family(r) == name and r.theirs is not None]
    return min(runs, key=_error_of_theirs, default=None)


def worse(comparison: Comparison, run: Run) -> str:
    """Why Bitworth's error is over the best peer's by more than is allowed; empty: it is not."""
    leader = best(comparison, family(run))
    if leader is None or run.ours is None:
        return ""
    ours, least = run.ours.relative_l2, _error_of_theirs(leader)
    if ours <= ALLOWED * least:
        return ""
    if run.theirs is None or run.exchanged is None or run.ours_inputs_only is None:
        return _like(comparison, run)
    theirs = run.theirs.relative_l2
    if ours <= ALLOWED * theirs:
        return f"the form: its own peer, {run.peer}, has {theirs:.3g}"
    # What rounding's luck alone makes of the peer's model is no difference.
    reach = ALLOWED * max(theirs, run.nudged[1] if run.nudged else 0.0)
    luck = "" if run.nudged is None else _luck(run.nudged)
    at_places = run.exchanged.relative_l2
    if at_places > reach:
        return f"the scales: with Bitworth's in it the peer's model has {at_places:.3g}{luck}"
    if ours <= reach:
        return f"rounding's luck{luck}"
    # With equal scales it is no worse: what differs is which tensors are quantized.
    left = sum(row.cause == LEFT_OUT for row in run.rows)
    for fewer, what in (
        (run.ours_inputs_only, "the outputs of sites, which the peer leaves alone"),
        (run.ours_their_sites, f"{left} operations that the peer leaves out"),
        (run.ours_their_inputs, f"{left} operations and all outputs, which the peer leaves alone"),
    ):
        if fewer is not None and fewer.relative_l2 <= reach:
            return f"{what}: without them {fewer.relative_l2:.3g}"
    alone = sum(row.kind == "activation" and None in (row.ours, row.theirs) for row in run.rows)
    return (
        f"{alone} activations that one side alone quantizes: at the peer's places Bitworth's "
        f"scales have {at_places:.3g}{luck}"
    )


def _luck(nudged: tuple[float, float]) -> str:
    low, high = nudged
    return f"; with its own scales changed by 1% to 3% it has {low:.3g} to {high:.3g}"


def _like(comparison: Comparison, run: Run) -> str:
    """The cause that holds for the run of the family whose recipe of ours has the same error."""
    for other in comparison.runs:
        if other is run or family(other) != family(run) or other.theirs is None:
            continue
        if other.ours is not None and run.ours is not None:
            same = run.ours.relative_l2 <= ALLOWED * other.ours.relative_l2
            if same and (cause := worse(comparison, other)):
                return cause
    return "no peer to compare with: it wrote no model that loads in this form"


def _error_of_theirs(run: Run) -> float:
    assert run.theirs is not None
    return run.theirs.relative_l2


def unexplained(comparisons: Sequence[Comparison]) -> list[str]:
    """Every row without a cause."""
    return [
        f"{c.model} {run.peer} {run.method}: {row.kind} {row.tensor}"
        for c in comparisons
        for run in c.runs
        for row in run.rows
        if row.cause == UNKNOWN
    ]
