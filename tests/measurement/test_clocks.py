from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.measurement import clocks
from bitworth.measurement.clocks import (
    CpuClocks,
    CpuReading,
    Interference,
    NoClocks,
    as_columns,
    interference,
    machine_clocks,
    read_cpu,
)

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


def test_a_process_counts_once() -> None:
    """Plans may share a process, and even that of the controller."""
    once = read_cpu([]).ours_s
    twice = read_cpu([os.getpid()] * 9).ours_s
    if once is not None and twice is not None:
        assert once <= twice < 2 * once


def test_a_process_that_ended_leaves_its_time_unknown() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    reading = read_cpu([child.pid])
    assert reading.ours_s is None
    assert (reading.busy_s is None) == (reading.steal_s is None)


def test_the_time_of_another_process_is_finer_than_a_tick() -> None:
    """Its clock counts ns: /proc/PID/stat would give steps of 10 ms."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        deadline = time.monotonic() + 60
        while (found := read_cpu([child.pid]).ours_s) is not None:
            if found * 100 % 1 or time.monotonic() > deadline:
                break
        child.kill()
    assert found is None or found * 100 % 1


def reading_of(values: list[CpuReading], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "read_cpu", lambda _: values.pop(0))


def test_shares_of_a_block_keep_their_sign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cut off at 0, the noise of a tick would become a load that nobody made."""
    cores = os.cpu_count() or 1
    before = CpuReading(100.0, 50.0, 5.0, 20.0)
    after = CpuReading(101.0, 50.0 + 0.5 * cores, 5.0 + 0.25 * cores, 20.0 + 0.75 * cores)
    reading_of([before, before, after], monkeypatch)  # the first one is to see whether it can
    seen = CpuClocks(tmp_path).begin(1)()
    assert (seen["steal_ratio"], seen["others_ratio"]) == (0.25, -0.25)


def files(root: Path, *khz: str) -> Path:
    for number, text in enumerate(khz):
        folder = root / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{text}\n", encoding="ascii")
    return root


def info(root: Path, *mhz: float, flags: str = "fpu aperfmperf") -> Path:
    text = "\n".join(
        f"processor\t: {n}\nflags\t\t: {flags}\ncpu MHz\t\t: {value:.3f}\n"
        for n, value in enumerate(mhz)
    )
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text(text, encoding="ascii")
    return root


@pytest.fixture
def on_cpus_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


@pytest.mark.usefixtures("on_cpus_0_and_1")
def test_the_frequency_is_the_mean_of_the_usable_cpus(tmp_path: Path) -> None:
    seen = CpuClocks(files(tmp_path, "3000000", "2000000", "999"))
    assert seen.begin(os.getpid())()["cpu_mhz"] == 2500
    assert "cpu_mhz" not in seen.not_observable
    # The system's files do vary: one value for a whole session is a clock that was held.
    assert seen.begin(os.getpid())()["cpu_mhz"] == 2500
    assert "cpu_mhz" not in seen.not_observable


@pytest.mark.usefixtures("on_cpus_0_and_1")
def test_a_cpu_that_went_offline_is_left_out(tmp_path: Path) -> None:
    seen = CpuClocks(files(tmp_path, "3000000", "2000000"))
    (tmp_path / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq").unlink()
    assert seen.begin(os.getpid())()["cpu_mhz"] == 3000


@pytest.mark.usefixtures("on_cpus_0_and_1")
def test_cpuinfo_counts_only_where_it_varies(tmp_path: Path) -> None:
    seen = CpuClocks(info(tmp_path, 3000, 2000, 1000))
    assert seen.begin(os.getpid())()["cpu_mhz"] == 2500
    assert seen.not_observable["cpu_mhz"] == "the frequency in /proc/cpuinfo never changed"
    info(tmp_path, 3000, 2100, 1000)
    assert seen.begin(os.getpid())()["cpu_mhz"] == 2550
    assert "cpu_mhz" not in seen.not_observable


@pytest.mark.usefixtures("on_cpus_0_and_1")
def test_a_virtual_machine_shows_no_frequency(tmp_path: Path) -> None:
    seen = CpuClocks(info(tmp_path, 2445.402, 2445.402, flags="fpu"))
    assert seen.begin(os.getpid())()["cpu_mhz"] is None
    assert "the frequency in /proc/cpuinfo is a constant" in seen.not_observable["cpu_mhz"]


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "read_cpu", lambda _: CpuReading(0.0, None, None, None))
    seen = CpuClocks(tmp_path)
    assert set(seen.not_observable) == {"steal_ratio", "others_ratio", "cpu_mhz"}
    assert set(seen.begin(1)().values()) == {None}


def test_no_clocks() -> None:
    assert NoClocks().begin(1)() == {}
    assert NoClocks().not_observable == {}


def test_a_gpu_joins_the_cpu_and_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Gpu:
        not_observable: Mapping[str, str] = {"power_w": "none"}

        def begin(self, pid: int) -> object:
            order.append("gpu begins")

            def end() -> dict[str, float]:
                order.append("gpu ends")
                return {"sm_mhz": 1980.0}

            return end

    @contextmanager
    def opened(index: int, pids: list[int]) -> Iterator[Gpu]:
        order.append(f"gpu {index} for {pids}")
        yield Gpu()

    real = read_cpu
    monkeypatch.setattr(clocks, "open_gpu", opened)
    with machine_clocks(3, [7]) as seen:
        monkeypatch.setattr(clocks, "read_cpu", lambda pids: order.append("cpu") or real(pids))
        values = seen.begin(os.getpid())()
    assert order == ["gpu 3 for [7]", "cpu", "gpu begins", "gpu ends", "cpu"]
    assert values["sm_mhz"] == 1980
    assert "others_ratio" in values
    assert seen.not_observable["power_w"] == "none"


def test_columns() -> None:
    rows = [[{"a": 1.0, "b": None}, {}], [{"a": None, "b": None}, {"a": 2.0, "c": 3.0}]]
    columns, reasons = as_columns(rows, {"c": "a constant"})
    assert columns == {"a": ((1.0, None), (None, 2.0))}
    assert reasons == {"c": "a constant", "b": "no block of the session showed it"}
    assert as_columns([], {}) == ({}, {})
