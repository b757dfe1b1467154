"""What is gathered: the banks of the benchmark."""

from __future__ import annotations

from benchmarks.timing.collect import Design
from benchmarks.timing.models import ENGINES

MODELS = ("recogniser", "matmul")
#: Ten identical plans give five disjoint pairs a session.
IDENTICAL = 10
#: Sessions of one trial: the fewest that the rules judge.
TRIAL_SESSIONS = 6
TRIALS = 50
TRUTH_TRIALS = 100
#: Units of the labels of a truth session: 21 against 20 is 5%, 22 against 20 is 10%.
TRUTH_UNITS = (20,) * 4 + (21,) * 4 + (22,) * 4
CURVE_BLOCK_NS = 140_000_000
CURVE_SESSIONS = 6
SHARED_SESSIONS = 12


def identical(model: str, engine: str) -> Design:
    """A/A: one process a plan, as a study runs them."""
    sessions = TRIALS * TRIAL_SESSIONS // (IDENTICAL // 2)
    return Design(f"identical-{model}-{engine}", model, engine, IDENTICAL, sessions)


def truth() -> Design:
    """Injected work, on the product's unit."""
    sessions = TRUTH_TRIALS * TRIAL_SESSIONS // 4
    return Design(
        "truth-onnxruntime", "unit", "onnxruntime", len(TRUTH_UNITS), sessions, units=TRUTH_UNITS
    )


def curve(model: str, engine: str) -> Design:
    """Long blocks, to be cut."""
    return Design(
        f"curve-{model}-{engine}", model, engine, IDENTICAL, CURVE_SESSIONS,
        long_block_ns=CURVE_BLOCK_NS,
    )  # fmt: skip


def shared(model: str, engine: str) -> Design:
    """A/A with all plans in one process."""
    return Design(
        f"shared-{model}-{engine}", model, engine, IDENTICAL, SHARED_SESSIONS, shared=True
    )


def all_designs() -> tuple[Design, ...]:
    """Every bank, in the order of gathering."""
    pairs = [(model, engine) for model in MODELS for engine in ENGINES]
    return (
        *(curve(m, e) for m, e in pairs),
        *(shared(m, e) for m, e in pairs),
        *(identical(m, e) for m, e in pairs),
        truth(),
    )
