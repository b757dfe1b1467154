"""Studies of a PyTorch module on the CPU, end to end, and what bad input gets."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

from bitworth.cli.main import main
from bitworth.errors import UserError
from bitworth.record.pictures import Pictures
from bitworth.record.schema import Record
from bitworth.record.store import read_record
from bitworth.study.config import read_study_file
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.rerun import rerun_request
from bitworth.study.run import run_study
from tests.forked_worker import start

INPUTS = """
import numpy as np

def _images(count, seed, split):
    for i in range(count):
        rng = np.random.default_rng((seed, split, i))
        yield {"image": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)}, None

def calibration(count, seed):
    return _images(count, seed, 0)

def holdout(count, seed):
    return _images(count, seed, 1)
"""

STUDY = """
version = 1
[subject]
name = "net"
torch = "model.py:net"
[data]
source = "inputs.py"
calibration_samples = 2
holdout_samples = 4
[[cell]]
engine = "torch"
threads = 1
options = { compile = "eager", fuse = "on" }
[[group]]
name = "ff"
names = ["*.up.weight", "*.down.weight"]
[[group]]
name = "slowest"
top_share = 0.5
[[variant]]
name = "int8 a row"
format = "int8"
activations = "dynamic_per_row"
[[variant]]
name = "fp8"
format = "fp8_e4m3"
weights = "per_tensor"
[[variant]]
name = "mxfp8 ff"
format = "mxfp8"
groups = ["ff"]
[[variant]]
name = "int8 slowest"
format = "int8"
groups = ["slowest"]
engines = ["torch"]
[[variant]]
name = "weights alone"
format = "int8"
activations = "none"
[free_wins]
standard = false
[policy]
max_rel_l2 = 0.2
[timing]
budget_minutes = 0.01
min_sessions = 2
precision = 0.5
"""


def folder(path: Path, study: str = STUDY) -> Path:
    """A study of the small net in a file of its own."""
    source = Path(__file__).parents[1] / "torch_nets.py"
    (path / "model.py").write_text(source.read_text())
    (path / "inputs.py").write_text(INPUTS)
    (path / "study.toml").write_text(study)
    return path


def run(path: Path) -> tuple[Record, Path]:
    request = StudyRequest(
        config=read_study_file(path / "study.toml"),
        folder=path,
        output=path / "studies",
        command=f"bitworth study {path / 'study.toml'}",
    )
    record, paths = run_study(request, Reporter(Console(file=io.StringIO()), quiet=True))
    return record, paths.record


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, fork_server: None) -> tuple[Record, Path]:
    """One study for all tests; its workers are forked, and nothing is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitworth.measurement.workers.start_process", start)
        patch.setattr("bitworth.study.outputs.draw", lambda _: Pictures("<svg></svg>", None))
        return run(folder(tmp_path_factory.mktemp("torch")))


def test_every_variant_has_the_result_that_this_machine_can_give(
    studied: tuple[Record, Path],
) -> None:
    record, _ = studied
    (cell,) = record.facts.cells
    states = {v.name: v.state for v in cell.variants}
    assert states == {
        "baseline": "measured",
        "int8 a row": "measured",
        "fp8": "emulated",
        "mxfp8 ff": "emulated",
        "int8 slowest": "measured",
        "weights alone": "not run",
    }
    reasons = {v.name: v.reason for v in cell.variants}
    assert "FP8" in reasons["fp8"]
    assert "on their own" in reasons["weights alone"]
    compared = {s.variant: s.comparison for s in record.derived.cells[0].variants}
    assert compared["fp8"] is None
    assert compared["int8 a row"] is not None


def test_sites_and_the_rules_that_left_some_out_are_in_the_record(
    studied: tuple[Record, Path],
) -> None:
    record, _ = studied
    subject = record.facts.subject
    assert (subject.kind, subject.base, len(subject.sites)) == ("torch", "fp32", 15)
    by_name = {v.name: v for v in record.facts.cells[0].variants}
    row = by_name["int8 a row"]
    assert {s.site for s in row.sites} == {
        s.id for s in subject.sites if s.id not in ("stem.weight", "head.weight")
    }
    left = dict(row.left_out)
    assert left["stem.weight"].startswith("rule dynamic-operators")
    assert left["head.weight"].startswith("rule torch-int8-multiples")
    assert len(by_name["mxfp8 ff"].sites) == 4
    assert by_name["int8 slowest"].sites


