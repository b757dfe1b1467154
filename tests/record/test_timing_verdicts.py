"""What was observed while timing, from a record's facts into its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bitworth.record.schema import CellFacts
from bitworth.record.timing_facts import SessionFacts, TimingJob
from bitworth.record.timing_verdicts import cycle_ratios, job_blocks, judge_job
from bitworth.verdict import Comparison, Gate, TimingRules, session_schedule

LABELS = ("baseline", "baseline again", "int8")
RULES = TimingRules()
#: Values of a block by quantity, from its label and a generator.
Seen = Mapping[str, Any]


def job(
    clocks: Seen, missing: Mapping[str, str] | None = None, ratio: float = 0.8, n: int = 6
) -> TimingJob:
    """A job with times of a known ratio; ``clocks`` gives what was seen by label and round."""
    sessions = []
    for index in range(n):
        generator = np.random.default_rng(index)
        schedule = session_schedule(3, seed=1, session=index)
        times = [1e6, 1e6, 1e6 * ratio]
        samples = tuple(
            tuple(
                tuple(round(times[label] * (1 + 0.002 * e)) for e in generator.standard_normal(4))
                for label in row
            )
            for row in schedule.rounds
        )
        columns = {
            name: tuple(
                tuple(value(label, r, index) for label in row)
                for r, row in enumerate(schedule.rounds)
            )
            for name, value in clocks.items()
        }
        sessions.append(
            SessionFacts(
                session=index, start_order=schedule.start_order, order=schedule.rounds,
                samples_ns=samples, failures={}, load_ns={}, peak_bytes={}, engine_bytes={},
                wall_ns=1, steal_ratio=0.0, others_ratio=0.01, clocks=columns,
                not_observable=dict(missing or {}),
            )
        )  # fmt: skip
    return TimingJob(
        labels=LABELS, seed=1, lead_in=1, iterations=4, call_ns=1_000_000, minimum_rounds=10,
        sessions=tuple(sessions), stopped="",
    )  # fmt: skip


def judged(of: TimingJob) -> tuple[Comparison, dict[str, Gate]]:
    found = judge_job(of, RULES, 1, {}).comparisons[0]
    return found, {gate.name: gate for gate in found.gates}


def cell(of: TimingJob, quantile: float | None = None) -> CellFacts:
    return CellFacts.model_construct(jobs=(of,), quantile=quantile)


def cpu(mhz: float = 3000.0, others: float = 0.01, from_label: int = 2) -> Seen:
    """The variant's blocks at another frequency, or with other processes beside them."""
    return {
        "cpu_mhz": lambda label, r, _: (mhz if label == from_label else 3000.0) + r % 3,
        "others_ratio": lambda label, r, _: (others if label == from_label else 0.01) + 0.001 * r,
        "steal_ratio": lambda label, r, _: 0.0,
    }


def test_a_quiet_machine_passes() -> None:
    found, gates = judged(job(cpu()))
    assert found.verdict == "faster"
    states = {name: gates[name].state for name in ("cpu frequency", "interference balance")}
    assert set(states.values()) == {"passed"}
    assert not {"throttling", "sm clock", "gpu processes"} & set(gates)
    assert cycle_ratios(cell(job(cpu())), RULES) == ()


def test_what_nobody_recorded_is_not_passed() -> None:
    found, gates = judged(job({}))
    assert found.verdict == "faster"
    assert gates["cpu frequency"].state == "not_observable"
    assert gates["cpu frequency"].detail == "the sessions did not record it"
    reason = {"cpu_mhz": "the frequency is a constant", "sm_mhz": "NVML: Driver Not Loaded"}
    _, gates = judged(job({}, reason))
    assert gates["cpu frequency"].detail == "the frequency is a constant"
    for name in ("sm clock", "throttling", "gpu processes"):
        assert gates[name].state == "not_observable"


