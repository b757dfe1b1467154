"""A whole study on the mock engine: real worker processes, a scripted clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from bitworth.errors import UserError
from bitworth.record.derive import derive
from bitworth.record.schema import Record, VariantSummary
from bitworth.record.store import read_record
from bitworth.study.export import export_variant, find_variant
from bitworth.study.run import Interrupted

from .conftest import run


def summaries(record: Record, cell: int = 0) -> dict[str, VariantSummary]:
    return {s.variant: s for s in record.derived.cells[cell].variants}


@pytest.mark.whole
def test_the_scripted_truth_comes_out(folder: Any) -> None:
    folder.write({"ratios": {"int8 all": 0.8, "int8 conv": 1.25}})
    record, paths = run(folder)
    found = summaries(record)
    fast, slow = found["int8 all"].comparison, found["int8 conv"].comparison
    assert fast is not None
    assert slow is not None
    assert (fast.verdict, slow.verdict) == ("faster", "slower")
    assert fast.time_ratio_low is not None
    assert fast.time_ratio_high is not None
    assert fast.time_ratio_low < 0.8 < fast.time_ratio_high
    assert record.derived.decision.kind == "ship"
    assert record.derived.decision.variant == "int8 all"
    fp8 = found["fp8"]
    assert (fp8.evidence, fp8.comparison) == ("emulated", None)
    assert fp8.time.startswith("not run: the mock has no fp8_e4m3")
    assert fp8.rel_l2 is not None
    assert record.facts.cells[0].variants[-1].quality is not None
    assert record.facts.cells[0].variants[-1].quality.n == 12
    for path in (paths.record, paths.readme, paths.report, paths.picture):
        assert path.stat().st_size > 500
    assert not list((folder.root / "studies" / ".bitworth").iterdir())
    assert record.facts.cells[0].limits is not None
    assert {o.variant for o in record.derived.cells[0].outlooks} == {"int8 all", "int8 conv"}


def test_recomputing_gives_the_same_bytes(folder: Any) -> None:
    folder.write()
    record, paths = run(folder)
    stored = read_record(paths.record)
    assert stored == record
    assert derive(stored.facts).model_dump_json() == stored.derived.model_dump_json()


def stopped(record: Record) -> tuple[int, str]:
    """Sessions of the only job, and why there is no further one."""
    (job,) = record.facts.cells[0].jobs
    return len(job.sessions), job.stopped


def test_a_study_until_settled_stops_at_a_look(folder: Any) -> None:
    """What is plainly faster or slower needs no precision."""
    script = {"ratios": {"int8 all": 0.5, "int8 conv": 2.0}}
    folder.write(script, until_settled="true", precision=0.0001)
    record, _ = run(folder)
    text = "every comparison is settled at look 1 of 8 (after 3, 5, 7, 11, 17, 25, 39, 60 sessions)"
    assert stopped(record) == (3, text)
    assert record.derived.timing.until_settled
    comparisons = record.derived.cells[0].verdicts[0].comparisons
    assert [c.verdict for c in comparisons] == ["faster", "slower"]
    assert all(c.alpha < 0.035 / 2 / 4 for c in comparisons)


@pytest.mark.parametrize(
    ("script", "timing"),
    [
        # No verdict: over eps, and not within a delta of nearly nothing.
        ({"ratios": {"int8 all": 0.5, "int8 conv": 1.005}}, {"delta": 1e-6}),
        # A verdict, but no side of the policy's speed-up of 1.05.
        ({"ratios": {"int8 all": 0.5, "int8 conv": 1 / 1.05}}, {}),
    ],
)
def test_a_study_until_settled_goes_on_while_one_comparison_is_open(
    folder: Any, script: dict[str, Any], timing: dict[str, float]
) -> None:
    folder.write(script, until_settled="true", max_sessions=5, budget_minutes=5, **timing)
    record, _ = run(folder)
    assert stopped(record) == (
        5, "5 sessions, with comparisons open after look 2 of 2 (after 3, 5 sessions)"
    )  # fmt: skip


@pytest.mark.whole  # forked workers would end more sessions within the budget
def test_a_study_until_settled_ends_with_its_budget(folder: Any) -> None:
    script = {"ratios": {"int8 all": 0.5, "int8 conv": 1.005}}
    folder.write(script, until_settled="true", delta=1e-6, budget_minutes=0.001)
    record, _ = run(folder)
    count, text = stopped(record)
    assert count == 3
    assert text.startswith("the budget of 1 s, with comparisons open after look 1 of 8 (after 3,")
    # Nobody knew beforehand that this would be the only look.
    (found,) = (c for c in record.derived.cells[0].verdicts[0].comparisons if c.time_ratio > 0.9)
    assert found.alpha < 0.035 / 2 / 4
    assert found.verdict == "not distinguishable"


def test_precision_that_is_not_reached_is_not_claimed(folder: Any) -> None:
    folder.write(max_sessions=4, precision=0.000001, budget_minutes=5)
    record, _ = run(folder)
    assert stopped(record) == (4, "4 sessions")


def test_every_int8_plan_is_smaller_and_close(folder: Any) -> None:
    folder.write()
    record, _ = run(folder)
    for name in ("int8 all", "int8 conv"):
        found = summaries(record)[name]
        assert found.rel_l2 is not None
        assert 0 < found.rel_l2 < 0.2
        assert found.evidence == "measured"


@pytest.mark.parametrize(
    ("fault", "state", "word"),
    [
        ("build", "failed", "scripted build failure"),
        ("crash_build", "failed", "SIGSEGV"),
        ("crash_run", "failed", "SIGSEGV"),
        ("raise_run", "failed", "scripted failure"),
    ],
)
def test_a_variant_that_fails_is_a_result(folder: Any, fault: str, state: str, word: str) -> None:
    folder.write({"faults": {"int8 all": fault}, "ratios": {"int8 conv": 0.7}})
    record, _ = run(folder)
    variant = next(v for v in record.facts.cells[0].variants if v.name == "int8 all")
    assert variant.state == state
    assert word in variant.reason
    assert any("int8 all" in line.what for line in record.facts.not_run)
    other = summaries(record)["int8 conv"].comparison
    assert other is not None
    assert other.verdict == "faster"


@pytest.mark.parametrize(("fault", "reason"), [("nan", "not finite"), ("backwards", "clock")])
def test_wrong_output_or_clock_is_void(folder: Any, fault: str, reason: str) -> None:
    folder.write({"faults": {"int8 all": fault}, "ratios": {"int8 all": 0.5}})
    record, _ = run(folder)
    found = summaries(record)["int8 all"].comparison
    assert found is not None
    assert found.verdict == "void"
    assert reason in found.reason


def test_a_worker_that_dies_while_it_is_timed_voids_its_variant_only(folder: Any) -> None:
    # It survives its quality (12 samples and the 16 of the check) and dies in the first session.
    folder.write({"faults": {"int8 all": "crash_run"}, "fault_after": 18})
    record, _ = run(folder)
    found = summaries(record)
    dead, alive = found["int8 all"].comparison, found["int8 conv"].comparison
    assert dead is not None
    assert alive is not None
    assert dead.verdict == "void"
    assert "SIGSEGV" in dead.reason
    assert alive.verdict in ("equivalent", "not distinguishable")


def test_a_variant_that_hangs_is_waited_for_once(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitworth.measurement.plans.TIMEOUT_S", 6.0)
    folder.write({"faults": {"int8 all": "hang_run"}, "ratios": {"int8 conv": 0.7}})
    record, _ = run(folder)
    variant = next(v for v in record.facts.cells[0].variants if v.name == "int8 all")
    assert (variant.state, variant.reason) == ("failed", "timed out: run: no answer in 6 s")
    other = summaries(record)["int8 conv"].comparison
    assert other is not None
    assert other.verdict == "faster"


def test_a_variant_that_fails_in_one_session_gets_no_worker_in_the_next(folder: Any) -> None:
    folder.write({"faults": {"int8 all": "raise_run"}, "fault_after": 18})
    record, _ = run(folder)
    job = record.facts.cells[0].jobs[0]
    index = job.labels.index("int8 all")
    assert all(index in s.failures for s in job.sessions)
    assert index in job.sessions[0].load_ns
    assert all(index not in s.load_ns for s in job.sessions[1:])
    later = [s.failures[index] for s in job.sessions[1:]]
    assert later == ["not started: it failed in session 0"] * len(later)


def test_many_variants_are_timed_in_several_jobs(folder: Any) -> None:
    more = "".join(
        f'[[variant]]\nname = "v{i}"\nformat = "int8"\nplacement = "input_only"\n' for i in range(5)
    )
    bf16 = '[[variant]]\nname = "bf16"\nformat = "bf16"\n'
    folder.write({"ratios": {"bf16": 0.5, "v4": 0.8}}, min_sessions=2)
    text = folder.study.read_text()
    folder.study.write_text(
        text.replace('[[variant]]\nname = "fp8"', more + bf16 + '[[variant]]\nname = "fp8"')
    )
    record, _ = run(folder)
    jobs = record.facts.cells[0].jobs
    assert len(jobs) == 2
    assert all(job.labels[:3] == ("baseline", "baseline again", "bf16") for job in jobs)
    assert {label for job in jobs for label in job.labels[3:]} == {
        "int8 all", "int8 conv", "v0", "v1", "v2", "v3", "v4",
    }  # fmt: skip
    found = summaries(record)
    assert all(found[name].comparison is not None for name in ("bf16", "v0", "v4"))


def test_denormal_weights_are_a_free_win_and_the_plain_model_is_shown(
    folder: Any, model_writer: Any
) -> None:
    model_writer(folder.root / "model.onnx", denormal=True)
    folder.write({"ratios": {"as given": 3.0}})
    record, _ = run(folder)
    found = summaries(record)["as given"].comparison
    assert record.facts.subject.denormal_weights == 8
    assert found is not None
    assert found.verdict == "slower"
    assert record.derived.decision.variant != "as given"
    assert any("8 denormal weights" in note for note in record.facts.cells[0].notes)


def test_export_is_bit_equal_to_what_was_studied(folder: Any) -> None:
    folder.write()
    record, _ = run(folder)
    target = folder.root / "exported.onnx"
    for name in ("int8 all", "int8 conv", "fp8", "baseline"):
        _, variant = find_variant(record, name, None)
        export_variant(record, variant, folder.root / "model.onnx", target)
        onnx.checker.check_model(str(target))
    with pytest.raises(UserError, match="no variant 'int4'"):
        find_variant(record, "int4", None)
    folder.root.joinpath("other.onnx").write_bytes(target.read_bytes())
    with pytest.raises(UserError, match="not the model that was studied"):
        export_variant(record, variant, folder.root / "other.onnx", target)


def test_interrupted_anywhere_it_resumes_and_loses_nothing(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after every finished stage in turn, until the study is through."""
    from bitworth.study import workspace

    folder.write({"ratios": {"int8 all": 0.8}})
    real = workspace.Workspace.save
    saved: list[tuple[str, ...]] = []

    def save_then_stop(self: Any, value: Any, *parts: str) -> None:
        assert parts not in saved, "a finished stage was computed again"
        real(self, value, *parts)
        saved.append(parts)
        raise KeyboardInterrupt

    monkeypatch.setattr(workspace.Workspace, "save", save_then_stop)
    partials: list[Path] = []
    for _ in range(60):
        try:
            record, paths = run(folder)
            break
        except Interrupted as stopped:
            partials += [stopped.partial] if stopped.partial is not None else []
            stages_without_a_record = 0 if partials else len(saved)
        except KeyboardInterrupt:  # before the study's start was kept
            stages_without_a_record = len(saved)
    else:
        pytest.fail("the study never ended")
    assert len(partials) > 3
    assert len(set(partials)) == 1
    assert stages_without_a_record < 6
    assert record.derived.decision.variant == "int8 all"
    assert [len(j.sessions) for j in record.facts.cells[0].jobs] == [3]
    assert not list(paths.record.parent.glob("*.partial.json"))


