from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bitworth.errors import UserError
from bitworth.measurement import device_lock as module
from bitworth.measurement.device_lock import TEST_FOLDER, device_lock, hold, lock_path

HOLD = """
import sys
from bitworth.measurement.device_lock import device_lock
with device_lock("cpu"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test lie in a folder of its own, in this process and in its children."""
    monkeypatch.setenv(TEST_FOLDER, str(tmp_path))


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        # A temporary folder of one's own is no way around it.
        monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("private")))
        monkeypatch.setattr(tempfile, "tempdir", None)
        with pytest.raises(UserError) as refused, device_lock("cpu"):
            pytest.fail("the lock is held")
        assert str(refused.value) == (
            "cpu: another timing run is on this device and the two would disturb each other "
            f"(process {first.pid}); wait for it to end"
        )
        with device_lock("gpu:0"):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
    with device_lock("cpu"):
        assert lock_path("cpu").read_text(encoding="ascii") == f"{os.getpid()}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bitworth-cpu.lock",
        "bitworth-gpu-0.lock",
    ]


def test_a_lock_is_released_after_an_error() -> None:
    with pytest.raises(ValueError, match="stop"), device_lock("cpu"):
        raise ValueError("stop")
    with device_lock("cpu"):
        pass


def test_a_worker_does_not_inherit_the_lock() -> None:
    with device_lock("cpu"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, device_lock("cpu"):  # though the child lives
        child.kill()


def test_every_user_may_open_it() -> None:
    before = os.umask(0o077)
    try:
        with device_lock("cpu"):
            assert lock_path("cpu").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me", encoding="utf-8")
    lock_path("cpu").symlink_to(target)
    with pytest.raises(UserError, match="cannot be opened"), device_lock("cpu"):
        pytest.fail("followed")
    assert target.read_text(encoding="utf-8") == "keep me"


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" / "lock"
    with (
        pytest.raises(UserError, match=r"lock: cannot be opened \(Not a directory\)") as refused,
        hold(path, "busy"),
    ):
        pytest.fail("held")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_removed_while_it_is_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    calls = []

    def remove_first(handle: int, how: int) -> None:
        if not calls:
            path.unlink()
        calls.append(handle)
        real(handle, how)

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", remove_first)
    with hold(path, "busy"):
        assert len(calls) == 2
        with (
            pytest.raises(UserError, match=f"busy \\(process {os.getpid()}\\)"),
            hold(path, "busy"),
        ):
            pytest.fail("two hold it")


def test_the_folder_is_the_same_for_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TEST_FOLDER)
    closed, open_, missing = tmp_path / "closed", tmp_path / "open", tmp_path / "missing"
    closed.mkdir(mode=0o755)
    open_.mkdir()
    open_.chmod(0o1777)
    # This user may write into the first one; others may not, and would go elsewhere.
    monkeypatch.setattr(module, "_SHARED", (missing, closed, open_))
    assert lock_path("cpu") == open_ / "bitworth-cpu.lock"
    monkeypatch.setattr(module, "_SHARED", (missing, closed))
    assert lock_path("cpu").parent == Path(tempfile.gettempdir())


def test_names_are_safe() -> None:
    assert lock_path("NVIDIA H200/0").name == "bitworth-NVIDIA-H200-0.lock"
    assert lock_path("../../etc/x").parent == Path(os.environ[TEST_FOLDER])
