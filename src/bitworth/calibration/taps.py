"""Run a model on the CPU and read values inside it, within a budget of bytes at a time."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bitworth.subject.tensors import unmap

Feed = Mapping[str, NDArray[np.generic]]

# Initializers from this size on are fed as inputs, without a copy: from the mapped file when the
# data is external. So every session shares them and no protobuf comes near its 2 GB. Smaller ones,
# among them the shapes and axes that some operators want constant, stay in the graph.
_FED_BYTES = 1 << 16
_FED_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

# Freed memory is handed back after a run that held this much; after smaller ones the time that it
# takes (30 ms a sample on PP-OCRv6's recogniser, which holds 32 MiB) buys little.
_RELEASED_BYTES = 48 << 20


class RunError(Exception):
    """onnxruntime cannot run the model on a sample; the message is the first line of its own."""


class Taps:
    """The values of one model that are read, in as many runs a sample as the budget asks for.

    Sizes come from a run in which only the values' shapes are outputs, so that nothing has to be
    kept to learn them. That run is done for the first sample and for each that is larger, in any
    dimension, than those before it.

    Attributes:
        batches: runs that a sample takes at present.
        peak_bytes: most bytes of read values that one run has held.
    """

    def __init__(
        self, model: ir.Model, values: Sequence[str], *, byte_budget: int, threads: int
    ) -> None:
        """``values`` are outputs of the main graph's nodes; ValueError names one that is not."""
        written = {v.name: v for node in model.graph for v in node.outputs}
        if unknown := [name for name in values if name not in written]:
            raise ValueError(f"no node of the graph writes the value '{unknown[0]}'")
        self._model = model
        self._budget = byte_budget
        self._threads = threads
        self._fed = _fed_initializers(model)
        # In the order of computation: early batches then need only the front of the graph.
        wanted = set(values)
        self._item_bytes = {
            name: max(1, value.dtype.bitwidth // 8) if value.dtype is not None else 4
            for name, value in written.items()
            if name is not None and name in wanted
        }
        self._bytes = dict.fromkeys(self._item_bytes, 0)
        self._probed: list[dict[str, tuple[int, ...]]] = []
        self._prober: Any = None
        self._batches: list[tuple[list[str], Any]] = []
        self.peak_bytes = 0

    @property
    def batches(self) -> int:
        """Runs that a sample takes at present; 0 before the first one."""
        return len(self._batches)

    def read(self, feed: Feed, take: Callable[[str, NDArray[np.generic]], None]) -> None:
        """Run the model on one sample and hand each value, with its name, to ``take`` once.

        The array lives until its run's values have all been taken.

        Raises:
            RunError: onnxruntime cannot run the model on this sample.
        """
        if not self._bytes:
            return
        inputs = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            for name, array in feed.items()
        } | self._fed
        self._measure({name: array.shape for name, array in feed.items()}, inputs)
        self._plan()
        for names, session in self._batches:
            arrays = _run(session, inputs)
            held = sum(array.nbytes for array in arrays)
            self.peak_bytes = max(self.peak_bytes, held)
            for name, array in zip(names, arrays, strict=True):
                self._bytes[name] = max(self._bytes[name], array.nbytes)
                take(name, array)
            del arrays, array  # the next run would find this one's values still there
            if held >= _RELEASED_BYTES:
                _release_free_memory()

    def close(self) -> None:
        """Let go of the sessions, and of the weights that were fed to them."""
        self._prober, self._batches, self._fed = None, [], {}
        unmap(value.const_value for value in self._model.graph.initializers.values())

    def _measure(self, shapes: dict[str, tuple[int, ...]], inputs: Mapping[str, Any]) -> None:
        if any(_fits(shapes, probed) for probed in self._probed):
            return
        if self._prober is None:
            graph = _shape_graph(self._model, tuple(self._bytes), self._fed)
            self._prober = _session(graph, self._threads)
        found = _run(self._prober, inputs)
        for name, shape in zip(self._bytes, found, strict=True):
            size = math.prod(shape.tolist()) * self._item_bytes[name]
            self._bytes[name] = max(self._bytes[name], size)
        self._probed = [old for old in self._probed if not _fits(old, shapes)] + [shapes]

    def _plan(self) -> None:
        sizes = (sum(self._bytes[n] for n in names) for names, _ in self._batches if len(names) > 1)
        if self._batches and all(size <= self._budget for size in sizes):
            return
        self._batches = []  # the old sessions go before the new ones come
        self._batches = [
            (names, _session(_tapped_graph(self._model, names, self._fed), self._threads))
            for names in partition(self._bytes, self._budget)
        ]


