"""The device that torch runs on: which, how fast its caches are emptied, and where it compiles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

#: Bytes that a flush writes at least: several times the cache of any GPU of today.
_FLUSH_BYTES = 256 << 20


def use_cache_folder() -> Path:
    """Keep what Inductor and Triton compile in the user's cache folder; before torch is imported.

    Their files are pickles and native code, which this user wrote: they enter no plan.
    """
    root = os.environ.get("BITWORTH_CACHE")
    folder = (Path(root) if root else user_cache_path("bitworth")) / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    return folder


def device_of(wanted: str) -> str:
    """``cuda`` or ``cpu``: as asked for, or the GPU where there is one."""
    import torch

    if wanted:
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def exact_fp32() -> None:
    """No TF32, and the same kernels in every run."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)


class CacheFlush:
    """Writes more than the GPU's cache holds, so that the next call reads from memory."""

    def __init__(self) -> None:
        import torch

        size = max(_FLUSH_BYTES, 4 * torch.cuda.get_device_properties(0).L2_cache_size)
        self._buffer: Any = torch.empty(size, dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        """Flush; on the current stream."""
        self._buffer.zero_()
