"""Messages between the controller and a worker: a JSON header, then raw array bytes.

Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and the FP8 types with numpy
import numpy as np
from numpy.typing import NDArray

ARRAYS = "arrays"


def send(link: Connection, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Send ``header`` and ``arrays``; strings, which numpy holds as objects, in fixed width.

    Raises:
        OSError: the other side is gone.
    """
    plain = {k: v.astype(np.str_) if v.dtype == object else v for k, v in arrays.items()}
    listed = [[name, str(value.dtype), list(value.shape)] for name, value in plain.items()]
    link.send_bytes(json.dumps({**header, ARRAYS: listed}).encode())
    for value in plain.values():
        link.send_bytes(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)


def receive(link: Connection) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Receive one message.

    Raises:
        EOFError: the other side closed.
        OSError: the other side is gone.
    """
    header: dict[str, Any] = json.loads(link.recv_bytes())
    arrays = {
        name: np.frombuffer(link.recv_bytes(), dtype=np.dtype(dtype)).reshape(shape)
        for name, dtype, shape in header.pop(ARRAYS)
    }
    return header, arrays
