"""OpenVINO on the CPU plugin.

A plan is the exported blob. Both compile and import set the precision hint: left alone the plugin
takes bf16 where the CPU has it, and an f32 blob imported without the hint returns NaN there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

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
    one_line,
)
from bitworth.engines.cpu import cpu_model, has_int8_dot, isa
from bitworth.engines.plan_file import write_file

_HINTS = {"fp32": "f32", "bf16": "bf16"}
_NAMES = {"float32": "fp32", "f32": "fp32", "bfloat16": "bf16", "bf16": "bf16"}


class OvRunner:
    """A compiled model with one infer request."""

    def __init__(self, compiled: Any, profiled: Any = None) -> None:
        self._compiled = compiled
        self._profiled = profiled
        self._request = compiled.create_infer_request()
        self._outputs = [(_name(port), i) for i, port in enumerate(compiled.outputs)]
        self._ports = {_name(port): port for port in compiled.inputs}

    def bind(self, inputs: Arrays) -> None:
        """Set the request's input tensors (a writeable array is shared, not copied)."""
        import openvino as ov

        # The plugin takes no array that cannot be written, such as one that came over the wire.
        self._inputs = {k: np.require(v, requirements=["C", "W"]) for k, v in inputs.items()}
        for name, value in self._inputs.items():
            self._request.set_tensor(self._ports[name], ov.Tensor(value, shared_memory=True))

    def run(self) -> None:
        """Run once and wait."""
        self._request.infer()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run by name, copied."""
        return {
            name: np.array(self._request.get_output_tensor(i).data) for name, i in self._outputs
        }

    def time_block(self, iterations: int) -> list[int]:
        """Wall time of each of ``iterations`` runs in ns."""
        infer = self._request.infer
        samples = []
        for _ in range(iterations):
            start = perf_counter_ns()
            infer()
            samples.append(perf_counter_ns() - start)
        return samples

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """Mean time of each executed node over ``calls`` runs, from the plugin's counters."""
        import openvino as ov

        compiled = self._profiled()
        request = compiled.create_infer_request()
        ports = {_name(port): port for port in compiled.inputs}
        for name, value in self._inputs.items():
            request.set_tensor(ports[name], ov.Tensor(value, shared_memory=True))
        origins = {
            op.get_friendly_name(): _origins(op)
            for op in compiled.get_runtime_model().get_ordered_ops()
        }
        request.infer()
        totals: dict[str, LayerTime] = {}
        for _ in range(calls):
            request.infer()
            for info in request.get_profiling_info():
                if "NOT_RUN" in str(info.status):
                    continue
                kernel, _, precision = info.exec_type.rpartition("_")
                before = totals[info.node_name].time_ns if info.node_name in totals else 0.0
                totals[info.node_name] = LayerTime(
                    name=info.node_name,
                    op=info.node_type,
                    kernel=kernel,
                    precision=precision,
                    time_ns=before + info.real_time.total_seconds() * 1e9 / calls,
                    origins=origins.get(info.node_name, ()),
                )
        return list(totals.values())

    def precision(self) -> str:
        """The precision hint that the compiled model reports."""
        hint = self._compiled.get_property("INFERENCE_PRECISION_HINT")
        return _NAMES.get(hint.get_type_name() if hasattr(hint, "get_type_name") else str(hint), "")


class OvPlan:
    """An exported blob."""

    def __init__(self, blob: bytes, precision: str, options: EngineOptions, ops: Sequence[str]):
        self._blob = blob
        self._precision = precision
        self._options = options
        self._ops = tuple(ops)

    @property
    def size_bytes(self) -> int:
        """Bytes of the blob."""
        return len(self._blob)

    @property
    def note(self) -> str:
        """Nothing unusual."""
        return ""

    def save(self, path: Path) -> None:
        """Write the blob."""
        write_file(path, self._blob)

    def load(self) -> Runner:
        """Import the blob with the hint that it was compiled with."""
        return OvRunner(self._import(), profiled=lambda: self._import(PERF_COUNT=True))

    def layers(self) -> tuple[str, ...]:
        """Layer types of the executed graph."""
        if not self._ops:
            self._ops = _layer_types(self._import())
        return self._ops

    def _import(self, **more: object) -> Any:
        import openvino as ov

        try:
            return ov.Core().import_model(
                self._blob, "CPU", {**_properties(self._precision, self._options), **more}
            )
        except Exception as error:  # pybind raises RuntimeError and its kin for a refused blob
            raise EngineError(f"openvino: {one_line(error)}") from error


class OpenVino:
    """OpenVINO, CPU plugin."""

    name = "openvino"

    def probe(self) -> EngineInfo:
        """Version, CPU and formats."""
        import openvino as ov

        capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        listed = ", ".join(capabilities)
        bf16 = (
            FormatSupport("native", "INFERENCE_PRECISION_HINT=bf16")
            if "BF16" in capabilities
            else FormatSupport("absent", f"this CPU has no bf16; the plugin lists {listed}")
        )
        dot = "8-bit dot product" if has_int8_dot() else "no 8-bit dot product on this CPU"
        return EngineInfo(
            name=self.name,
            # The build's own name goes on with its commit and branch.
            version=ov.__version__.split("-", 1)[0],
            device=cpu_model(),
            formats={
                "fp32": FormatSupport("native", "pinned by INFERENCE_PRECISION_HINT=f32"),
                "bf16": bf16,
                "int8": FormatSupport("native", dot),
                "fp8_e4m3": FormatSupport(
                    "emulated", "the CPU plugin has no FP8 kernels; quality only"
                ),
            },
            details={"isa": " ".join(isa()), "capabilities": listed, "build": ov.__version__},
        )

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """Compile the model and export it.

        Raises:
            EngineError: the plugin refused the model.
        """
        import openvino as ov

        try:
            core = ov.Core()
            compiled = core.compile_model(
                core.read_model(str(lowered.path)),
                "CPU",
                _properties(lowered.precision, options),
            )
            blob = compiled.export_model()
        except Exception as error:  # pybind raises RuntimeError and its kin for a refused model
            raise EngineError(f"openvino: {one_line(error)}") from error
        data = blob.getvalue() if hasattr(blob, "getvalue") else bytes(blob)
        return OvPlan(data, lowered.precision, options, _layer_types(compiled))

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``."""
        return OvPlan(path.read_bytes(), precision, options, ())


def _properties(precision: str, options: EngineOptions) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": options.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        **options.extra,
    }


def _layer_types(compiled: Any) -> tuple[str, ...]:
    types = (_info(op, "layerType") for op in compiled.get_runtime_model().get_ordered_ops())
    return tuple(t for t in types if t not in ("Const", "Input", "Output"))


def _origins(op: Any) -> tuple[str, ...]:
    return tuple(n for n in _info(op, "originalLayersNames").split(",") if n)


def _info(op: Any, key: str) -> str:
    info = op.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _name(port: Any) -> str:
    return str(port.get_any_name())


ENGINE = OpenVino()
