"""What a user can get wrong: one line on stderr that names it, exit code 2, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

X = np.arange(24, dtype=np.float32).reshape(6, 4)


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    line = outcome.err.strip().splitlines()[-1]
    assert outcome.err.count("Traceback") == 0
    assert line.startswith("bitworth: ")
    for word in words:
        assert word in line


def study(bitworth: Callable[..., Any], model: object, **data: Any) -> Any:
    args = ["--engine", "mock", "--budget", "0.01"]
    for name, arrays in data.items():
        path = Path(f"{name}.npz")
        np.savez(path, **arrays)
        args += [f"--{name}", str(path)]
    return bitworth("study", model, *args)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("nothing.onnx", "no such file")),
        (b"this is not a model", ("nothing.onnx", "ONNX")),
        (b"", ("nothing.onnx",)),
    ],
)
def test_no_model(
    bitworth: Callable[..., Any], tmp_path: Path, content: bytes | None, words: tuple[str, ...]
) -> None:
    path = tmp_path / "nothing.onnx"
    if content is not None:
        path.write_bytes(content)
    refused(bitworth("study", "nothing.onnx", "--random-inputs"), *words)
    assert not (tmp_path / "studies").exists()


def test_truncated_model(bitworth: Callable[..., Any], tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-20])
    refused(bitworth("study", tiny, "--random-inputs"), "tiny.onnx")


def test_without_data_it_says_what_to_give(bitworth: Callable[..., Any], tiny: Path) -> None:
    refused(bitworth("study", tiny), "--calibration", "--holdout", "x [N, 4] float32", "--random")
    refused(bitworth("compare", tiny, tiny), "--holdout", "x [N, 4] float32")


@pytest.mark.parametrize(
    ("calibration", "words"),
    [
        ({"z": X}, ("no input 'z'", "'x'")),
        ({"x": X.astype(np.float64)}, ("float64", "float32")),
        ({"x": X[:, :3]}, ("shape", "[N, 4]")),
        ({"x": np.where(X == 5, np.nan, X)}, ("sample 1", "x")),
        ({"x": X[:0]}, ("empty",)),
        ({}, ("calibration.npz",)),
    ],
)
def test_wrong_data(
    bitworth: Callable[..., Any], tiny: Path, calibration: dict[str, Any], words: tuple[str, ...]
) -> None:
    outcome = study(bitworth, tiny, calibration=calibration, holdout={"x": X + 100})
    refused(outcome, *words)


def test_held_out_samples_that_calibrate(bitworth: Callable[..., Any], tiny: Path) -> None:
    outcome = study(bitworth, tiny, calibration={"x": X}, holdout={"x": X[3:] + 0})
    refused(outcome, "held-out", "calibration")


def test_quantized_model_is_no_baseline(bitworth: Callable[..., Any], tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    q (float[N, 4] x) => (float[N, 4] y) <float s = {0.1}, uint8 z = {0}> {
        a = QuantizeLinear (x, s, z) y = DequantizeLinear (a, s, z)
    }
    """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "q.onnx")
    refused(bitworth("study", "q.onnx", "--random-inputs"), "q.onnx", "float original", "compare")


