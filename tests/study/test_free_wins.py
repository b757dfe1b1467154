"""The search for free wins on the mock engine: what joins the baseline, and what does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.engines.cpu import usable_cpus
from bitworth.errors import UserError
from bitworth.record.derive import derive
from bitworth.record.free_win_facts import FreeWinTry, FreeWinVerdict
from bitworth.record.free_win_verdicts import SAME_RESULT
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record
from bitworth.record.store import read_record
from bitworth.study import cell_run, free_win_stage
from bitworth.study.config import read_study_file

from .conftest import run

FASTER = """
[[free_win]]
name = "a spell"
options = { magic = "1" }
"""
FIXED = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 3, 8, 8] x) => (float[1, 5] y) {
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0, b0)
    d = Conv <kernel_shape = [1, 1]> (c, w1)
    p = GlobalAveragePool (d)
    f = Flatten (p)
    y = MatMul (f, w2)
}
"""


def verdicts(record: Record) -> dict[str, FreeWinVerdict]:
    return {v.name: v for v in record.derived.cells[0].free_wins}


def options(record: Record) -> dict[str, str]:
    found = dict(record.facts.cells[0].options)
    del found["script"]
    return found


def test_what_is_faster_and_gives_the_same_result_joins(folder: Any) -> None:
    folder.write({"ratios": {"a spell": 0.8, "as given": 1.25}}, FASTER)
    record, paths = run(folder)
    found = verdicts(record)
    assert {n: v.outcome for n, v in found.items()} == {
        "as given": "in the baseline", "a spell": "applied"
    }  # fmt: skip
    spell = found["a spell"].comparison
    assert spell is not None
    assert spell.time_ratio is not None
    assert abs(spell.time_ratio - 0.8) < 0.01
    assert options(record) == {"threads": "1", "optimization": "all", "magic": "1"}
    cell = record.facts.cells[0]
    assert "joined the baseline and every variant: a spell" in cell.notes
    # Beside the variants the model stands as it was given, under the options that were given.
    (given,) = (v for v in cell.variants if v.name == "as given")
    assert "magic" not in given.options
    summary = next(v for v in record.derived.cells[0].variants if v.variant == "as given")
    assert summary.comparison is not None
    assert summary.comparison.verdict == "slower"
    stored = read_record(paths.record)
    assert derive(stored.facts).model_dump_json() == stored.derived.model_dump_json()
    text = paths.readme.read_text()
    assert "## Free wins" in text
    assert text == render_markdown(stored, paths.picture.name)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.25, "slower"), (1.0, "equivalent")])
def test_what_is_not_faster_is_left_out(folder: Any, ratio: float, verdict: str) -> None:
    folder.write({"ratios": {"a spell": ratio}}, FASTER)
    record, _ = run(folder)
    spell = verdicts(record)["a spell"]
    assert (spell.outcome, spell.reason) == ("left out", f"its verdict is {verdict}")
    assert "magic" not in options(record)
    # With nothing that joined there is nothing to show beside the variants.
    assert "as given" not in {v.name for v in record.facts.cells[0].variants}


def test_what_changes_the_result_is_offered(folder: Any) -> None:
    script = {"ratios": {"a spell": 0.5}, "faults": {"a spell": "nan"}}
    folder.write(script, FASTER)
    record, _ = run(folder)
    spell = verdicts(record)["a spell"]
    assert spell.outcome == "offered"
    assert "give it as a variant" in spell.reason
    assert "magic" not in options(record)


def test_of_two_that_set_the_same_the_better_joins(folder: Any) -> None:
    text = FASTER + '[[free_win]]\nname = "two"\noptions = { magic = "2", other = "x" }\n'
    text += '[[free_win]]\nname = "three"\nthreads = 3\n'
    folder.write({"ratios": {"a spell": 0.9, "two": 0.7, "three": 0.8}}, text)
    record, _ = run(folder)
    found = {n: v.outcome for n, v in verdicts(record).items() if n != "as given"}
    assert found == {"a spell": "offered", "two": "applied", "three": "applied"}
    told = {"threads": "3", "optimization": "all", "magic": "2", "other": "x"}
    assert options(record) == told
    assert record.facts.cells[0].threads == 3


