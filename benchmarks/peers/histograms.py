"""What onnxruntime's histogram calibrators make of values, from the values themselves.

onnxruntime.quantization's own collector is run on values that are read here: a peer's scale that it
reproduces is explained by the method and its settings.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import HistogramCollector

from benchmarks.peers.float_values import Arrays, Reader, rows

#: Bins of the entropy method, levels of it, and bins of the distribution method: its defaults.
ENTROPY_BINS = 128
DEVIATION_BINS = 2048

Range = tuple[float, float]


def entropy_by_sample(path: Path, samples: Arrays, names: set[str]) -> dict[str, Range]:
    """Ranges by entropy, of histograms that grow from sample to sample, as modelopt collects."""
    collector = _collector("entropy", ENTROPY_BINS)
    reader = Reader(path, names)
    for sample in rows(samples):
        for name, array in reader.read(sample):
            collector.collect_value({name: [array]})
    return _ranges(collector)


def entropy_of_all(path: Path, samples: Arrays, extremes: dict[str, Range]) -> dict[str, Range]:
    """Ranges by entropy, of histograms over the whole range, as onnxruntime collects."""
    collector = _collector("entropy", ENTROPY_BINS)
    collector.histogram_dict = _whole(path, samples, extremes, ENTROPY_BINS)
    return _ranges(collector)


def deviations(path: Path, samples: Arrays, extremes: dict[str, Range]) -> dict[str, float]:
    """Standard deviations, of histograms with 2048 bins, as onnxruntime's FP8 takes them."""
    histograms = _whole(path, samples, extremes, DEVIATION_BINS)
    return {
        name: float(HistogramCollector._avg_std(hist, edges)[1])
        for name, (hist, edges, *_) in histograms.items()
    }


def _collector(method: str, bins: int) -> HistogramCollector:
    return HistogramCollector(
        method=method,
        symmetric=False,
        num_bins=bins,
        num_quantized_bins=ENTROPY_BINS,
        percentile=None,
        scenario="same",
    )


def _ranges(collector: HistogramCollector) -> dict[str, Range]:
    with contextlib.redirect_stdout(io.StringIO()):
        found = collector.compute_entropy()
    return {name: (float(entry[0]), float(entry[1])) for name, entry in found.items()}


def _whole(
    path: Path, samples: Arrays, extremes: dict[str, Range], bins: int
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32], np.float32, np.float32, np.float32]]:
    reader = Reader(path, set(extremes))
    counts: dict[str, NDArray[np.int64]] = {}
    edges: dict[str, NDArray[np.float32]] = {}
    for sample in rows(samples):
        for name, array in reader.read(sample):
            largest = _largest(extremes[name])
            counted, edges[name] = np.histogram(
                array.ravel(),
                bins,
                range=(-largest, largest),  # type: ignore[arg-type]
            )
            counts[name] = counts.get(name, np.zeros(bins, np.int64)) + counted
    return {
        name: (
            counts[name],
            edges[name],
            np.float32(extremes[name][0]),
            np.float32(extremes[name][1]),
            _largest(extremes[name]),
        )
        for name in counts
    }


def _largest(range_: Range) -> np.float32:
    return np.float32(max(abs(range_[0]), abs(range_[1])))
