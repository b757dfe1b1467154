"""Compares the models that the peers wrote with Bitworth's, tensor by tensor and by outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.peers import causes, histograms, kept
from benchmarks.peers import float_values as floats
from benchmarks.peers import ours as bitworth
from benchmarks.peers.errors import DECISIONS, error, exchanged
from benchmarks.peers.forms import FORMS, Form
from benchmarks.peers.qdq import Quantized, quantized_tensors
from benchmarks.peers.results import Comparison, Error, Facts, Row, Run
from benchmarks.peers.subject import Subject
from bitworth.calibration import RangeStatistics, weight_scale
from bitworth.lowering.scaling import TensorScale

#: A scale that is changed by so little is as good, and other values are rounded the other way.
NUDGES = (0.97, 0.99, 1.0, 1.01, 1.03)


def compare(subject: Subject, versions: dict[str, dict[str, str]]) -> Comparison:
    """All runs of one model; ``versions`` are noted as they are."""
    name, files = subject.name, subject.files
    theirs = {
        form.name: quantized_tensors(onnx.load(files.written[form.name]))
        for form in FORMS
        if form.name in files.written
    }
    seen = dict.fromkeys(
        subject.canonical(q.name)
        for found in theirs.values()
        for q in found
        if q.kind == "activation"
    )
    statistics = subject.statistics([n for n in seen if subject.is_prepared(n)])
    facts = kept.value(
        files.work,
        kept.key("facts", subject.sha256, subject.data_sha256, list(statistics), _named(theirs)),
        dict[str, Facts],
        lambda: _facts(subject, [*dict.fromkeys([*statistics, *seen])], theirs),
    )
    related = {n: subject.roles.related(n) for n in facts}
    weights = _weight_facts(subject)
    runs = [
        _run(subject, form, theirs.get(form.name), statistics, facts, weights, related)
        for form in FORMS
    ]
    used = _used(runs, related)
    return Comparison(
        model=name,
        sha256=subject.sha256,
        data_sha256=subject.data_sha256,
        calibration=len(next(iter(subject.calibration.values()))),
        holdout=len(next(iter(subject.holdout.values()))),
        decision=DECISIONS[name],
        versions=versions,
        facts={n: f for n, f in facts.items() if n in used},
        weights=weights,
        related={n: r for n, r in related.items() if n in used and r},
        runs=tuple(runs),
    )


def _run(
    subject: Subject,
    form: Form,
    theirs: Sequence[Quantized] | None,
    statistics: Mapping[str, RangeStatistics],
    facts: Mapping[str, Facts],
    weights: Mapping[str, Facts],
    related: Mapping[str, tuple[str, ...]],
) -> Run:
    path = subject.files.work / f"{subject.name}.bitworth.{form.name}.onnx"
    left_out = dict(bitworth.quantize(subject.ours, form.recipe, statistics, path))
    mine = quantized_tensors(onnx.load(path))
    run = Run(form.peer, form.method, ours=_error(subject, path))
    if theirs is None:
        return replace(run, failed=subject.files.failures[form.name])
    inputs = subject.files.work / f"{subject.name}.inputs.{form.name}.onnx"
    bitworth.quantize(subject.ours, bitworth.inputs_only(form.recipe), statistics, inputs)
    written = onnx.load(subject.files.written[form.name])
    common = {q.name for q in mine if q.kind == "activation"}
    scales = bitworth.scales(form.recipe, statistics, tuple(common))
    places = {q.name: subject.canonical(q.name) for q in theirs if q.kind == "activation"}
    swapped = exchanged(
        written, {given: scales[name] for given, name in places.items() if name in common}
    )
    sites = {s for q in theirs if q.kind == "weight" and (s := subject.site_of(q)) is not None}
    fewer = subject.files.work / f"{subject.name}.sites.{form.name}.onnx"
    if sites < {site.id for site in subject.ours.sites}:
        bitworth.quantize(subject.ours, form.recipe, statistics, fewer, sites)
        run = replace(run, ours_their_sites=_error(subject, fewer))
        only = bitworth.inputs_only(form.recipe)
        bitworth.quantize(subject.ours, only, statistics, fewer, sites)
        run = replace(run, ours_their_inputs=_error(subject, fewer))
    equal, rows = _activations(subject, form, mine, theirs, facts, related)
    equal_weights, weight_rows = _weights(subject, form, mine, theirs, weights, left_out)
    return replace(
        run,
        equal=equal,
        equal_weights=equal_weights,
        rows=(*rows, *weight_rows),
        theirs=_error(subject, written),
        ours_inputs_only=_error(subject, inputs),
        exchanged=_error(subject, swapped),
        nudged=_nudged(subject, written, theirs),
    )


def _nudged(
    subject: Subject, written: onnx.ModelProto, theirs: Sequence[Quantized]
) -> tuple[float, float]:
    """The smallest and the largest error of the peer's model under its own scales, nudged."""
    own = {
        q.name: TensorScale("int8", q.scale.astype(np.float32), int(q.zero_point[0]))
        for q in theirs
        if q.kind == "activation" and q.scale.size == 1
    }
    found = [
        _error(
            subject,
            exchanged(
                written, {n: replace(s, scale=s.scale * np.float32(factor)) for n, s in own.items()}
            ),
        ).relative_l2
        for factor in NUDGES
    ]
    return min(found), max(found)


