"""Where a study runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from bitworth import __version__
from bitworth.engines.cpu import cpu_model
from bitworth.measurement.nvml import gpu_name
from bitworth.record.schema import EnvironmentFacts
from bitworth.study.context import slug

#: Libraries whose version can change a result.
LIBRARIES = (
    "ml-dtypes",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "pillow",
    "safetensors",
    "scipy",
    "torch",
    "torchao",
    "triton",
    "diffusers",
)


def environment_facts() -> EnvironmentFacts:
    """The machine and the versions of all that takes part."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return EnvironmentFacts(
        bitworth=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        libraries=versions,
    )


def machine_name(gpu: bool = False) -> str:
    """A folder name for this kind of machine: its GPU, or its CPU and its number of cores.

    Args:
        gpu: whether the study runs on the machine's GPU, where there is one.
    """
    name = gpu_name() if gpu else ""
    return slug(name) if name else f"{slug(cpu_model())}-{os.cpu_count() or 1}-cores"
