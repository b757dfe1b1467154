from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.verdict import rounds_in_session, session_schedule, williams_square


def neighbours(rounds: tuple[tuple[int, ...], ...]) -> Counter[tuple[int, int]]:
    return Counter(pair for row in rounds for pair in itertools.pairwise(row))


@pytest.mark.parametrize("k", range(2, 13))
def test_square_is_balanced(k: int) -> None:
    square = williams_square(k)
    assert len(square) == (k if k % 2 == 0 else 2 * k)
    assert all(sorted(row) == list(range(k)) for row in square)
    for position in range(k):
        counts = Counter(row[position] for row in square)
        assert set(counts.values()) == {len(square) // k}
    pairs = neighbours(square)
    assert len(pairs) == k * (k - 1)
    assert len(set(pairs.values())) == 1


@given(
    k=st.integers(2, 12),
    seed=st.integers(0, 2**40),
    session=st.integers(0, 60),
    minimum=st.integers(1, 30),
)
def test_session_holds_whole_squares_and_stays_balanced(
    k: int, seed: int, session: int, minimum: int
) -> None:
    schedule = session_schedule(k, seed=seed, session=session, minimum_rounds=minimum)
    assert len(schedule.rounds) == rounds_in_session(k, minimum) >= minimum
    halved = k % 2 == 1 and k >= minimum
    rows = k if halved else len(williams_square(k))
    assert len(schedule.rounds) % rows == 0
    assert len(schedule.rounds) - rows < minimum
    assert sorted(schedule.start_order) == list(range(k))
    assert halved or len(set(neighbours(schedule.rounds).values())) == 1
    for position in range(k):
        assert len(set(Counter(row[position] for row in schedule.rounds).values())) == 1
    assert schedule == session_schedule(k, seed=seed, session=session, minimum_rounds=minimum)


@pytest.mark.parametrize("k", [3, 5, 7])
def test_neighbours_of_half_squares_are_balanced_over_sessions(k: int) -> None:
    count = 4000
    pairs: Counter[tuple[int, int]] = Counter()
    for session in range(count):
        rounds = session_schedule(k, seed=1, session=session, minimum_rounds=2).rounds
        assert len(rounds) == k
        pairs += neighbours(rounds)
    expected = count * k * (k - 1) / (k * (k - 1))
    assert len(pairs) == k * (k - 1)
    assert max(abs(n - expected) for n in pairs.values()) < 0.1 * expected


def test_schedule_differs_by_seed_session_and_labels() -> None:
    base = session_schedule(4, seed=1, session=0)
    assert base != session_schedule(4, seed=2, session=0)
    assert base != session_schedule(4, seed=1, session=1)
    starts = {session_schedule(4, seed=1, session=i).start_order for i in range(200)}
    assert len(starts) == 24
    firsts = Counter(session_schedule(4, seed=1, session=i).rounds[0][0] for i in range(400))
    assert min(firsts.values()) > 60


def test_a_schedule_is_pinned() -> None:
    # A stored seed must give the stored schedule in three months, too.
    schedule = session_schedule(2, seed=7, session=3, minimum_rounds=4)
    assert schedule.start_order == (0, 1)
    assert schedule.rounds == ((1, 0), (0, 1), (0, 1), (1, 0))


@pytest.mark.parametrize(
    ("k", "minimum", "rounds"), [(2, 10, 10), (3, 10, 12), (4, 10, 12), (5, 10, 10), (4, 4, 4),
                                 (7, 6, 7), (7, 8, 14), (6, 6, 6),
                                 (3, 4, 6), (12, 10, 12), (1, 10, 10)],
)  # fmt: skip
def test_rounds_in_session(k: int, minimum: int, rounds: int) -> None:
    assert rounds_in_session(k, minimum) == rounds


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one label"):
        williams_square(0)
    with pytest.raises(ValueError, match="at least one round"):
        rounds_in_session(2, 0)
    with pytest.raises(ValueError, match="at least 0"):
        session_schedule(2, seed=-1, session=0)
