"""A full engine with a scripted clock: statistics, study and resume are tested on it.

It computes outputs with onnxruntime, unoptimized, so quality is real; its times come from a script
(``mock_clock``), so that a test knows the truth. Faults (a refused build, a crash, a hang, a wrong
output, inputs that a run overwrites) are scripted too, by variant label.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitworth.engines.base import (
    NOT_IN_ONNX,
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
from bitworth.engines.mock_clock import ClockScript, Fault, ScriptedClock
from bitworth.engines.plan_file import write_file

__all__ = ["ENGINE", "ClockScript", "Fault", "Mock", "MockPlan", "MockRunner"]


_NATIVE = ("int8", "int8 dynamic", "int8 weight_only", "int4")
_EMULATED = (
    "fp8_e4m3", "fp8_e4m3 weight_only", "fp8_e5m2", "fp8_e5m2 weight_only", "mxfp8",
    "mxfp8 weight_only", "nvfp4", "nvfp4 weight_only",
)  # fmt: skip


class MockRunner:
    """Runs the model as it is written and draws its times.

    It is alone in its process, so it has a scripted machine of its own, on which each call of
    ``time_block`` is a block: block noise and its autocorrelation show, but no drift, position or
    carry-over, which need runners that take turns on one machine.
    """

    def __init__(
        self, model: Path, label: str, precision: str, script: ClockScript, streams: int = 1
    ) -> None:
        self._model = model
        self._precision = precision
        self._fault = script.faults.get(label)
        self._left = script.fault_after
        # The controller names each worker process, so that two of one plan draw different noise.
        process = os.environ.get("BITWORTH_WORKER", "")
        self._clock = ScriptedClock(script, label, process, streams=streams)
        self._session: Any = None
        self._inputs: dict[str, NDArray[np.generic]] = {}
        self._outputs: dict[str, NDArray[np.generic]] = {}

    def bind(self, inputs: Arrays) -> None:
        """Copy ``inputs``, as to a device."""
        self._inputs = _copied(inputs)

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """What is bound now, copied; under the ``alias`` fault runs have changed it."""
        return _copied(self._inputs)

    def run(self) -> None:
        """Evaluate the model once."""
        self._maybe_fail()
        if self._session is None:
            self._session = _unoptimized(self._model)
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, self._inputs)
        self._outputs = dict(zip(names, values, strict=True))
        self._maybe_overwrite()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run, all NaN under the ``nan`` fault."""
        if self._fault == "nan":
            return {k: np.full_like(v, np.nan) for k, v in self._outputs.items()}
        return dict(self._outputs)

    def time_block(self, iterations: int, inner: int = 1) -> list[int]:
        """Scripted times, each the sum of ``inner`` draws."""
        self._maybe_fail()
        self._maybe_overwrite()
        self._clock.begin_block()
        draws = self._clock.draw(iterations * inner)
        samples = [sum(draws[i : i + inner]) for i in range(0, len(draws), inner)]
        return [-s for s in samples] if self._fault == "backwards" else samples

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """One layer a node, the time shared out by the nodes' order; 8 bits behind Q/DQ."""
        import onnx

        nodes = onnx.load(self._model).graph.node
        writers = {value: node for node in nodes for value in node.output if value}
        total = self._clock.draw(calls)
        weights = np.arange(len(nodes), 0, -1, dtype=np.float64)
        shares = weights / weights.sum() * float(np.mean(total))
        return [
            LayerTime(
                n.name, n.op_type, "mock", "fp32", float(t), (n.name,),
                format=_format(n, writers),
                inputs=tuple(dict.fromkeys(writers[v].name for v in n.input if v in writers)),
            )
            for n, t in zip(nodes, shares, strict=True)
        ]  # fmt: skip

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

    def _maybe_overwrite(self) -> None:
        if self._fault == "alias":
            for array in self._inputs.values():
                array.reshape(-1).view(np.uint8)[...] += 1


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
        return MockRunner(self.path, self.label, self.precision, script, self.options.streams)

    def layers(self) -> tuple[str, ...]:
        """Operator types of the model's nodes."""
        import onnx

        return tuple(n.op_type for n in onnx.load_from_string(self.model).graph.node)


class Mock:
    """The mock engine."""

    name = "mock"

    def probe(self) -> EngineInfo:
        """Fixed facts: base precisions, int8 and int4 native, the rest emulated."""
        return EngineInfo(
            name=self.name,
            version="1",
            device="scripted clock",
            formats={
                "fp32": FormatSupport("native", ""),
                "fp16": FormatSupport("native", ""),
                "bf16": FormatSupport("native", "computed in fp32"),
                **dict.fromkeys(_NATIVE, FormatSupport("native", "")),
                **{
                    name: FormatSupport("emulated", f"the mock has no {name.split()[0]}")
                    for name in _EMULATED
                },
                **NOT_IN_ONNX,
            },
        )

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """One thread and two streams."""
        del lowered
        return replace(options, threads=options.threads or 1, streams=options.streams or 2)

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


def _unoptimized(model: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _copied(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def _format(node: Any, writers: Mapping[str, Any]) -> str:
    """What a node would compute in on an engine that fuses all Q/DQ around it."""
    before = {writers[v].op_type for v in node.input if v in writers}
    eight = node.op_type in ("QuantizeLinear", "DequantizeLinear") or before == {"DequantizeLinear"}
    return "int8" if eight else "fp32"


def _label_file(path: Path) -> Path:
    return path.with_name(path.name + ".label")


ENGINE = Mock()
