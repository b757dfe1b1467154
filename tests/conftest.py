"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from bitworth.measurement.device_lock import TEST_FOLDER

# A deadline asserts a wall time, which a shared machine cannot keep.
settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True, scope="session")
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes that they start, are no rivals of a real measurement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEST_FOLDER, str(tmp_path_factory.mktemp("locks")))
        yield
