"""Rates of a CUDA device through torch, as a device profile that ``bitworth screen`` reads.

    python benchmarks/roofline/torch_gpu.py OUT.json

It needs nothing but torch. Each product runs in a CUDA graph over operands that together exceed the
cache, so that every call reads memory as in a model; its time is the median over graphs. Baselines
compute in the first format, fp16.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROWS = (16, 128, 1024, 4096, 16384)
WIDTHS = (256, 1152, 4096)
#: Large enough for the highest rate.
LARGE = (8192, 8192, 8192)
#: Operands are repeated until they are this much: more than the cache holds.
COLD_BYTES = 256 << 20
CALLS, GRAPHS = 10, 9

Call = Callable[[], Any]


def products() -> Iterator[tuple[int, int, int]]:
    """Rows, columns, and what is summed over."""
    yield from ((m, n, k) for m in ROWS for n in WIDTHS for k in WIDTHS)
    yield LARGE


def copies_of(nbytes: int) -> int:
    """How many sets of operands are run through in turn."""
    return max(1, min(16, COLD_BYTES // max(1, nbytes)))


def half(dtype: torch.dtype, m: int, n: int, k: int) -> list[Call]:
    """Products in a 16-bit type."""
    sets = copies_of(2 * (m * k + k * n))
    made = [
        (
            torch.randn(m, k, device="cuda", dtype=dtype),
            torch.randn(k, n, device="cuda", dtype=dtype),
        )
        for _ in range(sets)
    ]
    return [partial(torch.matmul, a, b) for a, b in made]


def conv(dtype: torch.dtype, m: int, n: int, k: int) -> list[Call]:
    """Convolutions with a kernel of one element, channels last."""
    height = next(h for h in range(int(m**0.5), 0, -1) if m % h == 0)
    weight = torch.randn(n, k, 1, 1, device="cuda", dtype=dtype)
    weight = weight.to(memory_format=torch.channels_last)
    made = [
        torch.randn(1, k, height, m // height, device="cuda", dtype=dtype).to(
            memory_format=torch.channels_last
        )
        for _ in range(copies_of(2 * m * k))
    ]
    return [partial(torch.nn.functional.conv2d, a, weight) for a in made]


def fp8(m: int, n: int, k: int) -> list[Call]:
    """Products of E4M3 values with one scale a tensor, result in bf16."""
    one = torch.ones((), device="cuda")
    made = []
    for _ in range(copies_of(m * k + k * n)):
        a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).t()
        made.append((a, b))
    scaled = partial(
        torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return [partial(scaled, a, b) for a, b in made]


def int8(m: int, n: int, k: int) -> list[Call]:
    """Products of int8 values, result in int32; torch takes more than 16 rows."""
    if m <= 16:
        return []
    made = []
    for _ in range(copies_of(m * k + k * n)):
        a = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
        b = torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8).t()
        made.append((a, b))
    return [partial(torch._int_mm, a, b) for a, b in made]


FORMATS: tuple[tuple[str, str, Callable[[int, int, int], list[Call]]], ...] = (
    ("gemm", "fp16", partial(half, torch.float16)),
    ("conv", "fp16", partial(conv, torch.float16)),
    ("gemm", "bf16", partial(half, torch.bfloat16)),
    ("conv", "bf16", partial(conv, torch.bfloat16)),
    ("gemm", "fp8_e4m3", fp8),
    ("gemm", "int8", int8),
)


def time_ns(calls: list[Call]) -> float:
    """Median time of one call, over graphs that run all of them in turn."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    repeats = max(1, CALLS // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    found: list[float] = []
    for _ in range(GRAPHS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e6 / (repeats * len(calls)))
    return float(median(found))


def main(out: Path) -> None:
    """Measure everything and write the profile."""
    times: list[dict[str, Any]] = []
    for kind, form, make in FORMATS:
        for m, n, k in products():
            try:
                calls = make(m, n, k)
                if not calls:
                    continue
                time = time_ns(calls)
            except RuntimeError as error:
                # A shape that torch does not take in a format is no product of this device.
                sys.stderr.write(f"{kind} {form} {m}x{n}x{k}: {str(error).splitlines()[0]}\n")
                continue
            times.append(
                {
                    "kind": kind,
                    "format": form,
                    "m": m,
                    "n": n,
                    "k": k,
                    "time_ns": float(f"{time:.6g}"),
                }
            )
        best = max(
            2 * t["m"] * t["n"] * t["k"] / t["time_ns"] for t in times if t["format"] == form
        )
        sys.stderr.write(f"{kind} {form}: at most {best / 1000:.0f} TFLOP/s\n")
    copies = []
    for power in (20, 22, 24, 26, 28, 30):
        source = torch.empty(1 << power, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        time = time_ns([partial(target.copy_, source)])
        copies.append({"bytes": 1 << power, "time_ns": float(f"{time:.6g}")})
    profile = {
        "version": 1,
        "engine": "torch",
        "engine_version": str(torch.__version__),
        "device": torch.cuda.get_device_name(),
        "threads": 1,
        "details": {
            "cuda": str(torch.version.cuda),
            "timing": "CUDA graphs, operands out of cache",
        },
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "products": times,
        "copies": copies,
    }
    out.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