def test_a_model_without_sites(bitworth: Callable[..., Any], tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> r (float[4] x) => (float[4] y) { y = Relu (x) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "r.onnx")
    refused(bitworth("study", "r.onnx", "--random-inputs"), "r.onnx", "constant weight")


def test_random_inputs_need_sizes(bitworth: Callable[..., Any], tiny: Path) -> None:
    refused(bitworth("study", tiny, "--random-inputs", "--engine", "mock"), "'x'", "N")
    refused(bitworth("study", tiny, "--random-inputs", "--shape", "x"), "--shape x", "NAME=SIZES")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 0", "sed = 0", ("'data.sed'", "'seed'")),
        ("version = 1", "version = 2", ("version",)),
        ("version = 1", "version = ", ("not a TOML file",)),
        ('format = "int8"', 'format = "int9"', ("variant.0.format", "int8")),
        ('groups = ["fc"]', 'groups = ["fx"]', ("no group 'fx'", "known: all, fc")),
        ('groups = ["fc"]', 'group = ["fc"]', ("'variant.0.group'", "'groups'")),
        ('names = ["w*"]', 'names = ["v*"]', ("'v*'", "matches no site")),
        ('engine = "mock"', 'engine = "mook"', ("cell.0.engine", "mock")),
        ("[policy]", "[polcy]", ("'polcy'", "'policy'")),
        ('name = "int8"', 'name = "baseline again"', ("'baseline again'", "reserved")),
        ("min_speedup = 1.1", "min_speedup = inf", ("policy.min_speedup",)),
        ("budget_minutes = 0.01", "budget_minutes = inf", ("timing.budget_minutes",)),
        ("budget_minutes = 0.01", "seed = -1", ("timing.seed",)),
        ('groups = ["fc"]', 'engines = ["mok"]', ("variant.0.engines",)),
        ('format = "int8"', 'format = "bf16"', ("whole model", "groups")),
        ("min_speedup = 1.1", "max_loss = { x = 0.1 }", ("no metric 'x'",)),
    ],
)
def test_study_file(
    bitworth: Callable[..., Any],
    tiny: Path,
    tmp_path: Path,
    old: str,
    new: str,
    words: tuple[str, ...],
) -> None:
    np.savez(tmp_path / "c.npz", x=X)
    np.savez(tmp_path / "h.npz", x=X + 100)
    text = """
version = 1
[subject]
name = "tiny"
onnx = "tiny.onnx"
[data]
calibration = "c.npz"
holdout = "h.npz"
seed = 0
[[cell]]
engine = "mock"
[[group]]
name = "fc"
names = ["w*"]
[[variant]]
name = "int8"
format = "int8"
groups = ["fc"]
[policy]
min_speedup = 1.1
[timing]
budget_minutes = 0.01
min_sessions = 2
"""
    assert old in text
    (tmp_path / "study.toml").write_text(text.replace(old, new, 1))
    refused(bitworth("study", "study.toml"), *words)


def test_missing_study_file(bitworth: Callable[..., Any]) -> None:
    refused(bitworth("study", "none.toml"), "none.toml", "no such file")


def test_output_that_cannot_be_a_folder(
    bitworth: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file")
    args = ("--random-inputs", "--shape", "x=1,4", "--engine", "mock")
    refused(bitworth("study", tiny, *args, "-o", "file/below"), "file/below", "--output")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "none.json"), ("none.json", "no such record")),
        (("export", "none.json", "-o", "x.onnx"), ("RECORD:VARIANT",)),
        (("export", "none.json:a", "-o", "x.onnx"), ("none.json", "no such record")),
        (("study", "a.onnx", "--require", "luck"), ("--require luck", "ship")),
        (("study", "a.onnx", "--engine", "cuda"), ()),
    ],
)
def test_other_commands(
    bitworth: Callable[..., Any], args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(bitworth(*args), *words)


@pytest.mark.parametrize(
    ("option", "value"), [("--max-rel-l2", "0"), ("--max-rel-l2", "inf"), ("--budget", "inf")]
)
def test_numbers_that_make_no_sense(
    bitworth: Callable[..., Any], tiny: Path, option: str, value: str
) -> None:
    args = ("--random-inputs", "--shape", "x=1,4", "--engine", "mock")
    refused(bitworth("study", tiny, *args, option, value), "tiny.onnx")


def test_options_that_exclude_each_other(bitworth: Callable[..., Any], tiny: Path) -> None:
    refused(bitworth("study", tiny, "--shape", "x=1,4"), "--shape", "--random-inputs")
    data = ("--random-inputs", "--holdout", "h.npz")
    refused(bitworth("study", tiny, *data), "--random-inputs", "no data")
    refused(bitworth("compare", tiny, tiny, *data), "--random-inputs", "no data")


def test_candidates_with_other_tensors(
    bitworth: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    other (float[N, 4] z) => (float[N, 4] y) { y = Relu (z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "other.onnx")
    np.savez(tmp_path / "h.npz", x=X)
    args = ("--holdout", "h.npz", "--engine", "mock", "--budget", "0.01")
    refused(bitworth("compare", tiny, "other.onnx", *args), "other.onnx", "tiny.onnx")
    refused(bitworth("compare", tiny, "none.onnx", *args), "none.onnx", "no such file")


def test_an_unknown_option_is_the_parsers_to_tell(bitworth: Callable[..., Any]) -> None:
    outcome = bitworth("study", "--no-such-option")
    assert outcome.code == 2
    assert "no-such-option" in outcome.err
