from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from bitworth.engines import registry
from bitworth.engines.base import EngineOptions, LoweredModel, Runner
from bitworth.engines.mock import ENGINE, ClockScript
from bitworth.measurement.timing import SessionSamples, TimedPlan, TimingTarget
from bitworth.measurement.worker import InvalidRun, Session
from bitworth.measurement.workers import WorkerFailed
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.record.timing_verdicts import judge_job
from bitworth.verdict import Comparison, TimingRules

Write = Callable[..., Path]
Scripted = Callable[[ClockScript], EngineOptions]
PlanOf = Callable[..., Path]
Judge = Callable[[list[SessionSamples], tuple[str, ...]], dict[str, Comparison]]
FakeEngine = Callable[[Mapping[str, Callable[[], Runner]]], tuple[TimingTarget, list[TimedPlan]]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a model given as ONNX text, with initializers by name; the text's header is added."""

    def make(
        graph: str, weights: Mapping[str, NDArray[np.generic]] | None = None, name: str = "m.onnx"
    ) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{graph}')
        for key, array in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(array, key))
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return make


@pytest.fixture
def double(write: Write) -> Path:
    """y = x + x."""
    return write("g (float[N] x) => (float[N] y) { y = Add(x, x) }")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def scripted() -> Scripted:
    """The mock engine's options with a clock script."""
    return lambda script: EngineOptions(threads=1, extra={"script": script.dump()})


@pytest.fixture
def plan_of(double: Path, tmp_path: Path) -> PlanOf:
    """A saved plan of the mock engine under a label."""

    def make(label: str) -> Path:
        path = tmp_path / "plans" / label / "plan.bin"
        ENGINE.build(LoweredModel(double, label), EngineOptions(threads=1)).save(path)
        return path

    return make


class InProcess:
    """A worker that runs in this process: what is timed is a runner of the test."""

    def __init__(self) -> None:
        self._session = Session()
        self.peak = 0
        self.asked: list[str] = []

    @property
    def pid(self) -> int:
        return os.getpid()

    def ask(
        self,
        op: str,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float,
        **request: object,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        self.asked.append(op)
        try:
            return self._session.handle({"op": op, **request}, dict(arrays or {}))
        except InvalidRun as error:
            raise WorkerFailed("invalid", str(error)) from None
        except RuntimeError as error:
            raise WorkerFailed("raised", str(error)) from None

    def stop(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def peak_resident_bytes(self) -> int | None:
        return self.peak


@contextmanager
def in_process(_index: int) -> Iterator[InProcess]:
    """Start a plan's worker in this process."""
    yield InProcess()


@pytest.fixture
def fake_engine(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine whose plans are named runners of the test, with a target and the plans."""

    def make(runners: Mapping[str, Callable[[], Runner]]) -> tuple[TimingTarget, list[TimedPlan]]:
        def open_plan(path: Path, precision: str, options: EngineOptions) -> Any:
            return SimpleNamespace(load=runners[path.name])

        module = ModuleType("engine_of_this_test")
        module.ENGINE = SimpleNamespace(name="fake", probe=dict, open=open_plan)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(registry.MODULES, "fake", module.__name__)
        inputs = {"x": np.array([1, 2, 3], np.float32)}
        target = TimingTarget("fake", EngineOptions(threads=1), inputs, log)
        return target, [TimedPlan(label, tmp_path / label, "fp32") for label in runners]

    return make


@pytest.fixture
def judge() -> Judge:
    """Verdicts on sessions by the record's rules, by variant."""

    def make(found: list[SessionSamples], labels: tuple[str, ...]) -> dict[str, Comparison]:
        sessions = []
        for one in found:
            tree = asdict(one)
            load = tree.pop("interference")
            tree["samples_ns"] = tree.pop("samples")
            sessions.append(SessionFacts(**tree, **load, wall_ns=1))
        job = TimingJob(
            labels=labels, seed=0, lead_in=1, iterations=5, call_ns=1, minimum_rounds=4,
            sessions=tuple(sessions), stopped="",
        )  # fmt: skip
        rules = TimingRules(min_sessions=2)
        return {c.variant: c for c in judge_job(job, rules, 1, {}).comparisons}

    return make
