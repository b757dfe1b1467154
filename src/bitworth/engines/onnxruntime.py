"""ONNX Runtime on the CPU execution provider.

A plan is the optimized model file that the session writes, loaded with optimization off: the
outputs are bit-equal and every worker runs the same bytes.

``threads`` are those of one inference. Streams are as many callers of the one session, each with
its own binding; with over one thread they share one pool of ``threads - 1`` helpers.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
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
    Optimization,
    Plan,
    Runner,
    one_line,
)
from bitworth.engines.cpu import cpu_model, has_int8_dot, isa, usable_cores
from bitworth.engines.events import Event, own_times, per_call
from bitworth.engines.plan_file import at_load_mark, plan_bytes, publish, write_file
from bitworth.engines.streams import StreamRunner

#: Above this size the optimized model cannot be one protobuf, and its weights lie beside it.
INLINE_LIMIT_BYTES = 1_500_000_000
_AT_LOAD = (
    "optimized each time it is loaded: onnxruntime refuses to read back the optimized form that "
    "it writes, so the plan is the model itself"
)


#: Behind the name of a node, in the event of its kernel.
_KERNEL = "_kernel_time"
#: Behind the name of a node that was replaced by one for another layout.
_COPY = re.compile(r"(_token_\d+|_nchwc)+$")
#: Operators that multiply 8-bit values, and those that multiply by packed weights.
_INT8_OPS = frozenset(
    ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
     "MatMulInteger", "ConvInteger", "QAttention", "DynamicQuantizeLSTM")
)  # fmt: skip
_PACKED_OPS = frozenset(("MatMulNBits", "GatherBlockQuantized"))
_FORMATS = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "int8", "int8": "int8",
}  # fmt: skip


@dataclass(frozen=True)
class OrtNode:
    """A node of a plan.

    Attributes:
        inputs: names of the nodes whose outputs it reads.
        bits: of packed weights; 0 where there are none.
    """

    inputs: tuple[str, ...] = ()
    bits: int = 0


class OrtStream:
    """One caller of a session, with its inputs and outputs bound."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._run = session.run_with_iobinding
        self._binding = session.io_binding()
        self._names = [o.name for o in session.get_outputs()]
        self._inputs: dict[str, NDArray[np.generic]] = {}

    def bind(self, inputs: Arrays) -> None:
        """Bind ``inputs`` and let the session allocate the outputs once a run."""
        self._binding = self._session.io_binding()
        # Not ascontiguousarray: it turns a scalar into a vector.
        self._inputs = {k: np.asarray(v, order="C") for k, v in inputs.items()}
        for name, value in self._inputs.items():
            self._binding.bind_cpu_input(name, value)
        for name in self._names:
            self._binding.bind_output(name, "cpu")

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The bound arrays, copied."""
        return {name: np.array(value) for name, value in self._inputs.items()}

    def run(self) -> None:
        """Run once."""
        self._run(self._binding)

    def run_among(self) -> None:
        """Run once; onnxruntime lets go of the interpreter's lock."""
        self._run(self._binding)

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Outputs of the last run by name."""
        return dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))


class OrtRunner(StreamRunner[OrtStream]):
    """An onnxruntime session over a plan, with as many callers as there are streams."""

    def __init__(self, session: Any, plan: OrtPlan, streams: int = 1) -> None:
        super().__init__([OrtStream(session) for _ in range(streams)])
        self._plan = plan

    def profile(self, calls: int) -> Sequence[LayerTime]:
        """Time of each node over ``calls`` runs, from onnxruntime's profiling events."""
        inputs = self.inputs()
        with tempfile.TemporaryDirectory() as folder:
            session = self._plan.session(profile_prefix=str(Path(folder) / "profile"))
            for _ in range(calls + 1):
                session.run(None, inputs)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return layer_times(events, calls, self._plan.graph())

    def precision(self) -> str:
        """The CPU provider computes a float graph in the graph's own type."""
        return "fp32"


