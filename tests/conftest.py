"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest
from hypothesis import HealthCheck, settings

from bitworth.measurement.device_lock import TEST_FOLDER
from bitworth.record.pictures import Pictures
from bitworth.study.roofline_cache import CACHE
from tests.forked_worker import start

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
    """Tests, and the processes that they start, are no rivals of a real measurement, and leave its
    cache alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEST_FOLDER, str(tmp_path_factory.mktemp("locks")))
        patch.setenv(CACHE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def fork_server() -> None:
    """What forks workers, started before a test moves the temporary folder."""
    forkserver.ensure_running()


@pytest.fixture
def quick_studies(
    request: pytest.FixtureRequest, fork_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Studies leave out what most tests do not look at; ``whole`` ones leave out nothing.

    Workers of the mock are forked, which takes a tenth of the time of a fresh interpreter; the
    limits of the scripted device are not measured, and no picture is drawn.
    """
    if request.node.get_closest_marker("whole") is not None:
        return
    monkeypatch.setattr("bitworth.measurement.workers.start_process", start)
    monkeypatch.setattr("bitworth.study.cell_run.device_limits", lambda *_: (None, {}))
    blank = Pictures("<svg></svg>", None)
    monkeypatch.setattr("bitworth.study.outputs.draw", lambda _: blank)
