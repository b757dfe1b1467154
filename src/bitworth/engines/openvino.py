"""OpenVINO on the CPU plugin.

A plan is the exported blob. Both compile and import set the precision hint: left alone the plugin
takes bf16 where the CPU has it, and an f32 blob imported without the hint returns NaN there. The
number of streams is set twice too: a blob compiled for two is imported with one if nobody asks.

``threads`` are those of all streams together: two threads and two streams compute each inference
in one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
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
    one_line,
)
from bitworth.engines.cpu import cpu_model, has_int8_dot, isa, usable_cores
from bitworth.engines.plan_file import write_file
from bitworth.engines.streams import StreamRunner

_HINTS = {"fp32": "f32", "bf16": "bf16"}
#: What the plugin calls the type that a kernel computes in, by Bitworth's format.
_FORMATS = {
    "f32": "fp32", "fp32": "fp32", "f16": "fp16", "fp16": "fp16", "bf16": "bf16", "i8": "int8",
    "u8": "int8", "i4": "int4", "u4": "int4",
}  # fmt: skip
_NAMES = {"float32": "fp32", "f32": "fp32", "bfloat16": "bf16", "bf16": "bf16"}


class OvStream:
    """One infer request with tensors of its own."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._infer = self._request.infer
        self._outputs = [(_name(port), i) for i, port in enumerate(compiled.outputs)]
        self._ports = {_name(port): port for port in compiled.inputs}

    def bind(self, inputs: Arrays) -> None:
        """Set the request's input tensors (a writeable array is shared, not copied)."""
        import openvino as ov

        # The plugin takes no array that cannot be written, such as one that came over the wire.
        self._inputs = {k: np.require(v, requirements=["C", "W"]) for k, v in inputs.items()}
        for name, value in self._inputs.items():
            self._request.set_tensor(self._ports[name], ov.Tensor(value, shared_memory=True))

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The request's input tensors, copied."""
        return {
            name: np.array(self._request.get_tensor(port).data)
            for name, port in self._ports.items()
        }

    def run(self) -> None:
        """Run once and wait."""
        self._infer()

    def run_among(self) -> None:
        """Run once in one of the plugin's own streams, as ``infer`` need not, and wait."""
        self._request.start_async()
        self._request.wait()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run by name, copied."""
        return {
            name: np.array(self._request.get_output_tensor(i).data) for name, i in self._outputs
        }


class OvRunner(StreamRunner[OvStream]):
    """A compiled model with an infer request for each stream.

    Raises EngineError when the plan was not loaded with as many streams.
    """

    def __init__(self, compiled: Any, profiled: Any = None, streams: int = 1) -> None:
        loaded = compiled.get_property("NUM_STREAMS")
        if streams > 1 and loaded != streams:
            raise EngineError(
                f"openvino: asked for {streams} streams, the loaded plan reports {loaded}; give "
                "each a thread"
            )
        super().__init__([OvStream(compiled) for _ in range(streams)])
        self._compiled = compiled
        self._profiled = profiled

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """Time of each executed node over ``calls`` runs, from the plugin's counters."""
        import openvino as ov

        compiled = self._profiled()
        request = compiled.create_infer_request()
        ports = {_name(port): port for port in compiled.inputs}
        for name, value in self.inputs().items():
            request.set_tensor(ports[name], ov.Tensor(value))
        ordered = compiled.get_runtime_model().get_ordered_ops()
        origins = {op.get_friendly_name(): _origins(op) for op in ordered}
        request.infer()
        times: dict[str, list[float]] = defaultdict(list)
        told: dict[str, Any] = {}
        for _ in range(calls):
            request.infer()
            for info in request.get_profiling_info():
                if "NOT_RUN" not in str(info.status):
                    times[info.node_name].append(info.real_time.total_seconds() * 1e9)
                    told[info.node_name] = info
        readers = _executed_inputs(ordered, set(times))
        layers = []
        for name, info in told.items():
            kernel, _, precision = info.exec_type.rpartition("_")
            layers.append(
                LayerTime(
                    name=name,
                    op=info.node_type,
                    kernel=kernel,
                    precision=precision,
                    # A node that some calls skip takes its share of them.
                    time_ns=median(times[name]) * len(times[name]) / calls,
                    origins=origins.get(name, ()),
                    format=_FORMATS.get(precision.lower(), ""),
                    calls=len(times[name]) / calls,
                    inputs=readers.get(name, ()),
                )
            )
        return layers

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
        """Import the blob with the hint and the streams that it was compiled with.

        Raises:
            EngineError: the plugin refused it, or loaded it with other streams.
        """
        return OvRunner(
            self._import(), lambda: self._import(PERF_COUNT=True), self._options.streams
        )

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
            else FormatSupport("emulated", f"this CPU has no bf16 (it has {listed}); quality only")
        )
        return EngineInfo(
            name=self.name,
            # The build's own name goes on with its commit and branch.
            version=ov.__version__.split("-", 1)[0],
            device=cpu_model(),
            formats={"bf16": bf16, **_formats()},
            details={"isa": " ".join(isa()), "capabilities": listed, "build": ov.__version__},
        )

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """All cores, and as many requests as the plugin calls optimal for this model.

        Raises:
            EngineError: the plugin refused the model.
        """
        import openvino as ov

        options = replace(options, threads=options.threads or usable_cores())
        if options.streams:
            return options
        try:
            core = ov.Core()
            compiled = core.compile_model(
                core.read_model(str(lowered.path)),
                "CPU",
                _properties(lowered.precision, options),
            )
            found = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        except Exception as error:  # pybind raises RuntimeError and its kin for a refused model
            raise EngineError(f"openvino: {one_line(error)}") from error
        return replace(options, streams=int(found))

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


