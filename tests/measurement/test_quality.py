from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bitworth.engines.base import Arrays
from bitworth.errors import UserError
from bitworth.measurement import quality as module
from bitworth.measurement.array_store import ArrayStore, store_arrays
from bitworth.measurement.quality import MetricSpec, OutputSums, Quality, evaluate
from bitworth.measurement.workers import WorkerFailed

Floats = NDArray[np.float64]
CHUNK = module._CHUNK


def sums(*pairs: tuple[NDArray[np.generic], NDArray[np.generic]]) -> OutputSums:
    result = OutputSums()
    for want, got in pairs:
        result.add(want, got)
    return result


def check(found: OutputSums, want: Floats, got: Floats) -> None:
    error, norm = np.linalg.norm(got - want), np.linalg.norm(want)
    assert found.non_finite == 0
    assert found.max_abs == np.abs(got - want).max(initial=0)
    if norm:
        assert found.rel_l2 == pytest.approx(float(error / norm), rel=1e-9, abs=1e-12)
    if norm and np.linalg.norm(got):
        cosine = float(np.sum(want * got) / (norm * np.linalg.norm(got)))
        assert found.cosine == pytest.approx(cosine, abs=1e-9)
        assert -1 <= (found.cosine or 0) <= 1
    if norm and error:
        assert found.sqnr_db == pytest.approx(float(20 * np.log10(norm / error)), abs=1e-6)
    else:
        assert found.sqnr_db is None


@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3]),
        min_size=1,
        max_size=3,
    ),
    noise=st.floats(0, 2),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_sums_are_those_of_whole_arrays(
    sizes: list[int], noise: float, scale: float, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    pairs = []
    for size in sizes:
        want = random.standard_normal(size) * scale
        got = want + noise * scale * random.standard_normal(size)
        pairs.append((want.astype(np.dtype(dtype)), got.astype(np.dtype(dtype))))
    whole = [np.concatenate([p[i].astype(np.float64) for p in pairs]) for i in (0, 1)]
    check(sums(*pairs), whole[0], whole[1])


def test_shapes_and_order_in_memory_do_not_matter() -> None:
    random = np.random.default_rng(0)
    want, got = random.standard_normal((2, 4, 6)), random.standard_normal((2, 4, 6))
    found = sums((want.transpose(2, 0, 1), got.transpose(2, 0, 1)))
    check(found, want.reshape(-1), got.reshape(-1))
    check(sums((np.array(2.0), np.array(2.5))), np.array([2.0]), np.array([2.5]))
    labels = sums((np.array([1, 2, 3]), np.array([1, 2, 5])))
    assert labels.max_abs == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted(bad: float) -> None:
    want = np.ones(2 * CHUNK + 5, np.float32)
    got = want * 2
    got[[0, 1, CHUNK, 2 * CHUNK + 4]] = bad
    found = sums((want, got), (want, want))
    assert found.non_finite == 4
    assert (found.rel_l2, found.cosine, found.sqnr_db) == (None, None, None)
    # Infinity where the reference has it too is no number either.
    same = np.array([1, bad], np.float32)
    assert sums((same, same)).non_finite == 1


def test_squares_beyond_float64_are_not_lost() -> None:
    found = sums((np.array([1e200]), np.array([-1e200])))
    assert found.non_finite == 1
    assert found.rel_l2 is None


def test_a_zero_reference() -> None:
    zero = np.zeros(3)
    exact = sums((zero, zero))
    assert (exact.rel_l2, exact.cosine, exact.sqnr_db) == (0.0, None, None)
    wrong = sums((zero, np.ones(3)))
    assert (wrong.rel_l2, wrong.cosine, wrong.sqnr_db) == (None, None, None)
    assert wrong.max_abs == 1
    lost = sums((np.ones(3), zero))
    assert (lost.rel_l2, lost.cosine, lost.sqnr_db) == (1.0, None, 0.0)
    tiny = sums((np.full(3, 1e-100), np.full(3, 1e-100)))
    assert tiny.cosine == pytest.approx(1)


@pytest.fixture
def stored(tmp_path: Path) -> ArrayStore:
    """Outputs y = [i, 1] of three samples."""
    arrays = [{"y": np.array([i, 1], np.float32)} for i in range(3)]
    return store_arrays(arrays, 3, tmp_path / "reference", lambda _: None)


SAMPLES: list[tuple[Arrays, object]] = [({"x": np.array([i], np.float32)}, i) for i in range(3)]
METRICS = {
    "right": MetricSpec("binary", "higher"),
    "loss": MetricSpec("mean", "lower"),
    "errors": MetricSpec("ratio", "lower"),
    "rare": MetricSpec("mean", "lower"),
}


def model(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
    return {"y": np.append(inputs["x"], np.float32(2))}


def judged(
    reference: ArrayStore,
    score: Callable[[Arrays, object], object] | None,
    run: Callable[[Arrays], Mapping[str, NDArray[np.generic]]] = model,
) -> Quality:
    metrics = METRICS if score is not None else {}
    return evaluate(run, SAMPLES, reference, metrics, score, lambda _: None)  # type: ignore[arg-type]


def test_metrics_of_each_kind(stored: ArrayStore) -> None:
    def score(outputs: Arrays, target: object) -> dict[str, object]:
        assert isinstance(target, int)
        rare = {"rare": np.float32(7)} if target == 1 else {}
        right = np.bool_(target == 2)
        return {"right": right, "loss": outputs["y"][0], "errors": (np.int64(target), 4), **rare}

    seen: list[int] = []
    found = evaluate(model, SAMPLES, stored, METRICS, score, seen.append)  # type: ignore[arg-type]
    assert seen == [1, 2, 3]
    assert found.n == 3
    assert found.metrics == {
        "right": [0.0, 0.0, 1.0],
        "loss": [0.0, 1.0, 2.0],
        "errors": [(0.0, 4.0), (1.0, 4.0), (2.0, 4.0)],
        "rare": [None, 7.0, None],
    }
    plain = [v for column in found.metrics.values() for v in column if isinstance(v, float)]
    assert all(type(v) is float for v in plain)  # not numpy's, which JSON does not take
    assert found.rel_l2 == pytest.approx(math.sqrt(3 / 8))
    assert found.outputs["y"].max_abs == 1


def test_without_a_metric(stored: ArrayStore) -> None:
    found = judged(stored, None)
    assert found.metrics == {}
    assert found.rel_l2 is not None


def always(value: object) -> Callable[[Arrays, object], object]:
    return lambda outputs, target: value


def raising(outputs: Arrays, target: object) -> object:
    if target == 1:
        raise ValueError("first line\nsecond line")
    return {}


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (raising, r"sample 1: ValueError: first line second line; mend the metric"),
        (lambda outputs, target: outputs["z"], r"sample 0: KeyError: 'z'"),
        (always(None), r"sample 0: TypeError: "),
        (always([1.0]), r"sample 0: TypeError: "),
        (always({"wrong": 1.0}), r"sample 0: 'wrong' is not declared in METRICS"),
        (always({"loss": math.nan}), r"'loss' is nan; a mean metric returns one finite number"),
        (always({"loss": (1.0, 2.0)}), r"'loss' is \(1.0, 2.0\); a mean metric"),
        (always({"loss": [1.0, 2.0]}), r"'loss' is \[1.0, 2.0\]; a mean metric"),
        (always({"loss": np.ones((4, 9))}), r"'loss' is array.*; a mean metric"),
        (always({"loss": "0.5"}), r"'loss' is '0.5'; a mean metric"),
        (always({"loss": None}), r"'loss' is None; a mean metric"),
        (always({"right": 0.5}), r"'right' is 0.5; a binary metric returns 0 or 1"),
        (always({"errors": 1.0}), r"'errors' is 1.0; a ratio metric returns a pair"),
        (always({"errors": (1.0, 2.0, 3.0)}), r"a ratio metric returns a pair"),
        (always({"errors": (1.0, math.inf)}), r"a ratio metric returns a pair"),
    ],
)
def test_a_metric_that_is_wrong(
    stored: ArrayStore, score: Callable[[Arrays, object], object], told: str
) -> None:
    with pytest.raises(UserError, match=told) as wrong:
        judged(stored, score)
    assert str(wrong.value).startswith("quality.metric: sample ")
    assert "\n" not in str(wrong.value)


