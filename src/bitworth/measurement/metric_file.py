"""A study's own metric, from a Python file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from bitworth.errors import UserError
from bitworth.measurement.quality import MetricSpec, Score


def load_metric(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, MetricSpec], Score]:
    """Import a metric file: its ``METRICS`` and the function that ``make_metric`` returns.

    Args:
        path: Python file with ``METRICS`` (name to ``{"kind", "better"}``) and
            ``make_metric(metadata)``.
        metadata: the model file's metadata properties.

    Raises:
        UserError: missing, raises on import, or lacks one of the two.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; quality.metric names a Python file")
    spec = importlib.util.spec_from_file_location(f"bitworth_metric_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        declared = {
            str(name): MetricSpec(kind=value["kind"], better=value["better"])
            for name, value in module.METRICS.items()
        }
        score: Score = module.make_metric(metadata)
    except Exception as error:  # the file is the user's code: whatever it raises is told
        raise UserError(
            f"{path}: {type(error).__name__}: {error}; a metric file defines METRICS and "
            "make_metric(metadata)"
        ) from error
    for name, metric in declared.items():
        if metric.kind not in ("binary", "mean", "ratio") or metric.better not in (
            "higher",
            "lower",
        ):
            raise UserError(
                f"{path}: METRICS['{name}']: kind is binary, mean or ratio and better is higher "
                "or lower"
            )
    return declared, score
