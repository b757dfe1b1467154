"""How fast memory is copied, by size, with as many threads as an engine has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

#: From what a core's own cache holds to what no cache does.
SIZES = tuple(1 << power for power in range(16, 28, 2))
_REPEATS = 7
_PIECE = 1 << 18


def copy_times(threads: int, sizes: tuple[int, ...] = SIZES) -> list[tuple[int, float]]:
    """Bytes of each size and the least time in ns in which they were copied.

    The least, as it is to be a limit: nothing makes a copy faster than the memory is.
    """
    found = []
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for size in sizes:
            source = np.ones(size, np.uint8)
            target = np.zeros(size, np.uint8)
            pieces = max(1, min(threads, size // _PIECE))
            cuts = np.linspace(0, size, pieces + 1).astype(int)
            parts = [slice(a, b) for a, b in pairwise(cuts)]

            def copy(part: slice, to: Bytes = target, of: Bytes = source) -> None:
                np.copyto(to[part], of[part])

            times = []
            for _ in range(_REPEATS):
                start = perf_counter_ns()
                if pieces == 1:
                    copy(parts[0])
                else:
                    list(pool.map(copy, parts))
                times.append(perf_counter_ns() - start)
            found.append((size, float(min(times))))
    return found
