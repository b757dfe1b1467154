"""What a smaller share of time can give at most."""

from __future__ import annotations

import math
from collections.abc import Iterable


def amdahl_ceiling(share: float, limit_ratio: float) -> float:
    """Speed-up of the whole if a group's time fell to ``limit_ratio`` of itself.

    Amdahl (1967), Validity of the single processor approach, AFIPS 30:483-485.

    Args:
        share: the group's share of the whole's time, 0 to 1.
        limit_ratio: least time over present time that the group could reach, 0 to 1.

    Raises ValueError outside these ranges, and when nothing would remain (share 1, ratio 0).
    """
    return amdahl_total([(share, limit_ratio)])


def amdahl_total(groups: Iterable[tuple[float, float]]) -> float:
    """Speed-up of the whole if each group's time fell to its limit.

    Args:
        groups: pairs of share and limit ratio as for ``amdahl_ceiling``; the groups share no time.
            Time in no group stays as it is.

    Raises ValueError for numbers outside 0 to 1, shares that sum to over 1, and when nothing would
    remain.
    """
    total, saved = 0.0, 0.0
    for share, limit_ratio in groups:
        for name, value in (("share", share), ("limit_ratio", limit_ratio)):
            if not 0 <= value <= 1:  # NaN too
                raise ValueError(f"{name} must lie between 0 and 1, got {value}")
        total += share
        saved += share * (1 - limit_ratio)
    if total > 1 + 1e-9:
        raise ValueError(f"the shares of time sum to {total:.6g}, over 1: groups overlap")
    if saved >= 1 or math.isclose(saved, 1.0, rel_tol=0, abs_tol=1e-12):
        raise ValueError("no time would remain: that bounds nothing")
    return 1 / (1 - saved)
