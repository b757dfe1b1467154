from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitworth.verdict import amdahl_ceiling, amdahl_total, sig6, sig6_or_none


def test_amdahl() -> None:
    assert amdahl_ceiling(0.5, 0.5) == pytest.approx(1 / 0.75)
    assert amdahl_ceiling(0.4, 0.0) == pytest.approx(1 / 0.6)
    assert amdahl_ceiling(1.0, 0.25) == pytest.approx(4)
    assert amdahl_ceiling(0.0, 0.0) == 1
    assert amdahl_total([(0.5, 0.5), (0.25, 0.0)]) == pytest.approx(2)
    assert amdahl_total([]) == 1


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 1))
def test_ceiling_grows_with_share_and_falls_with_ratio(s: float, r: float, less: float) -> None:
    ceiling = amdahl_ceiling(s, r)
    assert 1 <= ceiling <= 1 / r + 1e-9
    assert amdahl_ceiling(s * less, r) <= ceiling + 1e-12
    assert amdahl_ceiling(s, r + (1 - r) * less) <= ceiling + 1e-12


@pytest.mark.parametrize(
    "groups",
    [
        [(-0.1, 0.5)], [(1.1, 0.5)], [(0.5, -0.1)], [(0.5, 1.5)], [(math.nan, 0.5)],
        [(0.5, math.nan)], [(1.0, 0.0)], [(0.6, 0.5), (0.6, 0.5)],
    ],
)  # fmt: skip
def test_bad_bounds_are_refused(groups: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError):
        amdahl_total(groups)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_sig6_is_idempotent_and_close(value: float) -> None:
    rounded = sig6(value)
    assert sig6(rounded) == rounded
    assert rounded == pytest.approx(value, rel=5.1e-6, abs=1e-307)


def test_sig6() -> None:
    assert sig6(1.23456789) == 1.23457
    assert math.copysign(1, sig6(-0.0)) == 1
    with pytest.raises(ValueError, match="JSON"):
        sig6(math.inf)
    assert [sig6_or_none(x) for x in (None, math.nan, math.inf, 2.0)] == [None, None, None, 2.0]
