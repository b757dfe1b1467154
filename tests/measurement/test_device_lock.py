from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bitworth.errors import UserError
from bitworth.measurement.device_lock import device_lock, hold, lock_path

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
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
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


def test_names_are_safe() -> None:
    assert lock_path("NVIDIA H200/0").name == "bitworth-NVIDIA-H200-0.lock"
    assert lock_path("../../etc/x").parent == Path(tempfile.gettempdir())