def _error(subject: Subject, model: Path | onnx.ModelProto) -> Error:
    return error(subject.name, subject.outputs(model), subject.reference)


def _named(theirs: Mapping[str, Sequence[Quantized]]) -> list[tuple[str, list[str]]]:
    return [
        (form, [q.name for q in found if q.kind == "activation"]) for form, found in theirs.items()
    ]


def _activations(
    subject: Subject,
    form: Form,
    mine: Sequence[Quantized],
    theirs: Sequence[Quantized],
    facts: Mapping[str, Facts],
    related: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, float], list[Row]]:
    ours = {q.name: q for q in mine if q.kind == "activation"}
    others = {subject.canonical(q.name): q for q in theirs if q.kind == "activation"}
    sites = {s for q in theirs if q.kind == "weight" and (s := subject.site_of(q)) is not None}
    equal: dict[str, float] = {}
    rows: list[Row] = []
    for name in dict.fromkeys([*ours, *others]):
        one, other = ours.get(name), others.get(name)
        role = subject.roles.of(name, sites)
        if one is not None and other is not None:
            a, b = float(one.scale), float(other.scale)
            apart = causes.relative(a, b)
            if apart <= causes.EQUAL and one.zero_point == other.zero_point:
                equal[name] = a
                continue
            cause = causes.of_scales(a, b, name, form.their_rule, facts, related)
        else:
            apart = 0.0
            cause = causes.of_theirs_alone(role) if one is None else causes.of_ours_alone(role)
        rows.append(
            Row(
                tensor=name,
                kind="activation",
                ours=None if one is None else float(one.scale),
                theirs=None if other is None else float(other.scale),
                our_zero=0.0 if one is None else one.zero_point[0],
                their_zero=0.0 if other is None else other.zero_point[0],
                apart=apart,
                cause=cause.text,
                other=cause.other,
                role=role if one is None or other is None else None,
            )
        )
    return equal, rows


