"""Two studies at once on one device, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start(folder: Any, output: str, private: Path) -> subprocess.Popen[str]:
    """A study through the command line, by a user whose temporary folder is their own."""
    private.mkdir(exist_ok=True)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bitworth.cli.main",
            "study",
            str(folder.study),
            "--json",
            "-o",
            output,
        ],
        cwd=folder.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120", "TMPDIR": str(private)},
    )


def sessions(folder: Any, output: str) -> list[Path]:
    return list((folder.root / output / ".bitworth").glob("*/timing/*-job0-*/*.json"))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        time.sleep(0.02)
    raise AssertionError("it never came so far")


def test_the_second_is_refused_and_the_first_undisturbed(folder: Any) -> None:
    folder.write({"ratios": {"int8 all": 0.8}}, min_sessions=4, max_sessions=4)
    first = start(folder, "first", folder.root / "a")
    wait_for(lambda: len(sessions(folder, "first")) >= 1, first)
    # The scripted clock does not see that it waits here, in the middle of a session.
    first.send_signal(signal.SIGSTOP)
    second = start(folder, "second", folder.root / "b")
    out, told = second.communicate(timeout=300)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 2
    assert out == ""
    refusals = [line for line in told.splitlines() if line.startswith("bitworth: ")]
    assert refusals == [
        "bitworth: cpu: another timing run is on this device and the two would disturb each other "
        f"(process {first.pid}); wait for it to end"
    ]
    assert "Traceback" not in told
    assert not sessions(folder, "second")
    assert not list((folder.root / "second").glob("small/**/*.json"))

    out, told = first.communicate(timeout=300)
    assert first.returncode == 0, told
    record = json.loads(out)
    assert [path.suffix for path in (folder.root / "first").glob("small/*/*.json")] == [".json"]
    job = record["facts"]["cells"][0]["jobs"][0]
    assert [s["session"] for s in job["sessions"]] == list(range(4))
    assert all(not s["failures"] for s in job["sessions"])
    found = {v["variant"]: v["comparison"] for v in record["derived"]["cells"][0]["variants"]}
    assert found["int8 all"]["verdict"] == "faster"

    # Once the first has ended, the second one goes on with what it had built.
    again = start(folder, "second", folder.root / "b")
    out, told = again.communicate(timeout=300)
    assert again.returncode == 0, told
    assert json.loads(out)["derived"]["decision"]["variant"] == "int8 all"


def test_of_two_that_start_together_one_times(folder: Any) -> None:
    # Sessions for minutes: neither can have ended before the other wants to begin.
    folder.write(min_sessions=60, max_sessions=60)
    both = [start(folder, name, folder.root / name) for name in ("one", "two")]
    for _ in range(6000):
        if any(process.poll() is not None for process in both):
            break
        time.sleep(0.02)
    ended = [process for process in both if process.poll() is not None]
    running = [process for process in both if process not in ended]
    assert (len(ended), len(running)) == (1, 1)
    _, told = ended[0].communicate()
    assert ended[0].returncode == 2, told
    assert f"(process {running[0].pid}); wait for it to end" in told
    running[0].kill()
    running[0].communicate()