def test_quality_is_against_the_module_in_fp32(studied: tuple[Record, Path]) -> None:
    record, _ = studied
    error = {
        v.name: v.quality.outputs["logits"].rel_l2
        for v in record.facts.cells[0].variants
        if v.quality is not None
    }
    assert error["baseline"] is not None
    assert error["baseline"] < 1e-5
    for name in ("int8 a row", "fp8", "mxfp8 ff"):
        assert error[name] is not None
        assert 1e-4 < error[name] < 0.2, name
    check = next(v.check for v in record.facts.cells[0].variants if v.name == "int8 a row")
    assert check is not None
    assert check.limit is not None


def test_the_profile_covers_every_site(studied: tuple[Record, Path]) -> None:
    record, _ = studied
    profile = record.facts.cells[0].variants[0].profile
    assert profile is not None
    assert not profile.failed
    seen = {site for layer in profile.layers for site in layer.sites}
    assert seen == {s.id for s in record.facts.subject.sites}
    fused = next(layer for layer in profile.layers if "blocks.0.k.weight" in layer.sites)
    assert fused.sites == tuple(f"blocks.0.{name}.weight" for name in "qkv")
    assert record.derived.cells[0].bounds


def test_the_record_runs_again_and_notices_another_module(
    studied: tuple[Record, Path], tmp_path: Path
) -> None:
    record, path = studied
    where = folder(tmp_path)
    request = rerun_request(read_record(path), path, where, tmp_path, other_model=False)
    assert request.config.subject.torch == "model.py:net"
    model = where / "other" / "model.py"
    model.parent.mkdir()
    model.write_text((where / "model.py").read_text().replace("manual_seed(3)", "manual_seed(4)"))
    with pytest.raises(UserError, match="makes another module than was studied"):
        rerun_request(record, path, model.parent, tmp_path, other_model=False)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('torch = "model.py:net"', 'torch = "model.py:net"\nonnx = "m.onnx"', "either onnx"),
        ('torch = "model.py:net"', "", "either onnx"),
        ('engine = "torch"', 'engine = "onnxruntime"', "the subject is a PyTorch module"),
        ('torch = "model.py:net"', 'onnx = "m.onnx"', "the subject is an ONNX model"),
        ("threads = 1", 'threads = 1\nmode = "throughput"', "engines on a CPU"),
        ('format = "mxfp8"', 'format = "mxfp8"\nequalize = true', "equalize is for ONNX"),
        ('format = "mxfp8"', 'format = "mxfp8"\nbase = "fp16"', "set subject.base instead"),
        ('torch = "model.py:net"', 'torch = "model.py:net"\nbase = "fp8"', "subject.base"),
    ],
)
def test_a_study_that_contradicts_itself(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in STUDY
    (tmp_path / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(UserError, match=told):
        read_study_file(tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("model.py:net", "model.py:missing", "has no function 'missing'"),
        ('source = "inputs.py"', 'source = "other.py"', "no such file"),
        ('names = ["*.up.weight", "*.down.weight"]', 'names = ["*.nothing"]', "group"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    told: str,
) -> None:
    where = folder(tmp_path, STUDY.replace(old, new))
    monkeypatch.setattr("sys.argv", ["bitworth", "study", str(where / "study.toml")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert told in lines[-1]
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
@pytest.mark.parametrize("command", [["study"], ["onnx", "-o", "net.onnx"]])
def test_without_the_extra_it_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    command: list[str],
) -> None:
    where = folder(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else real(name)
    )
    name, *more = command
    monkeypatch.setattr("sys.argv", ["bitworth", name, str(where / "study.toml"), *more])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err.strip()
    assert f"{missing} is not installed; pip install 'bitworth[torch]'" in told
    assert len(told.splitlines()) == 1


def test_the_subject_is_exported_with_its_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = folder(tmp_path)
    out = tmp_path / "net.onnx"
    arguments = ["bitworth", "onnx", str(where / "study.toml"), "-o", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "15 of the module's 15 sites" in capsys.readouterr().out
    assert out.exists()
