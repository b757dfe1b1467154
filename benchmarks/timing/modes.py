"""Throughput and tail as modes of their own: identical plans in each, and what they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.timing.bank import Bank, BankSession
from benchmarks.timing.collect import Design, Say, gather
from benchmarks.timing.models import ENGINES, MATMUL_SIZE, MODELS
from benchmarks.timing.render_real import percent, table
from benchmarks.timing.trials import Tally, identical_trials, tally
from bitworth.engines.base import Arrays, EngineOptions
from bitworth.engines.cpu import usable_cores
from bitworth.measurement.batch import batched
from bitworth.measurement.plans import build_plan
from bitworth.measurement.timing import TimedPlan, TimingTarget
from bitworth.measurement.workers import Worker
from bitworth.record.latency import rate
from bitworth.record.schema import Throughput
from bitworth.verdict import (
    QuantileInterval,
    TimingRules,
    label_samples,
    quantile_interval,
)

BATCHES = (1, 8)
#: Identical plans of a session: two disjoint pairs.
LABELS = 4
QUANTILE = 0.99
SEED = 23
#: Error rate of each interval of an absolute time.
_ALPHA = 0.05


@dataclass(frozen=True)
class Mode:
    """What one bank times.

    Attributes:
        model: of ``MODELS``, with a free first axis.
        engine: on what.
        threads: as ``EngineOptions`` counts them for this engine.
        streams: inferences in flight.
        batch: samples of one inference.
        quantile: what is compared in the tail; None where throughput is.
    """

    model: str
    engine: str
    threads: int
    streams: int = 1
    batch: int = 1
    quantile: float | None = None

    @property
    def name(self) -> str:
        """Of its bank."""
        if self.quantile is not None:
            return f"mode-{self.model}-{self.engine}-p{100 * self.quantile:g}"
        return f"mode-{self.model}-{self.engine}-streams{self.streams}-batch{self.batch}"

    def design(self, labels: int, sessions: int) -> Design:
        """Identical plans in this mode."""
        return Design(self.name, self.model, self.engine, labels, sessions, quantile=self.quantile)


@dataclass(frozen=True)
class ModeResult:
    """What one bank says.

    Attributes:
        mode: what it timed.
        sessions: in the bank.
        tally: of its trials, in six sessions each.
        throughput: samples a second over all plans; None in the tail mode.
        p50, tail: of a call over all plans; None in the throughput mode.
    """

    mode: Mode
    sessions: int
    tally: Tally
    throughput: Throughput | None
    p50: QuantileInterval | None
    tail: QuantileInterval | None


def all_modes() -> tuple[Mode, ...]:
    """Every mode: streams and batches for throughput, one call at a time for the tail.

    The recogniser's batches are left out, and its tail on one of the engines: 500 calls of 20 ms
    for each plan make sessions of the better part of a minute.
    """
    cores = usable_cores()
    found: list[Mode] = []
    for engine in ENGINES:
        found.append(Mode("matmul", engine, cores, quantile=QUANTILE))
        # onnxruntime counts the threads of one inference, openvino those of all streams.
        arrangements = [(cores, 1), (1 if engine == "onnxruntime" else cores, cores)]
        for threads, streams in arrangements:
            found.append(Mode("recogniser", engine, threads, streams))
            found += [Mode("matmul", engine, threads, streams, batch) for batch in BATCHES]
    return (*found, Mode("recogniser", "onnxruntime", cores, quantile=QUANTILE))


def prepare_mode(mode: Mode, folder: Path) -> tuple[TimingTarget, TimedPlan]:
    """Build the mode's plan in ``folder``, unless it is there, and say how to time it."""
    options = EngineOptions(threads=mode.threads, streams=mode.streams)
    log, plan = folder / f"{mode.engine}.log", folder / mode.name / "plan"
    if not plan.exists():
        plan.parent.mkdir(parents=True, exist_ok=True)
        source = _with_free_axis(MODELS[mode.model].write(plan.parent), plan.parent)
        with Worker("build", log) as worker:
            build_plan(worker, mode.engine, source, mode.model, "fp32", options, plan)
    inputs = batched(_samples(mode.model, mode.batch))
    return TimingTarget(mode.engine, options, inputs, log), TimedPlan(mode.model, plan, "fp32")


