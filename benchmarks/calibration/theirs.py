"""onnxruntime's side: calls of quantize_static."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.calibration.job import Call, Cost, Job, Stopwatch
from benchmarks.calibration.memory import forget_peak, peak_bytes, resident_bytes
from benchmarks.calibration.pairs import Pair, chosen
from benchmarks.calibration.samples import Sample, read_samples
from benchmarks.calibration.written import quantized_weights


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """One sample a call, read from the file."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._samples = samples

    def get_next(self) -> Sample | None:
        return next(self._samples, None)


def prepare(model: Path, opset: int, path: Path) -> Cost:
    """Raise the opset and pre-process, as its documentation advises: once for all calls."""
    clock = Stopwatch()
    loaded = onnx.load(model)
    if next(o.version for o in loaded.opset_import if not o.domain) < opset:
        loaded = version_converter.convert_version(loaded, opset)
    raised = path.with_suffix(".raised")
    onnx.save(loaded, raised)
    quant_pre_process(str(raised), str(path), skip_symbolic_shape=True)
    raised.unlink()
    return clock.lap()


def call(job: Job, pair: Pair, cache: Path | None = None) -> Call:
    """One call; what it raises is its result."""
    baseline = resident_bytes()
    forget_peak()
    path = job.folder / "theirs.onnx"
    asked: dict[str, Any] = {
        "quant_format": QuantFormat.QDQ,
        "op_types_to_quantize": list(pair.call.ops),
        "per_channel": pair.call.per_channel,
        "activation_type": QuantType[pair.call.activation],
        "weight_type": QuantType[pair.call.weight],
        "calibrate_method": CalibrationMethod[pair.call.method],
        "extra_options": dict(pair.call.options),
        "calibration_cache_path": cache,
    }
    reader = Reader(read_samples(job.samples, job.input, job.shape, job.count))
    clock = Stopwatch()
    try:
        with _quiet(), _threads(job.threads):
            quantize_static(job.prepared[pair.call.opset], path, reader, **asked)
    except Exception as error:  # each of its steps raises what it likes
        told = " ".join(str(error).split())[:100]
        return Call(pair.name, None, peak_bytes() - baseline, failed=told)
    cost = clock.lap()
    beyond = peak_bytes() - baseline
    weights = quantized_weights(path)
    path.unlink()
    return Call(pair.name, cost, beyond, weights)


def calls(job: Job) -> tuple[Call, ...]:
    """The calls one after the other; those that need the same ranges share a cache of them."""
    return tuple(
        call(job, pair, job.folder / f"{pair.call.ranges}.json") for pair in chosen(job.pairs)
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let sessions that quantize_static makes have so many threads: it has no option for it."""
    original = onnxruntime.SessionOptions

    def options() -> Any:
        made = original()
        made.intra_op_num_threads = number
        return made

    onnxruntime.SessionOptions = options
    try:
        yield
    finally:
        onnxruntime.SessionOptions = original


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what it prints and logs about every call."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(level)
