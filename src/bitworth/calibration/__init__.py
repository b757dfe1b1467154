"""Data to scales: one pass over the samples serves every variant."""

from bitworth.calibration.observers import BYTE_BUDGET, Calibration, observe
from bitworth.calibration.ranges import activation_range
from bitworth.calibration.scaled_sites import ScaledSites, quantize_sites
from bitworth.calibration.scales import UnusableScaleError, activation_scale
from bitworth.calibration.statistics import RangeAccumulator, RangeStatistics
from bitworth.calibration.weight_scales import weight_scale

__all__ = [
    "BYTE_BUDGET",
    "Calibration",
    "RangeAccumulator",
    "RangeStatistics",
    "ScaledSites",
    "UnusableScaleError",
    "activation_range",
    "activation_scale",
    "observe",
    "quantize_sites",
    "weight_scale",
]