def test_an_output_of_another_shape_is_the_variants_result(stored: ArrayStore) -> None:
    for shape in ((1, 2), (3,), ()):
        with pytest.raises(WorkerFailed, match="sample 0: output 'y' has shape") as failed:
            judged(stored, None, lambda _, shape=shape: {"y": np.zeros(shape)})  # type: ignore[misc]
        assert "(2,)" in str(failed.value)


def test_a_worker_that_fails_is_passed_on(stored: ArrayStore) -> None:
    def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        raise WorkerFailed("crashed", "run: the worker process died of SIGSEGV")

    with pytest.raises(WorkerFailed, match="SIGSEGV"):
        judged(stored, None, run)


def test_outputs_of_every_type(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "half": np.ones(2, ml_dtypes.bfloat16),
        "narrow": np.ones(2, ml_dtypes.float8_e4m3fn),
        "mask": np.array([True, False]),
        "index": np.array([1, 2]),
        "text": np.array(["a", "b"]),
    }
    reference = store_arrays([arrays], 1, tmp_path / "r", lambda _: None)
    changed = {**arrays, "half": (arrays["half"] * 2).astype(ml_dtypes.bfloat16)}
    changed["mask"] = np.logical_not(arrays["mask"])
    found = evaluate(lambda _: changed, SAMPLES[:1], reference, {}, None, lambda _: None)
    errors = {name: s.rel_l2 for name, s in found.outputs.items()}
    assert errors == {"half": 1.0, "narrow": 0.0, "mask": math.sqrt(2), "index": 0.0}
    assert found.rel_l2 == math.sqrt(2)
    assert Quality().rel_l2 is None
