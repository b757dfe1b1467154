"""A study as a real process that is killed, interrupted, or runs out of disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.record.store import read_record


def start(
    folder: Any, *args: str, preexec_fn: Callable[[], object] | None = None, **options: Any
) -> subprocess.Popen[str]:
    def prepared() -> None:
        # Tests that run in the background of a shell ignore SIGINT, and hand that on.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if preexec_fn is not None:
            preexec_fn()

    return subprocess.Popen(
        [sys.executable, "-m", "bitworth.cli.main", "study", str(folder.study), *args],
        cwd=folder.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        preexec_fn=prepared,
        **options,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if condition():
            return
        if process.poll() is not None:
            pytest.fail(f"it ended too early: {process.communicate()}")
        time.sleep(0.01)
    pytest.fail("it never came so far")


def sessions(folder: Any) -> dict[Path, int]:
    found = (folder.root / "studies" / ".bitworth").glob("*/timing/*-job0-*/*.json")
    return {path: path.stat().st_mtime_ns for path in found}


def workers_of(pid: int) -> set[int]:
    """Process ids of the workers that name ``pid`` as their controller."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bitworth.measurement.worker" in words and str(pid).encode() in words:
            found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_resumes_after_the_last_finished_session(folder: Any, number: signal.Signals) -> None:
    # The baseline is slow enough, in real time, for a signal to come between two sessions.
    folder.write(min_sessions=5)
    process = start(folder)
    wait_for(lambda: len(sessions(folder)) >= 2, process)
    assert workers_of(process.pid) or len(sessions(folder)) >= 2
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    done = sessions(folder)
    deadline = time.monotonic() + 20
    while workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers_of(process.pid), "the controller left workers behind"
    partial = list((folder.root / "studies").glob("small/*/*.partial.json"))
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert not partial
    else:
        assert process.returncode == 130
        assert "interrupted; run the same command again to resume" in told
        assert read_record(partial[0]).facts.cells[0].jobs[0].stopped == "interrupted"

    kept = {path: path.read_bytes() for path in done}
    second = start(folder, "--json")
    out, told = second.communicate(timeout=300)
    assert second.returncode == 0, told
    record = json.loads(out)
    found = record["facts"]["cells"][0]["jobs"][0]["sessions"]
    assert [s["session"] for s in found] == list(range(len(found)))
    for path, content in kept.items():
        assert found[int(path.stem)] == json.loads(content)
    assert not list((folder.root / "studies").glob("small/*/*.partial.json"))


def test_a_resumed_study_says_so(folder: Any) -> None:
    folder.write(min_sessions=4)
    process = start(folder)
    wait_for(lambda: len(sessions(folder)) >= 1, process)
    process.kill()
    process.communicate()
    count = len(sessions(folder))
    second = start(folder)
    _, told = second.communicate(timeout=300)
    assert "resuming the study of small" in told
    assert f"resuming after session {count}" in told


def test_two_at_once_on_one_device_are_refused(folder: Any) -> None:
    folder.write(min_sessions=60)
    process = start(folder)
    wait_for(lambda: len(sessions(folder)) >= 1, process)
    same = start(folder)
    _, told = same.communicate(timeout=60)
    assert same.returncode == 2
    assert "is running already" in told
    other = start(folder, "-o", "elsewhere")
    _, told = other.communicate(timeout=120)
    assert other.returncode == 2
    assert "another timing run is on this device" in told
    assert f"(process {process.pid})" in told
    assert process.poll() is None, "the first one is still at work"
    process.kill()
    process.communicate()


@pytest.mark.parametrize("limit", [600, 4_000, 40_000])
def test_a_full_disk_is_one_line_and_nothing_is_lost(folder: Any, limit: int) -> None:
    folder.write()
    full = start(
        folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, told = full.communicate(timeout=300)
    line = told.strip().splitlines()[-1]
    assert full.returncode == 2, told
    assert "Traceback" not in told
    assert line.startswith("bitworth: ")
    assert "cannot be written" in line
    assert not list((folder.root / "studies").glob("small/*/*"))
    done = start(folder, "--json")
    out, told = done.communicate(timeout=300)
    assert done.returncode == 0, told
    assert json.loads(out)["derived"]["cells"][0]["variants"]
