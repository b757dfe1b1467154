"""Orders of execution: who runs when, so that position and carry-over cancel.

Williams, E. J. (1949), Experimental designs balanced for the estimation of residual effects of
treatments, Australian Journal of Scientific Research A 2:149-168.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SessionSchedule:
    """The order of one session.

    Attributes:
        start_order: labels in the order in which their workers start, shape (k,).
        rounds: label at each position of each round, shape (rounds, k); whole Williams squares,
            or half of one for an odd k.
    """

    start_order: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]


def williams_square(k: int) -> tuple[tuple[int, ...], ...]:
    """Rows in which every label precedes every other equally often (Williams 1949).

    Shape: (k, k) for even k, (2k, k) for odd k (each row also reversed), (1, 1) for k = 1. Every
    label occurs once a row and equally often in each position; every ordered pair of neighbours
    occurs once for even k and twice for odd k. Raises ValueError for k under 1.
    """
    if k < 1:
        raise ValueError(f"a square needs at least one label, got {k}")
    if k == 1:
        return ((0,),)
    # 0, 1, k-1, 2, k-2, ...: the differences of neighbours are all different modulo k.
    first = [(i + 1) // 2 if i % 2 else (k - i // 2) % k for i in range(k)]
    rows = [tuple((label + shift) % k for label in first) for shift in range(k)]
    if k % 2:
        rows += [row[::-1] for row in rows]
    return tuple(rows)


def rounds_in_session(k: int, minimum: int = 10) -> int:
    """Rounds of one session: the fewest whole squares that hold ``minimum`` rounds.

    For an odd k of at least ``minimum`` half a square: k rounds.

    Raises ValueError for k under 1 or minimum under 1.
    """
    if minimum < 1:
        raise ValueError(f"a session needs at least one round, got {minimum}")
    if _is_halved(k, minimum):
        return k
    rows = len(williams_square(k))
    return -(-minimum // rows) * rows


def _is_halved(k: int, minimum: int) -> bool:
    """Whether a session has one half of a square, and the next one the other."""
    return k > 1 and k % 2 == 1 and k >= minimum


def session_schedule(
    k: int, *, seed: int, session: int, minimum_rounds: int = 10
) -> SessionSchedule:
    """Draw the order of one session; a pure function of its arguments.

    Each square gets labels of its own and its rows in random order. Squares follow one another
    whole, so that a slow drift meets every label alike even in one half of a session. Workers
    start in random order: a fixed one leaves an allocation bias of about 0.5%. Calls over 100 ms
    take ``minimum_rounds=4`` and at most 4 labels.

    The square of an odd k has its rows and then each of them reversed. Where k rounds are enough,
    even sessions have the former and odd ones the latter: positions are balanced in each session,
    neighbours only over many, as each session draws its labels anew.

    Args:
        k: labels, with the baseline 0 and its hidden copy among them.
        seed: the study's seed, at least 0.
        session: number of the session, at least 0.
        minimum_rounds: whole squares follow until this many rounds are reached.

    Raises ValueError for negative numbers, k under 1 or minimum_rounds under 1.
    """
    if seed < 0 or session < 0:
        raise ValueError(f"seed and session must be at least 0, got {seed} and {session}")
    square = williams_square(k)
    if _is_halved(k, minimum_rounds):
        square = square[k:] if session % 2 else square[:k]
    squares = rounds_in_session(k, minimum_rounds) // len(square)
    generator = np.random.default_rng(np.random.SeedSequence((seed, session, k)))
    start_order = tuple(int(label) for label in generator.permutation(k))
    rounds: list[tuple[int, ...]] = []
    for _ in range(squares):
        labels = [int(label) for label in generator.permutation(k)]
        rounds += [
            tuple(labels[cell] for cell in square[int(row)])
            for row in generator.permutation(len(square))
        ]
    return SessionSchedule(start_order=start_order, rounds=tuple(rounds))
