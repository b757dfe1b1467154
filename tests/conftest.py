"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A deadline asserts a wall time, which a shared machine cannot keep.
settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")
