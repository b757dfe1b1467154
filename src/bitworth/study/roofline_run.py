"""Measures a device without a model, for a device profile that others can screen with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bitworth.bound.product_graph import Product
from bitworth.engines.base import EngineOptions
from bitworth.engines.cpu import usable_cores
from bitworth.errors import UserError
from bitworth.measurement.device_lock import device_lock
from bitworth.measurement.workers import WorkerFailed
from bitworth.record.device_profile import DeviceProfile
from bitworth.study.cell_stage import probe_engine
from bitworth.study.progress import Reporter
from bitworth.study.roofline_cache import add_to_cache
from bitworth.study.roofline_stage import KINDS, measure_device
from bitworth.study.workspace import Workspace

#: Rows from one token to a large image; widths of small and of large layers.
GRID = tuple(
    Product(kind, m, n, k)
    for kind in KINDS
    for m in (1, 32, 512, 4096)
    for n in (64, 256, 1024)
    for k in (64, 256, 1024)
)


def run_roofline(
    engine: str, threads: int, products: Sequence[Product], reporter: Reporter
) -> DeviceProfile:
    """Rates of this device through ``engine``; threads of 0: every core.

    Raises:
        UserError: the engine does not run here.
    """
    options = EngineOptions(threads or usable_cores())
    with tempfile.TemporaryDirectory(prefix="bitworth-roofline-") as folder:
        workspace = Workspace(Path(folder))
        try:
            with device_lock("cpu"):
                info = probe_engine(workspace, engine)
                found = measure_device(workspace, engine, info, options, products, reporter)
                add_to_cache(found, engine, info, options)
        except WorkerFailed as failure:
            raise UserError(f"engine {engine}: {failure}") from None
    return found
