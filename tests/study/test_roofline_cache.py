"""What the user's cache holds of a device, and what is measured anew."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bitworth.bound.product_graph import Product
from bitworth.engines.base import EngineOptions
from bitworth.record.device_profile import CopyTime, DeviceProfile, ProductTime
from bitworth.study import roofline_cache
from bitworth.study.progress import Reporter
from bitworth.study.roofline_cache import CACHE, cache_file, device_rates, merged
from bitworth.study.roofline_stage import LARGE
from bitworth.study.workspace import Workspace

INFO: dict[str, Any] = {"version": "1", "device": "a CPU", "details": {"isa": "avx2"}}
OPTIONS = EngineOptions(2)
A, B, C = (Product("gemm", m, 64, 64) for m in (8, 16, 32))


def profile(times: dict[Product, dict[str, float]], copy_ns: float = 10.0) -> DeviceProfile:
    products = tuple(
        ProductTime(kind=p.kind, format=f, m=p.m, n=p.n, k=p.k, time_ns=t)
        for p, formats in times.items()
        for f, t in formats.items()
    )
    return DeviceProfile(
        engine="mock", engine_version="1", device="a CPU", threads=2, details={}, created="now",
        products=products, copies=(CopyTime(bytes=1024, time_ns=copy_ns),),
    )  # fmt: skip


class Measured:
    """Stands for the measurement, and counts what it is asked for."""

    def __init__(self, ns: float = 100.0) -> None:
        self.asked: list[set[Product]] = []
        self.ns = ns

    def __call__(
        self, workspace: Any, engine: Any, info: Any, options: Any, products: Sequence[Product],
        reporter: Any,
    ) -> DeviceProfile:  # fmt: skip
        self.asked.append(set(products))
        return profile({p: {"fp32": self.ns, "int8": self.ns / 2} for p in {*products, *LARGE}})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measured:
    found = Measured()
    monkeypatch.setattr(roofline_cache, "measure_device", found)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return found


def ask(tmp_path: Path, *products: Product, **changes: Any) -> DeviceProfile:
    info = {**INFO, **changes.pop("info", {})}
    options = changes.pop("options", OPTIONS)
    reporter = Reporter(Console(file=io.StringIO()), quiet=True)
    return device_rates(Workspace(tmp_path / "w"), "mock", info, options, products, reporter)


def shapes(found: DeviceProfile) -> set[tuple[int, int, int]]:
    return {(p.m, p.n, p.k) for p in found.products}


def test_only_what_is_new_is_measured(measured: Measured, tmp_path: Path) -> None:
    ask(tmp_path, A, B)
    found = ask(tmp_path, B, C)
    ask(tmp_path, A, C)
    assert measured.asked == [{A, B}, {C}]
    # What the last study has no site of is not in its record.
    assert (A.m, A.n, A.k) not in shapes(found)
    assert {(B.m, B.n, B.k), (C.m, C.n, C.k)} <= shapes(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"info": {"version": "2"}},
        {"info": {"device": "another CPU"}},
        {"info": {"details": {"isa": "avx512f"}}},
        {"options": EngineOptions(1)},
        {"options": EngineOptions(2, extra={"k": "v"})},
        {"options": EngineOptions(2, "basic")},
    ],
)
def test_another_device_is_measured_for_itself(
    measured: Measured, tmp_path: Path, changes: dict[str, Any]
) -> None:
    ask(tmp_path, A)
    ask(tmp_path, A, **changes)
    assert measured.asked == [{A}, {A}]


def test_the_limit_is_the_fastest_product_that_any_study_measured(
    measured: Measured, tmp_path: Path
) -> None:
    fast = Product("gemm", 4096, 512, 512)
    ask(tmp_path, fast)
    found = ask(tmp_path, A)
    assert found.peak("int8") == pytest.approx(2 * 4096 * 512 * 512 / 50)


def test_a_faster_measurement_replaces_a_product_with_all_its_formats() -> None:
    """What disturbs a measurement adds to it, and ratios are within one measurement."""
    old = profile({A: {"fp32": 100.0, "int8": 30.0}, B: {"fp32": 10.0, "int8": 5.0}})
    new = profile({A: {"fp32": 80.0, "int8": 40.0}, B: {"fp32": 20.0, "int8": 6.0}}, copy_ns=7.0)
    found = {(p.m, p.format): p.time_ns for p in merged(old, new).products}
    assert found == {(8, "fp32"): 80, (8, "int8"): 40, (16, "fp32"): 10, (16, "int8"): 5}
    assert merged(old, new).copies[0].time_ns == 7.0
    assert merged(new, old).copies[0].time_ns == 7.0


def test_a_format_that_came_later_replaces_what_has_it_not() -> None:
    old = profile({A: {"fp32": 10.0}})
    new = profile({A: {"fp32": 100.0, "int8": 30.0}})
    for one in (merged(old, new), merged(new, old)):
        assert {(p.format, p.time_ns) for p in one.products} == {("fp32", 100.0), ("int8", 30.0)}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 1}'])
def test_a_cache_that_cannot_be_read_is_measured_again(
    measured: Measured, tmp_path: Path, content: bytes
) -> None:
    path = cache_file("mock", INFO, OPTIONS)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    ask(tmp_path, A)
    ask(tmp_path, A)
    assert measured.asked == [{A}]


def test_a_cache_that_cannot_be_written_is_done_without(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(CACHE, str(blocked))
    assert shapes(ask(tmp_path, A)) >= {(A.m, A.n, A.k)}
    ask(tmp_path, A)
    assert measured.asked == [{A}, {A}]