def test_a_second_run_measures_anew(folder: Any) -> None:
    folder.write()
    first, paths = run(folder)
    again, _ = run(folder)
    assert paths.record.exists(), "the second run overwrote the first"
    assert first.id != again.id
    assert first.facts.config_sha256 == again.facts.config_sha256
    ours = first.facts.cells[0].jobs[0].sessions[0].wall_ns
    assert ours != again.facts.cells[0].jobs[0].sessions[0].wall_ns


def test_hub_of_errors_names_what_to_do(folder: Any) -> None:
    cases: list[tuple[str, str, str]] = [
        ('name = "conv"\nop_types = ["Conv"]', 'name = "conv"\nop_types = ["Gemm"]', "Gemm"),
        ("accuracy = 0.5", "acuracy = 0.5", "no metric 'acuracy'"),
        ('metric = "metric.py"', 'metric = "nothing.py"', "nothing.py"),
        ('source = "inputs.py"', 'source = "nothing.py"', "nothing.py"),
        ('onnx = "model.onnx"', 'onnx = "nothing.onnx"', "nothing.onnx"),
    ]
    for old, new, word in cases:
        path: Path = folder.write()
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=word) as caught:
            run(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('lost')", "KeyError"),
        ("return {'accuracy': float('nan')}", "returns 0 or 1"),
        ("return {'speed': 1.0}", "not declared"),
        ("return {'error': 1.0}", "a pair"),
        ("return {'error': (1.0, -1.0)}", "a pair"),
    ],
)
def test_a_metric_that_fails_is_named(folder: Any, body: str, words: str) -> None:
    folder.write()
    path: Path = folder.root / "metric.py"
    text = path.read_text()
    path.write_text(text[: text.index("        y = ")] + f"        {body}\n    return score\n")
    with pytest.raises(UserError, match=words) as caught:
        run(folder)
    assert "sample 0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_study_begun_until_settled_is_not_resumed_by_another_rule(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdicts were seen at looks: the level that pays for them stays."""
    from bitworth.study import timing_stage

    folder.write(until_settled="true", max_sessions=5)
    session, seen = timing_stage.run_session, []

    def interrupted(*args: Any, **options: Any) -> Any:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return session(*args, **options)

    monkeypatch.setattr(timing_stage, "run_session", interrupted)
    with pytest.raises(Interrupted):
        run(folder)
    folder.write(max_sessions=5)
    record, _ = run(folder)
    assert record.derived.timing.until_settled
    assert "look" in stopped(record)[1]
    assert all(c.alpha < 0.035 / 2 for c in record.derived.cells[0].verdicts[0].comparisons)
