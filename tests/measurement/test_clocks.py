from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.measurement.clocks import CpuReading, Interference, interference, read_cpu

seconds = st.none() | st.floats(0, 1e6)
readings = st.builds(CpuReading, st.floats(0, 1e6), seconds, seconds, seconds)


@given(readings, readings)
@settings(max_examples=50, deadline=None)
def test_shares_lie_between_0_and_1(before: CpuReading, after: CpuReading) -> None:
    found = interference(before, after)
    for share in (found.steal_ratio, found.others_ratio):
        assert share is None or 0 <= share <= 1


def test_shares_of_known_readings() -> None:
    cores = os.cpu_count() or 1
    before = CpuReading(100.0, 50.0, 5.0, 20.0)
    after = CpuReading(110.0, 50.0 + 6 * cores, 5.0 + cores, 20.0 + 4 * cores)
    assert interference(before, after) == Interference(0.1, 0.2)
    assert interference(before, before) == Interference(None, None)
    assert interference(before, replace(after, ours_s=None)).others_ratio is None
    assert interference(before, replace(after, steal_s=None)) == Interference(None, 0.2)


def test_this_process_is_read() -> None:
    before = read_cpu([])
    sum(i * i for i in range(2_000_000))
    after = read_cpu([os.getpid()])
    if before.ours_s is not None:  # where /proc is
        assert after.ours_s is not None
        assert after.ours_s > before.ours_s
    assert after.wall_s > before.wall_s


def test_a_process_that_ended_leaves_its_time_unknown() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    reading = read_cpu([child.pid])
    assert reading.ours_s is None
    assert (reading.busy_s is None) == (reading.steal_s is None)
