"""What a cell's device can do, measured once a study."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bitworth.engines.base import Arrays, EngineOptions
from bitworth.record.device_profile import DeviceProfile
from bitworth.record.variant_bounds import WorkFact
from bitworth.study.context import StudyContext
from bitworth.study.roofline_cache import device_rates
from bitworth.study.site_shapes import products_of, shapes_at, work_at
from bitworth.study.subject_stage import Subject

Limits = tuple[DeviceProfile, dict[str, WorkFact]]


def device_limits(
    study: StudyContext,
    cell: str,
    engine: str,
    info: dict[str, Any],
    options: EngineOptions,
    inputs: Arrays,
    sites: Collection[str],
    subject: Subject,
) -> Limits:
    """Rates of the device at the shapes of ``sites``, and the work of every site.

    Raises:
        WorkerFailed: the engine does not run the products.
        RunError: onnxruntime cannot run the model on the cell's input.
    """
    stored = study.workspace.load("limits", cell)
    if stored is None:
        shapes = shapes_at(subject.fair.model, inputs)
        work = work_at(subject.every_site, shapes)
        limits = device_rates(
            study.workspace, engine, info, options, products_of(work, sites), study.reporter
        )
        stored = {
            "limits": limits.model_dump(mode="json"),
            "work": {id_: fact.model_dump(mode="json") for id_, fact in work.items()},
        }
        study.workspace.save(stored, "limits", cell)
    return (
        DeviceProfile.model_validate(stored["limits"]),
        {id_: WorkFact.model_validate(fact) for id_, fact in stored["work"].items()},
    )
