"""Bitworth against other quantizers: all is explained, and still what Bitworth does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers import causes, float_values, forms, judge
from benchmarks.peers.errors import error, exchanged, outputs
from benchmarks.peers.qdq import quantized_tensors
from benchmarks.peers.report import DOCUMENT, insert
from benchmarks.peers.results import RESULTS, Comparison, Facts, Role, Row, Run, read, write
from bitworth.calibration import RangeAccumulator, RangeStatistics, activation_scale
from bitworth.lowering.scaling import TensorScale

COMPARISONS = [read(RESULTS / f"{name}.json") for name in forms.MODELS]
FORMS = {(form.peer, form.method): form for form in forms.FORMS}
RUNS = [
    pytest.param(comparison, run, id=f"{comparison.model}-{run.peer}-{run.method}")
    for comparison in COMPARISONS
    for run in comparison.runs
]


def test_the_document_holds_what_the_results_say() -> None:
    text = DOCUMENT.read_text()
    assert insert(text, COMPARISONS) == text


def test_nothing_is_unexplained() -> None:
    assert judge.unexplained(COMPARISONS) == []


def test_every_form_was_tried_on_every_model() -> None:
    for comparison in COMPARISONS:
        assert [(r.peer, r.method) for r in comparison.runs] == list(FORMS)
        for run in comparison.runs:
            assert (run.theirs is None) == bool(run.failed)


def test_enough_is_compared() -> None:
    for comparison in COMPARISONS:
        for run in comparison.runs:
            shared = [r for r in run.rows if r.ours is not None and r.theirs is not None]
            assert run.failed or len(run.equal) + len(shared) >= 10


@pytest.mark.parametrize(("comparison", "run"), RUNS)
def test_causes_follow_from_the_facts(comparison: Comparison, run: Run) -> None:
    rule = FORMS[run.peer, run.method].their_rule
    for row in run.rows:
        if row.kind != "activation":
            continue
        if row.ours is not None and row.theirs is not None:
            found = causes.of_scales(
                row.ours, row.theirs, row.tensor, rule, comparison.facts, comparison.related
            )
        else:
            assert row.role is not None
            alone = causes.of_theirs_alone if row.ours is None else causes.of_ours_alone
            found = alone(row.role)
        assert (found.text, found.other) == (row.cause, row.other), row.tensor


@pytest.mark.parametrize(("comparison", "run"), RUNS)
def test_bitworth_still_makes_these_scales(comparison: Comparison, run: Run) -> None:
    recipe = FORMS[run.peer, run.method].recipe
    if recipe.calibrator.name != "max":
        return  # needs the values, of which the facts keep the extremes alone
    wanted = dict(run.equal)
    wanted |= {r.tensor: r.ours for r in run.rows if r.kind == "activation" and r.ours is not None}
    for name, scale in wanted.items():
        facts = comparison.facts[name]
        made = activation_scale(_statistics(facts.low, facts.high), recipe)
        assert isinstance(made, TensorScale)
        assert float(made.scale) == pytest.approx(scale, rel=causes.LAST_DIGITS), name


def _statistics(low: float, high: float) -> RangeStatistics:
    accumulator = RangeAccumulator()
    accumulator.add(np.array([low, high], np.float32))
    return accumulator.finish()
