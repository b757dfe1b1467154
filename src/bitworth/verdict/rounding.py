"""Rounding of derived values, so that recomputing a record gives the same bytes."""

from __future__ import annotations

import math


def sig6(value: float) -> float:
    """Round to 6 significant digits.

    Shape: scalar. Unit: that of ``value``. Negative zero becomes zero, as the two would be written
    differently. Raises ValueError for NaN and infinities, which JSON cannot hold.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form: use sig6_or_none where a value may be missing")
    return float(f"{value:.6g}") + 0.0


def sig6_or_none(value: float | None) -> float | None:
    """Round to 6 significant digits; None for None, NaN and infinities.

    Shape: scalar. Unit: that of ``value``.
    """
    return None if value is None or not math.isfinite(value) else sig6(value)


def number_text(value: float) -> str:
    """Write a number for a sentence: 4 significant digits, plain notation where it is short.

    Unit: that of ``value``.
    """
    return f"{value:.4g}"
