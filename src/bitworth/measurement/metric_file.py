"""A study's own metric, from a Python file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import get_args

from bitworth.engines.base import one_line
from bitworth.errors import UserError
from bitworth.measurement.quality import MetricKind, MetricSpec, Score


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
    # A name of its own for each file, so that two files called metric.py can both be in use.
    module_name = f"bitworth_metric_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: is no Python file; give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their class up through sys.modules while the file is running.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        declared = {
            str(name): MetricSpec(kind=value["kind"], better=value["better"])
            for name, value in module.METRICS.items()
        }
        score: Score = module.make_metric(metadata)
    except Exception as error:  # the file is the user's code: whatever it raises is told
        del sys.modules[module_name]
        raise UserError(
            f"{path}: {type(error).__name__}: {one_line(error)}; a metric file defines METRICS "
            "and make_metric(metadata)"
        ) from error
    if not callable(score):
        raise UserError(f"{path}: make_metric(metadata) returns no function; return the metric")
    for name, metric in declared.items():
        if metric.kind not in get_args(MetricKind) or metric.better not in ("higher", "lower"):
            raise UserError(
                f"{path}: METRICS['{name}']: kind is one of {', '.join(get_args(MetricKind))} and "
                "better is higher or lower"
            )
        if metric.kind == "perplexity" and metric.better != "lower":
            raise UserError(f"{path}: METRICS['{name}']: a lower perplexity is better; say so")
    return declared, score