def _with_free_axis(path: Path, folder: Path) -> Path:
    """The model with inputs and outputs whose first axis is free."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    free = folder / "free.onnx"
    onnx.save(model, free)
    return free


def _samples(model: str, count: int) -> list[Arrays]:
    """Different real inputs of one shape."""
    if model == "recogniser":
        from examples.ocr.inputs import holdout

        return [inputs for inputs, _ in islice(holdout(count, 0), count)]
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal(MATMUL_SIZE[:2], dtype=np.float32)} for _ in range(count)]


def fill(
    modes: Sequence[Mode], banks: Path, plans: Path, labels: int, sessions: int, until: float,
    say: Say,
) -> bool:  # fmt: skip
    """Gather ``sessions`` of every mode, a session at a time in turns; whether all are full."""
    for wanted in range(1, sessions + 1):
        for mode in modes:
            target, plan = prepare_mode(mode, plans)
            design = mode.design(labels, wanted)
            if gather(design, target, plan, banks, until, SEED, say) < wanted:
                return False
    return True


def mode_results(modes: Sequence[Mode], banks: Path, rules: TimingRules) -> tuple[ModeResult, ...]:
    """Judge the banks in ``banks``; modes without a session are left out."""
    found = ((mode, Bank(banks / f"{mode.name}.jsonl.gz").sessions) for mode in modes)
    return tuple(_result(mode, sessions, rules) for mode, sessions in found if sessions)


def _result(mode: Mode, sessions: Sequence[BankSession], rules: TimingRules) -> ModeResult:
    tail = mode.quantile
    times = [_all_samples(session) for session in sessions]
    throughput = None
    if tail is None:
        calls = [session.inner * mode.streams for session in sessions]
        throughput = rate(mode.batch, list(zip(calls, times, strict=True)))
    return ModeResult(
        mode=mode,
        sessions=len(sessions),
        tally=tally(list(identical_trials(sessions, tail)), 1.0, rules),
        throughput=throughput,
        p50=quantile_interval(times, 0.5, _ALPHA) if tail else None,
        tail=quantile_interval(times, tail, _ALPHA) if tail else None,
    )


def _all_samples(session: BankSession) -> NDArray[np.float64]:
    """Of all labels: they are one plan."""
    labels = range(len(session.order[0]))
    return np.concatenate([label_samples(session.order, session.samples_ns, i) for i in labels])


def mode_tables(results: Sequence[ModeResult]) -> str:
    """The tables as Markdown: throughput, tail, each with its false verdicts."""
    throughput = [
        [
            f"{r.mode.model} {r.mode.engine}",
            str(r.mode.streams),
            str(r.mode.threads),
            str(r.mode.batch),
            _rate_text(r.throughput),
            *_judged(r),
        ]
        for r in results
        if r.throughput is not None
    ]
    tail = [
        [f"{r.mode.model} {r.mode.engine}", _ms(r.p50), _ms(r.tail), *_judged(r)]
        for r in results
        if r.tail is not None
    ]
    titles = (
        ">sessions", ">false of trials", ">void", ">one after the other, Welch t",
        ">pooled, Welch t", ">half-width (median)",
    )  # fmt: skip
    return "\n\n".join(
        (
            table(
                ("throughput", ">streams", ">threads", ">batch", ">samples a second", *titles),
                throughput,
            ),
            table(("tail", ">p50, ms", ">p99, ms", *titles), tail),
        )
    )


def _judged(result: ModeResult) -> list[str]:
    found = result.tally
    return [
        str(result.sessions),
        f"{found.found} of {found.trials}",
        str(found.verdicts.get("void", 0)),
        str(found.one_after_the_other),
        str(found.pooled),
        percent(found.half_width),
    ]


def _rate_text(found: Throughput | None) -> str:
    if found is None:
        return ""
    low, high = found.items_per_s_low, found.items_per_s_high
    ends = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{found.items_per_s:.3g}{ends}"


def _ms(found: QuantileInterval | None) -> str:
    if found is None:
        return ""
    low, high = found.low_ns, found.high_ns
    ends = "" if low is None or high is None else f" ({low / 1e6:.3g} to {high / 1e6:.3g})"
    return f"{found.value_ns / 1e6:.3g}{ends}"
