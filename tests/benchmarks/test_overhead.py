"""The overhead benchmark measures what it says; how large its figures are, it says itself."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import pytest

from benchmarks.timing import overhead
from benchmarks.timing.models import prepare
from benchmarks.timing.overhead import between_blocks, first_sample, sample_overhead
from bitworth.measurement.timing import BLOCK_NS, LEAD_IN_NS, MAX_SAMPLES


def test_an_empty_call_is_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sample_overhead(blocks=5)
    assert found.empty_ns > 0
    assert found.block_share == pytest.approx(MAX_SAMPLES * found.empty_ns / BLOCK_NS)

    def busy(_: object) -> None:
        end = perf_counter_ns() + 50_000
        while perf_counter_ns() < end:
            pass

    monkeypatch.setattr(overhead._EmptySession, "run_with_iobinding", staticmethod(busy))
    assert sample_overhead(blocks=5).empty_ns >= 50_000


def test_a_session_has_gaps(tmp_path: Path) -> None:
    target, plan = prepare("unit", "onnxruntime", tmp_path, threads=1)
    first = first_sample(target, plan, blocks=2)
    assert first.blocks == 2
    assert first.call_ns > 0
    gaps = between_blocks(target, plan, labels=2, squares=2)
    assert gaps.blocks == 6
    assert gaps.clocks_ns > 0
    # A stop, a continue, a command and its answer take longer than no time.
    assert gaps.gap_ns > gaps.clocks_ns / 2
    whole = gaps.gap_ns + LEAD_IN_NS + BLOCK_NS
    assert gaps.unseen_share == pytest.approx(1 - BLOCK_NS / whole)