@pytest.mark.parametrize("fault", ["build", "crash_build", "crash_run", "raise_run"])
def test_one_that_fails_costs_nothing_but_its_row(folder: Any, fault: str) -> None:
    folder.write({"faults": {"a spell": fault}}, FASTER)
    record, _ = run(folder)
    spell = verdicts(record)["a spell"]
    assert spell.outcome == "failed"
    assert spell.comparison is None
    assert spell.reason
    assert record.derived.cells[0].verdicts[0].comparisons


def test_the_model_as_given_is_what_to_beat_where_it_is_faster(folder: Any) -> None:
    folder.write({"ratios": {"a spell": 0.8, "as given": 0.9, "int8 all": 0.95}}, FASTER)
    record, _ = run(folder)
    found = {v.variant: v for v in record.derived.cells[0].variants}
    rival = found["int8 all"].against_best
    assert rival is not None
    assert (rival.baseline, rival.verdict) == ("as given", "slower")


def test_a_batch_is_offered_with_what_a_call_takes(folder: Any) -> None:
    folder.write({"ratios": {"4 samples a call": 2.0}}, "[free_wins]\nbatch = 4\n")
    record, _ = run(folder)
    batch = verdicts(record)["4 samples a call"]
    assert batch.comparison is not None
    assert batch.comparison.time_ratio is not None
    assert abs(batch.comparison.time_ratio - 0.5) < 0.01
    assert batch.call_time_ratio is not None
    assert abs(batch.call_time_ratio - 2.0) < 0.04
    assert batch.outcome == "offered"
    assert record.facts.cells[0].free_win_jobs[0].items == (1, 1, 1, 4)
    assert record.facts.cells[0].batch is None


def test_a_batch_that_the_model_does_not_take_says_why(
    folder: Any, model_writer: Callable[..., Path]
) -> None:
    model_writer(folder.root / "model.onnx", FIXED)
    folder.write({}, "[free_wins]\nbatch = 4\n")
    record, _ = run(folder)
    batch = verdicts(record)["4 samples a call"]
    assert batch.outcome == "failed"
    assert "fixed first axis of 1" in batch.reason


def test_nothing_is_searched_for_where_there_is_nothing_to_try(folder: Any) -> None:
    folder.write({}, '[[free_win]]\nname = "x"\nthreads = 2\nengines = ["openvino"]\n')
    record, _ = run(folder)
    cell = record.facts.cells[0]
    assert (cell.free_win_search, cell.free_win_jobs) == (None, ())
    assert record.derived.cells[0].free_wins == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[free_win]]\nname = "x"\n', "free_win 'x' changes nothing; give it threads"),
        ('[[free_win]]\nname = "as given"\nthreads = 1\n', "'as given' is reserved"),
        (FASTER + FASTER, "free_win 'a spell' is defined twice"),
        ('[[free_win]]\nname = "x"\nthread = 1\n', "did you mean 'threads'?"),
        ("[free_wins]\nstandart = false\n", "did you mean 'standard'?"),
    ],
)
def test_mistakes_are_one_line(folder: Any, text: str, told: str) -> None:
    folder.write({}, text)
    with pytest.raises(UserError) as raised:
        read_study_file(folder.study)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_variant_can_be_options_alone(folder: Any) -> None:
    """What changes the result is judged for quality like every variant, and is a free win."""
    text = '[[variant]]\nname = "fast math"\nformat = "fp32"\noptions = { fast = "1" }\n'
    folder.write({"ratios": {"fast math": 0.8, "int8 all": 0.7}}, text)
    record, _ = run(folder)
    cell = record.facts.cells[0]
    (variant,) = (v for v in cell.variants if v.name == "fast math")
    assert variant.options == {"fast": "1"}
    assert variant.quality is not None
    assert cell.free_wins == ("fast math",)
    found = {v.variant: v for v in record.derived.cells[0].variants}["int8 all"].against_best
    assert found is not None
    assert found.baseline == "fast math"


def test_fp32_without_options_is_the_baseline(folder: Any) -> None:
    folder.write({}, '[[variant]]\nname = "x"\nformat = "fp32"\n')
    with pytest.raises(UserError, match="is the baseline; give it options"):
        read_study_file(folder.study)