def test_a_slower_clock_is_told_with_the_ratio_of_cycles() -> None:
    of = job(cpu(mhz=2700.0))
    found, gates = judged(of)
    assert found.verdict == "faster"
    assert gates["cpu frequency"].state == "warning"
    assert "-10% against baseline" in gates["cpu frequency"].detail
    (ratio,) = cycle_ratios(cell(of), RULES)
    assert (ratio.variant, ratio.clock) == ("int8", "cpu_mhz")
    assert ratio.clock_ratio == pytest.approx(0.9, rel=1e-3)
    assert ratio.cycle_ratio == pytest.approx(0.72, rel=2e-3)
    assert found.time_ratio == pytest.approx(0.8, rel=2e-3)
    assert cycle_ratios(cell(of, quantile=0.99), RULES) == ()


def test_others_that_disturbed_one_plan() -> None:
    found, gates = judged(job(cpu(others=0.2)))
    assert found.verdict == "faster"
    assert gates["interference balance"].state == "warning"
    _, gates = judged(job(cpu(others=0.2, from_label=1)))
    assert gates["interference balance"].state == "passed"


def gpu(bad: Any = lambda label, r, s: False, **values: Any) -> Seen:
    """A GPU whose clock falls to half in the blocks that ``bad`` names."""
    return {
        "sm_mhz": lambda label, r, s: 700.0 if bad(label, r, s) else 1500.0,
        "throttle_bits": lambda *_: 0x4,
        "other_processes": lambda *_: 0,
        **values,
    }


def test_a_power_cap_voids_nothing() -> None:
    """The variant runs at 70% of the baseline's clock in every block, with the cap's bit set."""
    of = job(gpu(sm_mhz=lambda label, r, s: 1050.0 if label == 2 else 1500.0))
    found, gates = judged(of)
    assert found.verdict == "faster"
    assert gates["throttling"].state == "passed"
    assert gates["sm clock"].state == "warning"
    (ratio,) = cycle_ratios(cell(of), RULES)
    assert (ratio.clock, ratio.clock_ratio) == ("sm_mhz", 0.7)
    assert ratio.cycle_ratio == pytest.approx(0.56, rel=2e-3)


def test_a_few_throttled_blocks_drop_their_rounds() -> None:
    of = job(gpu(bad=lambda label, r, s: label == 2 and r == 0))
    found, gates = judged(of)
    assert found.verdict == "faster"
    assert gates["throttling"].state == "warning"
    assert gates["dropped"].detail.startswith("6 of ")
    blocks = job_blocks(of)
    assert sum(int(np.isnan(b.value_ns).sum()) for b in blocks) == 6


@pytest.mark.parametrize("label", [0, 2])
def test_many_throttled_blocks_void(label: int) -> None:
    hot = {"throttle_bits": lambda at, r, s: 0x20 if at == label and r < 3 else 0}
    found, gates = judged(job(gpu(**hot)))
    assert found.verdict == "void"
    assert "throttling: 18 of " in found.reason
    assert gates["dropped"].state == "failed"


def test_a_session_that_was_held_down_is_void() -> None:
    found, _ = judged(job(gpu(bad=lambda label, r, s: s == 0)))
    assert found.verdict == "void"
    assert found.time_ratio is None


def test_a_throttled_block_does_not_hide_a_broken_clock() -> None:
    of = job(gpu(bad=lambda label, r, s: (label, r, s) == (2, 0, 0)))
    first = of.sessions[0]
    at = first.order[0].index(2)
    row = list(first.samples_ns[0])
    row[at] = (-5, *row[at][1:])
    broken = first.model_copy(update={"samples_ns": (tuple(row), *first.samples_ns[1:])})
    found, _ = judged(of.model_copy(update={"sessions": (broken, *of.sessions[1:])}))
    assert found.verdict == "void"
    assert "clock: 1 blocks" in found.reason


def test_another_process_on_the_gpu_is_told() -> None:
    found, gates = judged(job(gpu(other_processes=lambda label, r, s: int(s == 0))))
    assert found.verdict == "faster"
    assert gates["gpu processes"].state == "warning"
    _, gates = judged(job(gpu()))
    assert gates["gpu processes"].state == "passed"
