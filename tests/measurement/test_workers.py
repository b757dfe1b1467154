from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitworth.engines import registry
from bitworth.engines.base import EngineError, EngineOptions
from bitworth.engines.mock import ClockScript
from bitworth.engines.plan_file import plan_sha256
from bitworth.measurement.plans import build_plan, load_plan, runner
from bitworth.measurement.worker import Session
from bitworth.measurement.workers import Worker, WorkerFailed

Scripted = Callable[[ClockScript], EngineOptions]
PlanOf = Callable[..., Path]
X = {"x": np.array([1, 2, 3], np.float32)}
FAR = 120.0


def state(pid: int) -> str:
    """The process's state letter; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def wait_for(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def build(worker: Worker, model: Path, label: str, options: EngineOptions) -> dict[str, Any]:
    out = model.parent / "built" / label / "plan.bin"
    return build_plan(worker, "mock", model, label, "fp32", options, out)


def test_a_worker_answers(double: Path, log: Path, scripted: Scripted) -> None:
    options = scripted(ClockScript(base_ns=5e5))
    plan = double.parent / "built" / "v" / "plan.bin"
    with Worker("0/0", log) as worker:
        probe, _ = worker.ask("probe", timeout_s=FAR, engine="mock")
        assert probe["formats"]["fp8_e4m3"] == {
            "state": "emulated",
            "reason": "the mock has no fp8_e4m3",
        }
        built = build(worker, double, "v", options)
        assert built["size_bytes"] == double.stat().st_size
        assert built["sha256"] == plan_sha256(plan)
        assert built["layers"] == ["Add"]
        assert built["build_ns"] > 0
        with pytest.raises(WorkerFailed, match="refused: no plan is loaded"):
            runner(worker)(X)
        loaded = load_plan(worker, "mock", plan, "bf16", options)
        assert loaded["precision"] == "bf16"
        assert loaded["load_ns"] > 0
        assert loaded["resident_before_bytes"] > 1 << 20
        assert runner(worker)(X)["y"].tolist() == [2, 4, 6]
        block, _ = worker.ask("block", timeout_s=FAR, lead_in=2, iterations=3)
        assert len(block["samples"]) == 3
        layers, _ = worker.ask("profile", timeout_s=FAR, calls=2)
        assert [layer["op"] for layer in layers["layers"]] == ["Add"]
        assert (worker.peak_resident_bytes() or 0) > loaded["resident_before_bytes"] // 2
    assert state(worker.pid) == ""


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_real_engines_answer(double: Path, log: Path, engine: str) -> None:
    options = EngineOptions(threads=1)
    plan = double.parent / "built" / "plan.bin"
    with Worker("0/0", log) as worker:
        build_plan(worker, engine, double, "v", "fp32", options, plan)
        assert load_plan(worker, engine, plan, "fp32", options)["precision"] == "fp32"
        worker.ask("bind", X, timeout_s=FAR)
        block, _ = worker.ask("block", timeout_s=FAR, lead_in=1, iterations=3)
        assert min(block["samples"]) > 0
        run = runner(worker)
        assert run(X)["y"].tolist() == [2, 4, 6]
        assert run({"x": np.array([5, 6, 7], np.float32)})["y"].tolist() == [10, 12, 14]
        layers, _ = worker.ask("profile", timeout_s=FAR, calls=2)
        assert layers["layers"]


def test_what_an_engine_refuses_or_raises(
    double: Path, log: Path, plan_of: PlanOf, scripted: Scripted
) -> None:
    script = ClockScript(faults={"bad": "build", "sour": "raise_run"})
    with Worker("0/0", log) as worker:
        with pytest.raises(WorkerFailed) as failed:
            build(worker, double, "bad", scripted(script))
        assert (failed.value.kind, failed.value.detail) == (
            "refused",
            "mock: scripted build failure",
        )
        load_plan(worker, "mock", plan_of("sour"), "fp32", scripted(script))
        with pytest.raises(WorkerFailed, match="scripted failure") as failed:
            runner(worker)(X)
        assert (failed.value.kind, failed.value.detail) == (
            "raised",
            "RuntimeError: scripted failure",
        )
        with pytest.raises(WorkerFailed, match="unknown command dance") as failed:
            worker.ask("dance", timeout_s=FAR)
        assert failed.value.kind == "refused"
        with pytest.raises(WorkerFailed, match="raised: TypeError: "):
            load_plan(
                worker, "mock", plan_of("v"), "fp32", EngineOptions(1, extra={"script": "[]"})
            )
        # It goes on after all of that.
        load_plan(worker, "mock", plan_of("fine"), "fp32", scripted(script))
        assert runner(worker)(X)["y"].tolist() == [2, 4, 6]


def test_a_crash_while_running(log: Path, plan_of: PlanOf, scripted: Scripted) -> None:
    script = ClockScript(faults={"v": "crash_run"}, fault_after=1)
    with Worker("0/0", log) as worker:
        load_plan(worker, "mock", plan_of("v"), "fp32", scripted(script))
        worker.ask("block", timeout_s=FAR, lead_in=0, iterations=3)
        with pytest.raises(WorkerFailed) as failed:
            worker.ask("block", timeout_s=FAR, lead_in=0, iterations=3)
        assert failed.value.kind == "crashed"
        assert failed.value.detail == "block: the worker process died of SIGSEGV"
        assert str(failed.value) == "crashed: block: the worker process died of SIGSEGV"
        with pytest.raises(WorkerFailed, match="SIGSEGV"):
            worker.ask("block", timeout_s=FAR, lead_in=0, iterations=3)
        worker.stop()
        worker.resume()
        assert worker.peak_resident_bytes() is None


def test_a_crash_while_building(double: Path, log: Path, scripted: Scripted) -> None:
    script = ClockScript(faults={"v": "crash_build"})
    with Worker("0/0", log) as worker, pytest.raises(WorkerFailed, match="SIGSEGV") as failed:
        build(worker, double, "v", scripted(script))
    assert failed.value.kind == "crashed"
    assert not (double.parent / "built" / "v").exists()


def test_an_exit_tells_its_code(log: Path) -> None:
    with Worker("0/0", log) as worker:
        worker.ask("probe", timeout_s=FAR, engine="mock")
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="probe: the worker process died of SIGKILL"):
            worker.ask("probe", timeout_s=FAR, engine="mock")


def test_a_hang_ends(log: Path, plan_of: PlanOf, scripted: Scripted) -> None:
    script = ClockScript(faults={"v": "hang_run"})
    with Worker("0/0", log) as worker:
        load_plan(worker, "mock", plan_of("v"), "fp32", scripted(script))
        with pytest.raises(WorkerFailed) as failed:
            worker.ask("block", timeout_s=0.2, lead_in=0, iterations=1)
        assert failed.value.kind == "timed out"
        assert failed.value.detail == "block: no answer in 0 s"
        assert state(worker.pid) == ""
        with pytest.raises(WorkerFailed, match="crashed"):
            worker.ask("block", timeout_s=FAR, lead_in=0, iterations=1)


def test_stop_and_resume(log: Path, plan_of: PlanOf, scripted: Scripted) -> None:
    with Worker("0/0", log) as worker:
        load_plan(worker, "mock", plan_of("v"), "fp32", scripted(ClockScript()))
        worker.stop()
        assert wait_for(lambda: state(worker.pid) == "T")
        worker.resume()
        assert runner(worker)(X)["y"].tolist() == [2, 4, 6]
        worker.stop()
        assert wait_for(lambda: state(worker.pid) == "T")
    assert state(worker.pid) == ""
    worker.close()  # once more does no harm


CONTROLLER = """
import sys
from pathlib import Path
from bitworth.measurement.workers import Worker
workers = [Worker(f"0/{i}", Path(sys.argv[1])) for i in range(3)]
for worker in workers:
    worker.ask("probe", timeout_s=120, engine="mock")