def test_a_search_that_was_stopped_goes_on(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write({"ratios": {"a spell": 0.8}}, FASTER)

    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cell_run, "run_plain", stop)
        with pytest.raises(Exception, match="resume"):
            run(folder)
    built: list[Path] = []

    def no_build(*args: object) -> None:
        built.append(Path())

    monkeypatch.setattr(free_win_stage, "_build", no_build)
    record, _ = run(folder)
    assert not built
    assert verdicts(record)["a spell"].outcome == "applied"


REAL = """
version = 1
[subject]
name = "small"
onnx = "model.onnx"
[data]
source = "inputs.py"
holdout_samples = 4
[[cell]]
engine = "{engine}"
[timing]
budget_minutes = 0.001
min_sessions = 2
max_sessions = 2
"""


def tried(folder: Any, engine: str) -> dict[str, FreeWinTry]:
    """What the standard list of a real engine came to, by the keys that each try sets."""
    folder.study.write_text(REAL.format(engine=engine))
    record, _ = run(folder)
    cell = record.facts.cells[0]
    assert cell.free_win_search is not None
    assert not cell.free_win_jobs[0].sessions[0].failures
    for one, verdict in zip(
        cell.free_win_search.tries, record.derived.cells[0].free_wins, strict=True
    ):
        assert not one.failed, f"{one.name}: {one.failed}"
        assert verdict.comparison is not None
        assert one.result_change is not None
        assert one.result_change <= SAME_RESULT, one.name
    return {" ".join(sorted(one.settings)) or one.name: one for one in cell.free_win_search.tries}


def test_the_standard_list_of_onnxruntime(folder: Any) -> None:
    found = tried(folder, "onnxruntime")
    pinned = "session.intra_op_thread_affinities threads"
    expected = {"as given", "session.set_denormal_as_zero", "threads", "optimization"}
    assert found.keys() == {*expected, pinned, "4 samples a call"}
    cpus = usable_cpus()
    assert found[pinned].settings[pinned.split()[0]] == str(cpus[1] + 1)
    assert found["4 samples a call"].items == 4


def test_the_standard_list_of_openvino(folder: Any) -> None:
    found = tried(folder, "openvino")
    expected = {"as given", "CPU_DENORMALS_OPTIMIZATION", "threads", "ENABLE_CPU_PINNING"}
    assert found.keys() == {*expected, "4 samples a call"}


def test_two_that_do_not_go_together_join_one_by_one(folder: Any) -> None:
    """Each is faster alone; together the engine refuses them."""
    text = FASTER + '[[free_win]]\nname = "three"\nthreads = 3\n'
    script = {"ratios": {"a spell": 0.7, "three": 0.8}, "faults": {"all that joins": "build"}}
    folder.write(script, text)
    record, _ = run(folder)
    found = {n: v.outcome for n, v in verdicts(record).items() if n != "as given"}
    assert found == {"a spell": "applied", "three": "offered"}
    assert record.facts.cells[0].threads == 1
    assert record.derived.cells[0].verdicts[0].comparisons


def test_where_the_baseline_does_not_run_it_says_so_itself(folder: Any) -> None:
    folder.write({"faults": {"baseline": "build"}}, FASTER)
    record, _ = run(folder)
    (cell,) = record.facts.cells
    assert cell.free_win_search is None
    (baseline,) = cell.variants
    assert (baseline.name, baseline.state) == ("baseline", "failed")
    assert "scripted build failure" in baseline.reason


def test_a_search_leaves_no_plans_behind(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[list[Path]] = []
    run_plain = cell_run.run_plain

    def look(study: Any, *args: Any, **kwargs: Any) -> Any:
        left.append(list(study.workspace.root.rglob("free-wins/*/plan.bin")))
        return run_plain(study, *args, **kwargs)

    monkeypatch.setattr(cell_run, "run_plain", look)
    folder.write({"ratios": {"a spell": 0.8}}, FASTER)
    run(folder)
    assert left == [[], []]


def test_the_documents_examples_are_valid(folder: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "free_wins.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    folder.write({}, block)
    config = read_study_file(folder.study)
    assert [f.name for f in config.free_win] == ["threads do not spin", "3 threads"]
