from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitworth.engines.mock_clock import ClockScript, Fault, ScriptedClock, ScriptedMachine

FAULTS: list[Fault] = [
    "build", "crash_build", "crash_run", "raise_run", "hang_run", "nan", "alias"
]  # fmt: skip
positive = st.floats(1e-3, 1e9)
fraction = st.floats(0, 1)


@given(
    st.builds(
        ClockScript,
        base_ns=positive,
        ratios=st.dictionaries(st.text(max_size=8), positive, max_size=3),
        sigma=fraction,
        spike_share=fraction,
        spike_ratio=positive,
        session_bias=fraction,
        block_sigma=fraction,
        autocorrelation=st.floats(-0.99, 0.99),
        block_spike_share=fraction,
        block_spike_mean=fraction,
        drift=fraction,
        position_effect=fraction,
        carry_over=fraction,
        stream_ratio=positive,
        faults=st.dictionaries(st.text(max_size=8), st.sampled_from(FAULTS), max_size=3),
        fault_after=st.integers(0, 99),
        seed=st.integers(0, 2**31),
    )
)
@settings(max_examples=50, deadline=None)
def test_a_script_survives_its_text(script: ClockScript) -> None:
    assert ClockScript.parse(script.dump()) == script
    assert ClockScript.parse("{}") == ClockScript()


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        ClockScript.parse(json.dumps({"speed": 2}))


@pytest.mark.parametrize("value", [-1.0, 1.0, 1.5, math.nan])
def test_noise_that_grows_without_end_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="autocorrelation"):
        ClockScript(autocorrelation=value)


def test_the_scripted_ratio_is_recovered() -> None:
    script = ClockScript(base_ns=2e6, ratios={"fast": 0.8}, sigma=0.02, seed=1)
    base = np.median(ScriptedClock(script, "baseline", "0/0").draw(4000))
    fast = np.median(ScriptedClock(script, "fast", "0/1").draw(4000))
    assert base == pytest.approx(2e6, rel=0.003)
    assert fast / base == pytest.approx(0.8, rel=0.003)


def test_spikes_and_bias() -> None:
    script = ClockScript(sigma=0, spike_share=0.25, spike_ratio=4)
    samples = np.array(ScriptedClock(script, "v", "0/0").draw(4000))
    assert set(samples.tolist()) == {1_000_000, 4_000_000}
    assert np.mean(samples > 2e6) == pytest.approx(0.25, abs=0.03)
    biased = ClockScript(sigma=0, session_bias=0.1)
    centers = {ScriptedClock(biased, "v", f"{session}/0").draw(1)[0] for session in range(9)}
    assert len(centers) == 9


def test_a_sample_takes_at_least_a_nanosecond() -> None:
    assert ScriptedClock(ClockScript(base_ns=1e-3), "v", "").draw(3) == [1, 1, 1]


def blocks(script: ClockScript, order: list[int], slots: int, count: int = 0) -> list[float]:
    machine = ScriptedMachine(script, "0", slots, count)
    return [machine.begin_block(slot) for slot in order]


def test_a_quiet_machine_adds_nothing() -> None:
    assert blocks(ClockScript(), [0, 1, 2, 2, 1, 0], 3, 6) == [0.0] * 6


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, -0.3])
def test_block_noise(autocorrelation: float) -> None:
    script = ClockScript(block_sigma=0.03, autocorrelation=autocorrelation, seed=2)
    noise = np.array(blocks(script, [0, 1] * 10_000, 2))
    assert np.mean(noise) == pytest.approx(0, abs=0.002)
    # The spread is that of the noise as it is, whatever it has to do with the block before.
    assert np.std(noise) == pytest.approx(0.03, rel=0.03)
    lag1 = np.corrcoef(noise[1:], noise[:-1])[0, 1]
    assert lag1 == pytest.approx(autocorrelation, abs=0.03)
    starts = [blocks(script, [0], 1)[0]]
    starts += [ScriptedMachine(script, str(i)).begin_block(0) for i in range(1, 3000)]
    assert np.std(starts) == pytest.approx(0.03, rel=0.05)


def test_spikes_of_blocks_are_one_sided() -> None:
    script = ClockScript(block_spike_share=0.15, block_spike_mean=0.3)
    noise = np.array(blocks(script, [0] * 20_000, 1))
    assert noise.min() == 0
    assert np.mean(noise > 0) == pytest.approx(0.15, abs=0.01)
    assert np.mean(noise[noise > 0]) == pytest.approx(0.3, rel=0.05)


def test_drift_is_linear_over_the_session() -> None:
    logs = blocks(ClockScript(drift=0.10), [0, 1] * 5 + [0], 2, 11)
    assert np.exp(logs) == pytest.approx(np.linspace(1, 1.1, 11))
    assert blocks(ClockScript(drift=0.10), [0, 1, 0, 1], 2) == [0.0] * 4


def test_the_position_in_a_round_counts() -> None:
    script = ClockScript(position_effect=0.02)
    logs = blocks(script, [2, 0, 1, 0, 1, 2, 2, 1, 0], 3)
    assert np.exp(logs) == pytest.approx([1, 1.01, 1.02] * 3)
    # Slot 1 fails after the first round: no later round is shifted.
    logs = blocks(script, [2, 0, 1, 0, 2, 2, 0, 0, 2], 3)
    assert np.exp(logs) == pytest.approx([1, 1.01, 1.02] + [1, 1.01] * 3)


def test_the_baseline_leaves_something_behind_for_others() -> None:
    logs = blocks(ClockScript(carry_over=0.006), [0, 0, 1, 2, 0, 2], 3)
    assert np.exp(logs) == pytest.approx([1, 1, 1.006, 1, 1, 1.006])


def test_runners_share_the_noise_of_their_machine() -> None:
    """Two clocks that take turns see one AR(1) series; two machines see two."""
    script = ClockScript(sigma=0, block_sigma=0.05, autocorrelation=0.99)
    machine = ScriptedMachine(script, "0", 2)
    clocks = [ScriptedClock(script, label, "0", machine, i) for i, label in enumerate("ab")]
    logs = np.log([drawn(clocks[i % 2]) for i in range(4000)])
    assert np.std(np.diff(logs)) < 0.3 * np.std(logs)
    apart = [ScriptedClock(script, label, "0") for label in "ab"]
    logs = np.log([drawn(apart[i % 2]) for i in range(4000)])
    assert np.std(np.diff(logs)) > 0.5 * np.std(logs)


def drawn(clock: ScriptedClock) -> int:
    clock.begin_block()
    first, second = clock.draw(2)
    assert first == second
    return first
