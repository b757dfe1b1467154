"""The overhead benchmark gives figures that hang together; how large they are, it says itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.timing.models import prepare
from benchmarks.timing.overhead import between_blocks, first_sample, sample_overhead
from bitworth.measurement.timing import BLOCK_NS, LEAD_IN_NS, MAX_SAMPLES


def test_an_empty_call_has_a_time() -> None:
    found = sample_overhead(blocks=5)
    assert 0 < found.empty_ns <= found.empty_p99_ns
    assert found.block_share == pytest.approx(MAX_SAMPLES * found.empty_ns / BLOCK_NS)
    assert found.shortest_call_ns == pytest.approx(1000 * found.empty_ns)


def test_a_session_has_gaps(tmp_path: Path) -> None:
    target, plan = prepare("unit", "onnxruntime", tmp_path, threads=1)
    first = first_sample(target, plan, blocks=2)
    assert first.without_lead_in > 0
    assert first.with_lead_in > 0
    assert first.call_ns > 0
    gaps = between_blocks(target, plan, labels=2, squares=2)
    assert gaps.blocks == 6
    assert gaps.clocks_ns > 0
    assert gaps.gap_ns > 0
    whole = gaps.gap_ns + LEAD_IN_NS + BLOCK_NS
    assert gaps.gap_share == pytest.approx(gaps.gap_ns / whole)
    assert gaps.unseen_share == pytest.approx(1 - BLOCK_NS / whole)
