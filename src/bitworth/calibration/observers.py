"""Calibration: one pass over the data for the ranges of all values of all variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bitworth.calibration.channels import ChannelExtremes
from bitworth.calibration.statistics import RangeAccumulator, RangeStatistics
from bitworth.calibration.taps import RunError, Taps
from bitworth.errors import UserError
from bitworth.subject.onnx_model import input_specs
from bitworth.subject.samples import Sample, check_sample

# With what a run works with beside the values, 300 MB are never reached.
BYTE_BUDGET = 160 << 20


@dataclass(frozen=True, eq=False)
class Calibration:
    """What one pass over the calibration data found.

    Attributes:
        statistics: by name of the value, in the order asked for.
        samples: samples that were run; every one of them is in every statistic.
        tensor_batches: runs that the largest sample took to keep within the byte budget.
        peak_run_bytes: most bytes of observed values that one run held.
    """

    statistics: Mapping[str, RangeStatistics]
    samples: int
    tensor_batches: int
    peak_run_bytes: int

    @property
    def nonfinite(self) -> Mapping[str, int]:
        """Values in which NaN or infinities were seen, with how many: a warning to pass on."""
        return {n: s.nonfinite for n, s in self.statistics.items() if s.nonfinite}


def observe(
    model: ir.Model,
    values: Sequence[str],
    samples: Iterable[Mapping[str, NDArray[np.generic]]],
    *,
    threads: int,
    channel_axes: Mapping[str, int] | None = None,
    byte_budget: int = BYTE_BUDGET,
    progress: Callable[[int], None] | None = None,
) -> Calibration:
    """Run every sample once and return the range statistics of ``values``.

    Memory is that of the model, of one run's values (``byte_budget``, or the largest single value)
    and 100 KB a value, whatever the number of samples, which are taken one by one. A sample whose
    values exceed the budget is run several times, each time with part of the values as outputs.
    Non-finite activations are counted in the statistics and enter no range. The model is read, not
    changed.

    Args:
        model: the prepared graph.
        values: names of main-graph values: node outputs or graph inputs; each counts once.
        samples: each maps every graph input to an array of the input's dtype and rank. Shapes may
            differ between samples where the graph's dimensions are free.
        threads: threads of one run.
        channel_axes: of the values whose channels' extremes are wanted as well, the axis that holds
            the channels; negative ones count from the last. It may not change in length.
        byte_budget: bytes of observed values that one run may hold.
        progress: called with the number of samples done, after each.

    Raises:
        UserError: there is no sample, or one does not fit the graph's inputs or cannot be run, or
            the number of a value's channels changes.
        ValueError: a value is not in the main graph, or ``channel_axes`` names another.
    """
    specs = input_specs(model)
    inputs = {spec.name for spec in specs}
    collected = {name: RangeAccumulator() for name in values}
    channels = {name: ChannelExtremes(axis) for name, axis in (channel_axes or {}).items()}
    if unknown := channels.keys() - collected.keys():
        raise ValueError(f"channels of a value that is not observed: '{min(unknown)}'")
    inside = [name for name in collected if name not in inputs]
    taps = Taps(model, inside, byte_budget=byte_budget, threads=threads)

    def take(name: str, array: NDArray[np.generic]) -> None:
        collected[name].add(array)
        if name not in channels:
            return
        try:
            channels[name].add(array)
        except ValueError as error:
            raise UserError(
                f"calibration sample {done}: value '{name}': {error}; give samples whose shapes "
                "differ in no other dimension, or choose no rescaling and no scales per channel"
            ) from error

    done = batches = 0
    for sample in samples:
        check_sample(Sample(sample), specs, f"calibration sample {done}")
        for name in inputs & collected.keys():
            take(name, sample[name])
        try:
            taps.read(sample, take)
        except RunError as error:
            raise UserError(
                f"calibration sample {done}: the model does not run on it ({error}); "
                "check its shape and values"
            ) from error
        done += 1
        batches = max(batches, taps.batches)
        if progress is not None:
            progress(done)
    taps.close()
    if not done:
        raise UserError("the calibration data holds no sample; give at least one")
    statistics = {}
    for name in list(collected):  # one by one: never two copies of all histograms
        found = collected.pop(name).finish()
        if name in channels:
            low, high = channels[name].finish()
            found = replace(found, channel_minimum=low, channel_maximum=high)
        statistics[name] = found
    return Calibration(
        statistics=statistics,
        samples=done,
        tensor_batches=batches,
        peak_run_bytes=taps.peak_bytes,
    )