workers[0].stop()
workers[1].stop()
print(*(w.pid for w in workers), flush=True)
sys.stdin.read()
"""


def test_a_killed_controller_leaves_no_worker(log: Path) -> None:
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with controller:
        assert controller.stdout is not None
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 3
        assert wait_for(lambda: [state(pid) for pid in pids[:2]] == ["T", "T"])
        controller.kill()
        controller.wait()
    # A zombie is dead: where process 1 reaps nobody, it stays.
    assert wait_for(lambda: {state(pid) for pid in pids} <= {"", "Z"})


def test_a_worker_whose_parent_is_not_its_controller_ends() -> None:
    command = [sys.executable, "-m", "bitworth.measurement.worker", "0", "0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr == b""


def test_a_file_in_the_current_folder_is_not_the_library(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with Worker("0/0", log) as worker:
        worker.ask("probe", timeout_s=FAR, engine="mock")


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MODULES, "absent", "bitworth.engines.no_such_engine")
    with pytest.raises(EngineError, match="absent is not installed: No module named"):
        Session().handle({"op": "probe", "engine": "absent"}, {})


def test_an_engine_whose_library_is_missing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is hidden from a real worker by a package of its name that does not import."""
    hidden = tmp_path / "path" / "openvino"
    hidden.mkdir(parents=True)
    text = "raise ImportError('no library here')"
    (hidden / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    with Worker("0/0", log) as worker:
        with pytest.raises(WorkerFailed) as failed:
            worker.ask("probe", timeout_s=FAR, engine="openvino")
        assert failed.value.kind == "refused"
        assert failed.value.detail == "openvino is not installed: no library here"


def test_many_workers_at_once_end_together(log: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(f"0/{i}", log)) for i in range(3)]
        workers[1].stop()
    assert [state(w.pid) for w in workers] == [""] * 3