def layer_times(
    events: Sequence[dict[str, Any]], calls: int, graph: Mapping[str, OrtNode] | None = None
) -> list[LayerTime]:
    """Layer times from profiling events, the first (cold) call left out.

    Args:
        events: parsed JSON of onnxruntime's profile.
        calls: profiled calls after the first.
        graph: the plan's nodes by name, where they are known.

    Raises:
        EngineError: see ``events.own_times``.
    """
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_KERNEL)]
    ran = [Event(e["name"].removesuffix(_KERNEL), float(e["ts"]), float(e["dur"])) for e in kernels]
    told = {e["name"].removesuffix(_KERNEL): e["args"] for e in kernels}
    durations: dict[str, list[float]] = defaultdict(list)
    for name, own in own_times(ran):
        durations[name].append(own)
    layers = []
    for name, times in durations.items():
        op = told[name]["op_name"]
        precision = next(iter((told[name].get("output_type_shape") or [{}])[0]), "")
        node = (graph or {}).get(name, OrtNode())
        time_us, runs = per_call(times, calls)
        layers.append(
            LayerTime(
                name=name,
                op=op,
                kernel=op,
                precision=precision,
                time_ns=time_us * 1e3,
                origins=(_COPY.sub("", name),),
                format=_format(op, precision, node.bits),
                calls=runs,
                inputs=tuple(n for n in node.inputs if n in durations),
            )
        )
    return layers


def _format(op: str, precision: str, bits: int) -> str:
    """The format that a node computes in."""
    if op in _INT8_OPS:
        return "int8"
    if op in _PACKED_OPS:
        return f"int{bits}" if bits else ""
    return _FORMATS.get(precision, "")


class OrtPlan:
    """An optimized model file."""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        self._path = path
        self._options = options

    @property
    def size_bytes(self) -> int:
        """Bytes of the model file and its weights."""
        return plan_bytes(self._path)

    @property
    def note(self) -> str:
        """Whether the plan is optimized when it is loaded, and why."""
        mark = at_load_mark(self._path)
        return mark.read_text(encoding="utf-8") if mark.exists() else ""

    def save(self, path: Path) -> None:
        """Move a copy of the plan to ``path``."""
        publish(self._path, path)

    def session(self, profile_prefix: str | None = None) -> Any:
        """A session over the plan's bytes, with optimization off."""
        options = _session_options(self._options)
        options.graph_optimization_level = _level(
            self._options.optimization if self.note else "none"
        )
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile_prefix
        return _session(self._path, options)

    def load(self) -> Runner:
        """Load the saved bytes."""
        return OrtRunner(self.session(), self, self._options.streams)

    def layers(self) -> tuple[str, ...]:
        """Operator types of the plan's nodes."""
        import onnx

        model = onnx.load(self._path, load_external_data=False)
        return tuple(n.op_type for n in model.graph.node)

    def graph(self) -> dict[str, OrtNode]:
        """The plan's nodes by name; none of a plan that is optimized when it is loaded."""
        import onnx

        if self.note:
            return {}
        nodes = onnx.load(self._path, load_external_data=False).graph.node
        writers = {value: node.name for node in nodes for value in node.output if value}
        return {
            node.name: OrtNode(
                inputs=tuple(dict.fromkeys(writers[v] for v in node.input if v in writers)),
                bits=next((a.i for a in node.attribute if a.name == "bits"), 0),
            )
            for node in nodes
        }