def _weights(
    subject: Subject,
    form: Form,
    mine: Sequence[Quantized],
    theirs: Sequence[Quantized],
    weights: Mapping[str, Facts],
    left_out: Mapping[str, str],
) -> tuple[dict[str, float], list[Row]]:
    inputs = {site.id: site.activation for site in subject.ours.sites}
    activations = {
        subject.canonical(q.name): float(q.scale) for q in theirs if q.kind == "activation"
    }
    biases = bitworth.biases(subject.ours)
    ours = {subject.site_of(q): q for q in mine if q.kind == "weight"}
    others = {subject.site_of(q) or q.name: q for q in theirs if q.kind == "weight"}
    equal: dict[str, float] = {}
    rows: list[Row] = []
    for name in dict.fromkeys([*ours, *others]):
        assert name is not None
        one, other = ours.get(name), others.get(name)
        apart, off = 0.0, None
        if one is not None and other is not None:
            a, b = one.scale.ravel(), other.scale.ravel()
            apart = float(np.max(np.abs(a - b) / np.maximum(a, b))) if a.size == b.size else 0.0
            if a.size == b.size and apart <= causes.EQUAL:
                equal[name] = float(a.max())
                continue
            weight = causes.Weight(
                facts=weights[name],
                **_plain(subject, name, form),
                unfolded=subject.unfolded(name),
                bias=biases.get(name),
                input_scale=activations.get(inputs[name]),
            )
            cause, off = causes.of_weights(a, b, weight, form.their_rule)
        elif other is None:
            cause = causes.Cause(causes.LEFT_OUT)
        elif name in left_out:
            cause = causes.Cause(f"Bitworth leaves it out: {left_out[name]}")
        else:
            kinds = ", ".join(dict.fromkeys(op for op, _ in other.uses))
            cause = causes.Cause(f"no site: a constant of {kinds}")
        rows.append(
            Row(
                tensor=name,
                kind="weight",
                ours=None if one is None else float(one.scale.max()),
                theirs=None if other is None else float(other.scale.max()),
                our_zero=0.0,
                their_zero=0.0 if other is None else other.zero_point[0],
                apart=apart,
                cause=cause.text,
                off=off,
            )
        )
    return equal, rows


def _plain(subject: Subject, name: str, form: Form) -> dict[str, NDArray[Any]]:
    """Scales of a site's weight from its magnitudes alone, and which of its channels are zeros."""
    site = next(s for s in subject.ours.sites if s.id == name)
    array = subject.weight(name)
    made = weight_scale(array, site, form.recipe)
    others = tuple(i for i in range(array.ndim) if i != made.axis)
    dead = ~array.any(axis=None if made.axis is None else others)
    return {
        "plain": np.atleast_1d(made.scale).astype(np.float64),
        "dead": np.atleast_1d(np.asarray(dead)),
    }


def _facts(
    subject: Subject, names: Sequence[str], theirs: Mapping[str, Sequence[Quantized]]
) -> dict[str, Facts]:
    """Extremes of every value, and what the histogram methods make of those they are used on."""
    inside = [n for n in names if subject.is_prepared(n)]
    outside = [n for n in names if not subject.is_prepared(n)]
    extremes = floats.extremes(subject.prepared, subject.calibration, inside)
    before = {n: n.removesuffix(" (before folding)") for n in outside}
    given = floats.extremes(subject.files.model, subject.calibration, list(before.values()))
    extremes |= {n: given[plain] for n, plain in before.items() if plain in given}

    def used(rule: str) -> dict[str, tuple[float, float]]:
        chosen = {
            subject.canonical(q.name)
            for form in FORMS
            if form.their_rule == rule
            for q in theirs.get(form.name, ())
            if q.kind == "activation"
        }
        return {n: extremes[n] for n in inside if n in chosen}

    sample, whole, fp8 = (
        used("symmetric entropy, 128 bins by sample"),
        used("asymmetric entropy, 128 bins"),
        used("fp8 deviation"),
    )
    path, data = subject.prepared, subject.calibration
    by_sample = histograms.entropy_by_sample(path, data, set(sample))
    of_all = histograms.entropy_of_all(path, data, whole)
    deviation = histograms.deviations(path, data, fp8)
    return {
        name: Facts(*extreme, by_sample.get(name), of_all.get(name), deviation.get(name))
        for name, extreme in extremes.items()
    }


def _weight_facts(subject: Subject) -> dict[str, Facts]:
    found = {}
    for site in subject.ours.sites:
        array = subject.weight(site.id)
        found[site.id] = Facts(
            float(array.min()), float(array.max()), deviation=float(np.std(array))
        )
    return found


def _used(runs: Sequence[Run], related: Mapping[str, tuple[str, ...]]) -> set[str]:
    named = {row.tensor for run in runs for row in run.rows} | {
        name for run in runs for name in run.equal
    }
    return named | {other for name in named for other in related.get(name, ())}
