"""A calibration as plain arrays, and as a file that a resumed study reads."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitworth.atomic import write_atomic
from bitworth.calibration.observers import Calibration
from bitworth.calibration.statistics import RangeStatistics

_KEY = "key"


def to_arrays(calibration: Calibration) -> dict[str, NDArray[np.generic]]:
    """Return arrays that hold all of ``calibration``; none of them needs pickle."""
    every = list(calibration.statistics.values())
    tails = [s.tail for s in every]
    channels = [
        np.stack([s.channel_minimum, s.channel_maximum])
        for s in every
        if s.channel_minimum is not None and s.channel_maximum is not None
    ]
    return {
        "names": np.array(list(calibration.statistics), dtype=np.str_),
        "extremes": np.array([(s.minimum, s.maximum) for s in every], np.float64).reshape(-1, 2),
        "counts": np.array(
            [(s.count, s.zeros, s.nonfinite, s.exponent, s.tail.size) for s in every], np.int64
        ).reshape(-1, 5),
        "shape_known": np.array([s.shape_known for s in every], np.bool_),
        # -1: not observed; a tensor may have no channels.
        "channel_counts": np.array(
            [-1 if s.channel_minimum is None else s.channel_minimum.size for s in every], np.int64
        ),
        "channel_extremes": np.concatenate([np.empty((2, 0)), *channels], axis=1),
        "histograms": np.array([s.histogram for s in every], np.int64),
        "tails": np.concatenate(tails) if tails else np.empty(0, np.float64),
        "runs": np.array(
            [calibration.samples, calibration.tensor_batches, calibration.peak_run_bytes], np.int64
        ),
    }


def from_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> Calibration:
    """Return the calibration that `to_arrays` took apart.

    Raises:
        KeyError, ValueError: arrays are missing or do not fit together.
    """
    names = [str(name) for name in arrays["names"]]
    counts = np.asarray(arrays["counts"], np.int64)
    extremes = np.asarray(arrays["extremes"], np.float64)
    histograms = np.asarray(arrays["histograms"], np.int64)
    tails = np.asarray(arrays["tails"], np.float64)
    known = np.asarray(arrays["shape_known"], np.bool_)
    sizes = np.asarray(arrays["channel_counts"], np.int64)
    channels = np.asarray(arrays["channel_extremes"], np.float64)
    ends = np.cumsum(counts[:, 4])
    channel_ends = np.cumsum(np.maximum(sizes, 0))
    statistics = {
        name: RangeStatistics(
            minimum=float(extreme[0]),
            maximum=float(extreme[1]),
            count=int(count[0]),
            zeros=int(count[1]),
            nonfinite=int(count[2]),
            exponent=int(count[3]),
            histogram=histogram.copy(),
            tail=tails[int(end) - int(count[4]) : int(end)].copy(),
            channel_minimum=channels[0, last - size : last].copy() if size >= 0 else None,
            channel_maximum=channels[1, last - size : last].copy() if size >= 0 else None,
            shape_known=shape_known,
        )
        for name, extreme, count, histogram, end, shape_known, size, last in zip(
            names,
            extremes,
            counts,
            histograms,
            ends,
            known.tolist(),
            sizes.tolist(),
            channel_ends.tolist(),
            strict=True,
        )
    }
    samples, batches, peak = (int(n) for n in np.asarray(arrays["runs"], np.int64))
    return Calibration(statistics, samples, batches, peak)


def save(path: Path, calibration: Calibration, key: str) -> None:
    """Write ``calibration`` to ``path``, whole or not at all.

    Args:
        path: a ``.npz`` file.
        calibration: what to write.
        key: hash of what it depends on: the prepared graph, the samples, the values.

    Raises:
        UserError: the file cannot be written.
    """
    stream = io.BytesIO()
    np.savez_compressed(
        stream, allow_pickle=False, **{_KEY: np.array(key)}, **to_arrays(calibration)
    )
    write_atomic(path, stream.getvalue())


def load(path: Path, key: str) -> Calibration | None:
    """Return the calibration in ``path``; None when there is none for ``key``, or a damaged one."""
    try:
        # Opened here: numpy leaves the file open when it is damaged.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return from_arrays(arrays) if str(arrays[_KEY]) == key else None
    except (OSError, EOFError, LookupError, TypeError, ValueError, zipfile.BadZipFile, zlib.error):
        return None
