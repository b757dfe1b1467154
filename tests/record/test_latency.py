"""Absolute times: from every session that timed a label, and from no void one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bitworth.record.derive import derive
from bitworth.record.latency import latencies, rate
from bitworth.record.schema import CellFacts, Record
from bitworth.record.tables_latency import latency_table
from bitworth.verdict import CellVerdict, Gate


def with_cell(record: Record, cell: CellFacts) -> Record:
    facts = record.facts.model_copy(update={"cells": (cell, *record.facts.cells[1:])})
    return record.model_copy(update={"facts": facts, "derived": derive(facts)})


def test_median_of_a_call_by_hand(record: Record) -> None:
    cell, derived = record.facts.cells[0], record.derived.cells[0]
    rows = {row.variant: row for row in derived.latency}
    void = {
        s.variant
        for s in derived.variants
        if s.comparison is not None and s.comparison.verdict == "void"
    }
    assert void
    timed = {label for job in cell.jobs for label in job.labels}
    assert set(rows) == timed - void - {"baseline again"}
    medians = [
        np.median(
            [
                ns
                for blocks, order in zip(s.samples_ns, s.order, strict=True)
                for ns in blocks[order.index(0)]
            ]
        )
        for job in cell.jobs
        for s in job.sessions
    ]
    p50 = rows["baseline"].p50
    assert p50 is not None
    assert p50.n == len(medians)
    assert p50.value_ns == pytest.approx(np.exp(np.mean(np.log(medians))), rel=1e-5)
    assert p50.low_ns is not None
    assert p50.high_ns is not None
    assert p50.low_ns < p50.value_ns < p50.high_ns
    # A few dozen calls a session: none of them is beyond p99, and none is claimed to be.
    assert all(row.tail is None for row in rows.values())
    table = latency_table(record, 0)
    assert any("too few calls" in note.text for note in table.notes)
    assert [row[0].text for row in table.rows] == list(rows)


def test_a_tail_is_that_of_its_cell(make_record: Callable[..., Record]) -> None:
    record = make_record(samples=40, engines=("onnxruntime",))
    cell = record.facts.cells[0]
    assert all(row.tail is not None for row in record.derived.cells[0].latency)
    tail = cell.model_copy(update={"mode": "tail", "quantile": 0.9})
    record = with_cell(record, tail)
    found = record.derived.cells[0].latency[0].tail
    assert found is not None
    assert found.quantile == 0.9
    assert [c.title.text for c in latency_table(record, 0).columns][1:3] == [
        "p50 (interval)",
        "p90 (interval)",
    ]


def test_throughput_counts_streams_and_samples(record: Record) -> None:
    cell = record.facts.cells[0]
    jobs = tuple(job.model_copy(update={"inner": 3}) for job in cell.jobs)
    update = {"mode": "throughput", "streams": 3, "batch": 4, "jobs": jobs}
    changed = with_cell(record, cell.model_copy(update=update))
    once = {row.variant: row.p50 for row in record.derived.cells[0].latency}
    for row in changed.derived.cells[0].latency:
        p50 = once[row.variant]
        assert p50 is not None
        assert row.throughput is not None
        # Three calls of four samples in what took one call of one.
        assert row.throughput.items_per_s == pytest.approx(12e9 / p50.value_ns, rel=0.05)
    text = [cell.text for row in latency_table(changed, 0).rows for cell in row]
    assert len(text) == 3 * len(once)
    samples = np.array([1e9, 3e9])  # two samples of three inferences each in four seconds
    assert rate(2, [(3, samples), (3, samples)]).items_per_s == 3


def test_a_job_whose_checks_failed_has_no_times(record: Record) -> None:
    cell, derived = record.facts.cells[0], record.derived.cells[0]
    failed = Gate("A/A", "failed", "")
    verdicts: list[CellVerdict] = [replace(v, gates=(failed,)) for v in derived.verdicts]
    assert latencies(cell, verdicts) == ()
    assert latencies(cell, derived.verdicts) == derived.latency


def test_older_records_have_no_such_section(record: Record) -> None:
    cells = tuple(c.model_copy(update={"latency": ()}) for c in record.derived.cells)
    old = record.model_copy(update={"derived": record.derived.model_copy(update={"cells": cells})})
    table = latency_table(old, 0)
    assert (table.rows, table.notes) == ((), ())


def test_several_calls_of_one_sample_have_a_median_and_no_tail(
    make_record: Callable[..., Record],
) -> None:
    record = make_record(samples=40, engines=("onnxruntime",))
    cell = record.facts.cells[0]
    jobs = tuple(job.model_copy(update={"inner": 5}) for job in cell.jobs)
    changed = with_cell(record, cell.model_copy(update={"jobs": jobs}))
    once = {row.variant: row.p50 for row in record.derived.cells[0].latency}
    for row in changed.derived.cells[0].latency:
        p50 = once[row.variant]
        assert p50 is not None
        assert row.p50 is not None
        assert row.p50.value_ns == pytest.approx(p50.value_ns / 5, rel=1e-4)
        assert row.tail is None
    # Ratios are the same: both sides have as many calls.
    assert [v.comparison for v in changed.derived.cells[0].variants] == [
        v.comparison for v in record.derived.cells[0].variants
    ]