def _formats() -> dict[str, FormatSupport]:
    """What the CPU plugin of openvino 2026.4 was seen to do with each format's graph."""
    dot = "8-bit dot product" if has_int8_dot() else "no 8-bit dot product on this CPU"
    no_fp8 = FormatSupport("emulated", "the CPU plugin has no FP8 kernels; quality only")
    compressed = FormatSupport("native", "compressed weights, computed in fp32")
    each_call = FormatSupport("native", "weights are dequantized at each call, computed in fp32")
    no_blocks = "the CPU plugin quantizes no activation blocks; quality only"
    return {
        "fp32": FormatSupport("native", "pinned by INFERENCE_PRECISION_HINT=f32"),
        "fp16": FormatSupport("native", "stored in fp16, computed in fp32 under the f32 hint"),
        "int8": FormatSupport("native", dot),
        "int8 dynamic": FormatSupport(
            "emulated", "the CPU plugin computes MatMulInteger in fp32; quality only"
        ),
        "int8 weight_only": compressed,
        "int4": compressed,
        "fp8_e4m3": no_fp8,
        "fp8_e4m3 weight_only": each_call,
        "fp8_e5m2": no_fp8,
        "fp8_e5m2 weight_only": each_call,
        "mxfp8": FormatSupport("emulated", no_blocks),
        "mxfp8 weight_only": each_call,
        "nvfp4": FormatSupport("emulated", no_blocks),
        "nvfp4 weight_only": compressed,
        **NOT_IN_ONNX,
    }


def _properties(precision: str, options: EngineOptions) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": options.threads,
        # Without a number the plugin chooses one.
        **({"NUM_STREAMS": options.streams} if options.streams else {}),
        "PERFORMANCE_HINT": "LATENCY" if options.streams == 1 else "THROUGHPUT",
        **options.extra,
    }


def _layer_types(compiled: Any) -> tuple[str, ...]:
    types = (_info(op, "layerType") for op in compiled.get_runtime_model().get_ordered_ops())
    return tuple(t for t in types if t not in ("Const", "Input", "Output"))


def _executed_inputs(ordered: Sequence[Any], executed: set[str]) -> dict[str, tuple[str, ...]]:
    """By node the executed nodes that it reads; those that did not run are looked through."""
    sources: dict[str, tuple[str, ...]] = {}
    for op in ordered:  # inputs come before what reads them
        found: dict[str, None] = {}
        for port in op.inputs():
            name = port.get_source_output().get_node().get_friendly_name()
            found.update(dict.fromkeys((name,) if name in executed else sources.get(name, ())))
        sources[op.get_friendly_name()] = tuple(found)
    return sources


def _origins(op: Any) -> tuple[str, ...]:
    return tuple(n for n in _info(op, "originalLayersNames").split(",") if n)


def _info(op: Any, key: str) -> str:
    info = op.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _name(port: Any) -> str:
    return str(port.get_any_name())


ENGINE = OpenVino()