def partition(sizes: Mapping[str, int], budget: int) -> list[list[str]]:
    """Cut names, in order, into runs whose sizes add up to the budget at most.

    A name that is larger than the budget is alone in its run.
    """
    runs: list[list[str]] = []
    room = -1
    for name, size in sizes.items():
        if size > room:
            runs.append([])
            room = budget
        runs[-1].append(name)
        room -= size
    return runs


def _fits(shapes: Mapping[str, tuple[int, ...]], bounds: Mapping[str, tuple[int, ...]]) -> bool:
    return all(
        len(shape) == len(bounds[name])
        and all(a <= b for a, b in zip(shape, bounds[name], strict=True))
        for name, shape in shapes.items()
    )


def _fed_initializers(model: ir.Model) -> dict[str, Any]:
    return {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and value.const_value.nbytes >= _FED_BYTES
        and value.const_value.dtype in _FED_TYPES
        and not value.is_graph_output()
    }


def _open_graph(model: ir.Model, fed: Mapping[str, Any]) -> ir.Model:
    """A copy of the graph, sharing its tensors, with the fed initializers as inputs."""
    copy = model.clone()
    present = {value.name for value in copy.graph.inputs}
    for name in fed:
        value = copy.graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        value.const_value = None
        value.dtype = tensor.dtype
        if name not in present:  # before IR version 4 initializers are inputs as well
            copy.graph.inputs.append(value)
    for value in copy.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            # Too small to be fed, and a model that is given as bytes has no folder to look into.
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    return copy


def _tapped_graph(model: ir.Model, names: Sequence[str], fed: Mapping[str, Any]) -> bytes:
    copy = _open_graph(model, fed)
    written = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    for name in names:
        written[name].shape = None  # shapes written down for other sizes only bring warnings
        copy.graph.outputs.append(written[name])
    RemoveUnusedNodesPass()(copy)
    return bytes(ir.serde.serialize_model(copy).SerializeToString())


def _shape_graph(model: ir.Model, names: Sequence[str], fed: Mapping[str, Any]) -> bytes:
    copy = _open_graph(model, fed)
    written = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    for index, name in enumerate(names):
        node = ir.node("Shape", [written[name]])
        node.outputs[0].name = f"bitworth_shape_{index}"
        node.outputs[0].dtype = ir.DataType.INT64
        copy.graph.append(node)
        copy.graph.outputs.append(node.outputs[0])
    RemoveUnusedNodesPass()(copy)
    return bytes(ir.serde.serialize_model(copy).SerializeToString())


def _run(session: Any, inputs: Mapping[str, Any]) -> list[NDArray[np.generic]]:
    names = [output.name for output in session.get_outputs()]
    try:
        return [value.numpy() for value in session.run_with_ort_values(names, inputs)]
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise RunError(str(error).strip().partition("\n")[0]) from error


def _release_free_memory() -> None:
    """Hand freed memory back to the system, where the C library can."""
    # The GNU allocator keeps what a batch's values leave, and small allocations keep the next
    # batch's from fitting there: the process would hold several batches' worth (277 MiB instead of
    # 137 in four batches of 64).
    if sys.platform != "linux":
        return
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # other C libraries have none
        trim(0)


def _session(graph: bytes, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    # No optimization: a value read must be the one that the model as written computes, and fusions
    # reorder sums. It costs nothing here, since read values block the fusions anyway: PP-OCRv6's
    # recogniser takes 21 ms a sample at both levels, its detector 226 ms against 228 ms at basic.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The arena keeps the largest sample's memory for good, in powers of two, and saves no time on
    # these models.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Runs a Shape node as soon as it can: the value it measures is not kept for it.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    # Waiting workers sleep: between two runs a core is wanted for the histograms.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def measured_shapes(
    model: ir.Model, values: Sequence[str], feed: Feed, *, threads: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of ``values``, outputs of the main graph's nodes, on one input.

    Raises:
        RunError: onnxruntime cannot run the model on this input.
    """
    if not values:
        return {}
    fed = _fed_initializers(model)
    session = _session(_shape_graph(model, tuple(values), fed), threads)
    inputs = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        for name, array in feed.items()
    } | fed
    found = _run(session, inputs)
    return {name: tuple(shape.tolist()) for name, shape in zip(values, found, strict=True)}
