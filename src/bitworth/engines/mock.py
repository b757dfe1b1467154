"""A full engine with a scripted clock: statistics, study and resume are tested on it.

It computes outputs with ONNX's reference evaluator, so quality is real; its times come from a
script, so that a test knows the truth. Faults (a refused build, a crash, a hang, a wrong output)
are scripted too, by variant label.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import (
    Arrays,
    EngineError,
    EngineInfo,
    EngineOptions,
    FormatSupport,
    LayerTime,
    LoweredModel,
    Plan,
    Runner,
)
from bitworth.engines.plan_file import write_file

Fault = Literal["build", "crash_build", "crash_run", "raise_run", "hang_run", "nan", "backwards"]


@dataclass(frozen=True)
class ClockScript:
    """Scripted time of one call of each variant.

    Attributes:
        base_ns: time of the baseline.
        ratios: time over the baseline's, by variant label; 1 where none is given.
        sigma: standard deviation of the log of a sample.
        spike_share, spike_ratio: share of samples that take ``spike_ratio`` times as long.
        session_bias: standard deviation of a bias that one session gives to one variant.
        faults: scripted faults by variant label.
        fault_after: samples that a run fault lets pass first.
        seed: seed of all of it.
    """

    base_ns: float = 1e6
    ratios: Mapping[str, float] = field(default_factory=dict)
    sigma: float = 0.01
    spike_share: float = 0.0
    spike_ratio: float = 3.0
    session_bias: float = 0.0
    faults: Mapping[str, Fault] = field(default_factory=dict)
    fault_after: int = 0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ClockScript:
        """A script from JSON; unknown keys are a ``TypeError``."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """The script as JSON."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)})


class ScriptedClock:
    """Draws the samples of one variant in one process."""

    def __init__(self, script: ClockScript, label: str, process: str) -> None:
        key = sha256(f"{script.seed}/{label}/{process}".encode()).digest()
        self._random = np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
        self._script = script
        self._center = np.log(script.base_ns * script.ratios.get(label, 1.0))
        self._center += script.session_bias * self._random.standard_normal()

    def draw(self, count: int) -> list[int]:
        """``count`` samples in ns."""
        script = self._script
        log = self._center + script.sigma * self._random.standard_normal(count)
        log += np.log(script.spike_ratio) * (self._random.random(count) < script.spike_share)
        return [max(1, round(float(v))) for v in np.exp(log)]


class MockRunner:
    """Runs the model in ONNX's reference evaluator and draws its times."""

    def __init__(self, model: Path, label: str, precision: str, script: ClockScript) -> None:
        self._model = model
        self._precision = precision
        self._fault = script.faults.get(label)
        self._left = script.fault_after
        # The controller names each worker process, so that two of one plan draw different noise.
        self._clock = ScriptedClock(script, label, os.environ.get("BITWORTH_WORKER", ""))
        self._evaluator: Any = None
        self._outputs: dict[str, NDArray[np.generic]] = {}

    def bind(self, inputs: Arrays) -> None:
        """Keep ``inputs``."""
        self._inputs = dict(inputs)

    def run(self) -> None:
        """Evaluate the model once."""
        from onnx.reference import ReferenceEvaluator

        self._maybe_fail()
        if self._evaluator is None:
            self._evaluator = ReferenceEvaluator(str(self._model))
        values = self._evaluator.run(None, self._inputs)
        self._outputs = dict(zip(self._evaluator.output_names, values, strict=True))

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run, all NaN under the ``nan`` fault."""
        if self._fault == "nan":
            return {k: np.full_like(v, np.nan) for k, v in self._outputs.items()}
        return dict(self._outputs)

    def time_block(self, iterations: int) -> list[int]:
        """Scripted times."""
        self._maybe_fail()
        samples = self._clock.draw(iterations)
        return [-s for s in samples] if self._fault == "backwards" else samples

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """One layer a node, the time shared out by the nodes' order."""
        import onnx

        nodes = onnx.load(self._model).graph.node
        total = self._clock.draw(calls)
        weights = np.arange(len(nodes), 0, -1, dtype=np.float64)
        shares = weights / weights.sum() * float(np.mean(total))
        return [
            LayerTime(n.name, n.op_type, "mock", "fp32", float(t), (n.name,))
            for n, t in zip(nodes, shares, strict=True)
        ]

    def precision(self) -> str:
        """The precision that the plan was built with."""
        return self._precision

    def _maybe_fail(self) -> None:
        if self._fault not in ("crash_run", "raise_run", "hang_run"):
            return
        if self._left > 0:
            self._left -= 1
            return
        if self._fault == "crash_run":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._fault == "hang_run":
            time.sleep(3600)
        raise RuntimeError("scripted failure")


@dataclass(frozen=True)
class MockPlan:
    """A model's bytes with the label and the precision they were built under."""

    model: bytes
    label: str
    precision: str
    options: EngineOptions
    path: Path | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the model."""
        return len(self.model)

    @property
    def note(self) -> str:
        """Nothing unusual."""
        return ""

    def save(self, path: Path) -> None:
        """Write the model, and the label beside it."""
        write_file(_label_file(path), self.label.encode())
        write_file(path, self.model)

    def load(self) -> Runner:
        """A runner over the saved file.

        Raises:
            EngineError: the plan was never saved.
        """
        if self.path is None:
            raise EngineError("mock: save the plan before loading it")
        script = ClockScript.parse(self.options.extra.get("script", "{}"))
        return MockRunner(self.path, self.label, self.precision, script)

    def layers(self) -> tuple[str, ...]:
        """Operator types of the model's nodes."""
        import onnx

        return tuple(n.op_type for n in onnx.load_from_string(self.model).graph.node)


class Mock:
    """The mock engine."""

    name = "mock"

    def probe(self) -> EngineInfo:
        """Fixed facts: fp32 and int8 native, fp8 emulated, bf16 native."""
        return EngineInfo(
            name=self.name,
            version="1",
            device="scripted clock",
            formats={
                "fp32": FormatSupport("native", ""),
                "bf16": FormatSupport("native", "computed in fp32"),
                "int8": FormatSupport("native", ""),
                "fp8_e4m3": FormatSupport("emulated", "the mock has no FP8"),
            },
        )

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """Take the model as it is, unless the script says that the build fails."""
        fault = ClockScript.parse(options.extra.get("script", "{}")).faults.get(lowered.label)
        if fault == "build":
            raise EngineError("mock: scripted build failure")
        if fault == "crash_build":
            os.kill(os.getpid(), signal.SIGSEGV)
        return MockPlan(lowered.path.read_bytes(), lowered.label, lowered.precision, options)

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``."""
        label = _label_file(path).read_text(encoding="utf-8")
        return MockPlan(path.read_bytes(), label, precision, options, path)


def _label_file(path: Path) -> Path:
    return path.with_name(path.name + ".label")


ENGINE = Mock()