class OnnxRuntime:
    """ONNX Runtime, CPU execution provider."""

    name = "onnxruntime"

    def probe(self) -> EngineInfo:
        """Version, CPU and formats."""
        import onnxruntime as ort

        return EngineInfo(
            name=self.name,
            version=ort.__version__,
            device=cpu_model(),
            formats=_formats(),
            details={"isa": " ".join(isa()), "provider": "CPUExecutionProvider"},
        )

    def decided(self, lowered: LoweredModel, options: EngineOptions) -> EngineOptions:
        """One thread an inference and a stream a core, or what the given one of both leaves."""
        del lowered
        cores = usable_cores()
        threads = options.threads or max(1, cores // (options.streams or cores))
        streams = options.streams or max(1, cores // threads)
        return replace(options, threads=threads, streams=streams)

    def build(self, lowered: LoweredModel, options: EngineOptions) -> Plan:
        """Optimize the model for this machine and write it.

        Raises:
            EngineError: the session could not be created.
        """
        folder = Path(tempfile.mkdtemp(prefix="bitworth-plan-"))
        plan = OrtPlan(folder / "plan.onnx", options)
        weakref.finalize(plan, shutil.rmtree, folder, ignore_errors=True)
        session = _session_options(options)
        session.optimized_model_filepath = str(folder / "plan.onnx")
        if _needs_data_file(lowered.path):
            session.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", "plan.onnx.data"
            )
        session.graph_optimization_level = _level(options.optimization)
        _session(lowered.path, session)
        if options.optimization != "none":
            _check_saved(plan, lowered.path, folder / "plan.onnx")
        return plan

    def open(self, path: Path, precision: str, options: EngineOptions) -> Plan:
        """The plan saved at ``path``."""
        del precision  # an ONNX graph carries its own element types
        return OrtPlan(path, options)


def _formats() -> dict[str, FormatSupport]:
    """What the CPU provider of onnxruntime 1.32 was seen to do with each format's graph."""
    dot = "8-bit dot product" if has_int8_dot() else "no 8-bit dot product: 16-bit sums"
    no_fp8 = FormatSupport("emulated", "the CPU provider has no FP8 kernels; quality only")
    each_call = FormatSupport("native", "weights are dequantized at each call")
    nbits = FormatSupport("native", "MatMulNBits for MatMul, which quantizes activations itself")
    unread = "the CPU provider reads no DequantizeLinear of opset {}; quality only"
    return {
        "fp32": FormatSupport("native", ""),
        "fp16": FormatSupport("native", "in fp32, between casts, where it has no fp16 kernel"),
        "bf16": FormatSupport("emulated", "the CPU provider has no bf16 kernels; quality only"),
        "int8": FormatSupport("native", dot),
        "int8 dynamic": FormatSupport("native", f"MatMul and Gemm; {dot}"),
        "int8 weight_only": nbits,
        "int4": nbits,
        "fp8_e4m3": no_fp8,
        "fp8_e4m3 weight_only": each_call,
        "fp8_e5m2": no_fp8,
        "fp8_e5m2 weight_only": each_call,
        "mxfp8": FormatSupport("emulated", unread.format(24)),
        "mxfp8 weight_only": FormatSupport("emulated", unread.format(24)),
        "nvfp4": FormatSupport("emulated", unread.format(23)),
        "nvfp4 weight_only": FormatSupport("emulated", unread.format(23)),
        **NOT_IN_ONNX,
    }


def _check_saved(plan: OrtPlan, model: Path, path: Path) -> None:
    """Keep the model itself as the plan where its optimized form cannot be read back.

    onnxruntime 1.32 writes a DequantizeLinear with an axis into models of opset 11, which runs
    where it was made and is refused as a file.

    Raises:
        EngineError: it cannot be read back, and has weights in a file beside it.
    """
    try:
        plan.session()
    except EngineError:
        if _needs_data_file(model):
            raise
        shutil.copyfile(model, path)
        write_file(at_load_mark(path), _AT_LOAD.encode())
        plan.session()


def _level(optimization: Optimization) -> Any:
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    return {
        "all": levels.ORT_ENABLE_ALL, "extended": levels.ORT_ENABLE_EXTENDED,
        "basic": levels.ORT_ENABLE_BASIC, "none": levels.ORT_DISABLE_ALL,
    }[optimization]  # fmt: skip


def _session_options(options: EngineOptions) -> Any:
    import onnxruntime as ort

    session = ort.SessionOptions()
    session.intra_op_num_threads = options.threads
    session.inter_op_num_threads = 1
    session.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Warnings (a layout that suits only this machine) are facts of every plan, not news.
    session.log_severity_level = 3
    for key, value in options.extra.items():
        session.add_session_config_entry(key, value)
    return session


def _session(path: Path, options: Any) -> Any:
    import onnxruntime as ort

    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many unrelated classes for a refused model
        raise EngineError(f"onnxruntime: {one_line(error)}") from error


def _needs_data_file(path: Path) -> bool:
    """Whether the model is too large for one file, or has weights in a file beside it.

    Without a data file of its own, the optimized model would go on naming the latter.
    """
    import onnx

    if path.stat().st_size > INLINE_LIMIT_BYTES:
        return True
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # protobuf's errors have many classes; onnxruntime's own words are better
        return False
    return any(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer)


ENGINE = OnnxRuntime()
