"""Find an engine by name; its heavy import happens in its own module."""

from __future__ import annotations

import importlib
from typing import cast

from bitworth.engines.base import Engine

MODULES = {
    "onnxruntime": "bitworth.engines.onnxruntime",
    "openvino": "bitworth.engines.openvino",
    "torch": "bitworth.engines.torch",
    "mock": "bitworth.engines.mock",
}


def engine_named(name: str) -> Engine:
    """The engine called ``name``.

    Raises:
        KeyError: no such engine.
        ImportError: its library is not installed.
    """
    module = importlib.import_module(MODULES[name])
    return cast(Engine, module.ENGINE)
