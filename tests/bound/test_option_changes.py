from __future__ import annotations

import pytest

from bitworth.bound import option_changes
from bitworth.bound.option_changes import OptionChange, compatible, joined, standard_changes
from bitworth.engines.base import EngineOptions


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four physical cores with two logical CPUs each, of which the process may use six."""
    monkeypatch.setattr(option_changes, "usable_cpus", lambda: (0, 1, 2, 3, 8, 9))
    monkeypatch.setattr(option_changes, "physical_cores", lambda: 4)


def names(engine: str, options: EngineOptions) -> set[str]:
    return {c.name for c in standard_changes(engine, options)}


def test_every_count_of_threads_but_that_of_the_cell() -> None:
    for engine in ("onnxruntime", "openvino"):
        assert {
            n for n in names(engine, EngineOptions(6)) if n.endswith("s") and n[0].isdigit()
        } == {"4 threads"}
        assert {"6 threads", "1 thread"} <= names(engine, EngineOptions(4))
        assert "1 thread" not in names(engine, EngineOptions(1))


def test_streams_share_the_threads_out() -> None:
    for engine in ("onnxruntime", "openvino"):
        found = names(engine, EngineOptions(6, streams=3))
        assert not any("thread" in n and n[0].isdigit() for n in found)
        assert "threads are pinned" not in found


def test_each_thread_but_the_callers_is_pinned() -> None:
    """onnxruntime counts logical CPUs from 1, and pins the threads that it starts itself."""
    (pinned,) = (
        c
        for c in standard_changes("onnxruntime", EngineOptions(6))
        if c.name == "threads are pinned"
    )
    assert pinned.extra == {"session.intra_op_thread_affinities": "2;3;4;9;10"}
    assert pinned.threads == 6
    assert "threads are pinned" not in names("onnxruntime", EngineOptions(1))
    assert "threads are pinned" not in names("onnxruntime", EngineOptions(7))


def test_levels_are_those_that_the_cell_has_not() -> None:
    found = names("onnxruntime", EngineOptions(1, optimization="basic"))
    assert {"optimization level all", "optimization level extended"} <= found
    assert "optimization level all" not in names("onnxruntime", EngineOptions(1))
    assert not any("level" in n for n in names("openvino", EngineOptions(1)))


def test_an_option_that_is_set_is_not_tried_again() -> None:
    key = "session.set_denormal_as_zero"
    for value in ("0", "1"):
        for change in standard_changes("onnxruntime", EngineOptions(2, extra={key: value})):
            assert key not in change.extra


def test_other_engines_have_no_list() -> None:
    assert standard_changes("mock", EngineOptions(2)) == ()


def test_changes_join_unless_they_set_the_same() -> None:
    a = OptionChange("a", threads=1)
    b = OptionChange("b", extra={"x": "1"})
    c = OptionChange("c", threads=2, extra={"y": "1"})
    d = OptionChange("d", optimization="basic", extra={"z": "1"})
    assert compatible((a, b, c, d)) == (a, b, d)
    assert compatible((c, a, d, b)) == (c, d, b)
    options = joined(EngineOptions(4, extra={"x": "0", "k": "v"}), (c, d, b))
    assert options == EngineOptions(2, "basic", {"x": "1", "k": "v", "y": "1", "z": "1"})
