"""The profile of a plan, as facts of the record."""

from __future__ import annotations

from collections.abc import Sequence

from bitworth.engines.base import Arrays, LayerTime
from bitworth.measurement.plans import TIMEOUT_S
from bitworth.measurement.profile import MappedLayer, map_layers, profile_fault
from bitworth.measurement.workers import Worker, WorkerFailed
from bitworth.record.profile_facts import LayerFact, ProfileFacts
from bitworth.study.subjects import StudiedSubject
from bitworth.study.workspace import Workspace
from bitworth.verdict import sig6

#: Profiled calls: as many as this time holds, within these bounds.
PROFILED_NS = 1e9
FEWEST_CALLS, MOST_CALLS = 5, 40


def profile_loaded(
    worker: Worker, workspace: Workspace, plan_sha256: str, inputs: Arrays, subject: StudiedSubject
) -> ProfileFacts:
    """Layer times of the plan that is loaded in ``worker``, mapped to sites, and beside them the
    time of plain calls.

    A profile that cannot be had is a fact too: it has no layers, and says why.
    """
    try:
        worker.ask("bind", inputs, timeout_s=TIMEOUT_S)
        block, _ = worker.ask("block", timeout_s=TIMEOUT_S, lead_in=2, iterations=1)
        calls = _calls(block["samples"][0])
        found, _ = worker.ask("profile", timeout_s=TIMEOUT_S, calls=calls)
    except WorkerFailed as failure:
        return _failed(plan_sha256, workspace.without_paths(str(failure)))
    layers = [
        LayerTime(**{**layer, "origins": tuple(layer["origins"]), "inputs": tuple(layer["inputs"])})
        for layer in found["layers"]
    ]
    if fault := profile_fault(layers):
        return _failed(plan_sha256, fault)
    mapped = map_layers(layers, subject.every_site, subject.producers, subject.upstream)
    return ProfileFacts(
        plan_sha256=plan_sha256,
        calls=calls,
        plain_ns=sig6(found["plain_ns"]),
        layers=_facts(mapped),
    )


def _calls(call_ns: float) -> int:
    return int(min(MOST_CALLS, max(FEWEST_CALLS, PROFILED_NS // max(1.0, call_ns))))


def _failed(plan_sha256: str, reason: str) -> ProfileFacts:
    return ProfileFacts(
        plan_sha256=plan_sha256, calls=None, plain_ns=None, layers=(), failed=reason
    )


def _facts(mapped: Sequence[MappedLayer]) -> tuple[LayerFact, ...]:
    places = {item.layer.name: place for place, item in enumerate(mapped)}
    return tuple(
        LayerFact(
            name=m.layer.name,
            op=m.layer.op,
            kernel=m.layer.kernel,
            precision=m.layer.precision,
            time_ns=sig6(m.layer.time_ns),
            sites=m.sites,
            format=m.layer.format,
            calls=sig6(m.layer.calls),
            inputs=tuple(places[name] for name in m.layer.inputs if name in places),
        )
        for m in mapped
    )
