from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
tiny (float[N, 4] x) => (float[N, 3] y) { h = MatMul (x, w0) r = Relu (h) y = MatMul (r, w1) }
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def write_tiny(path: Path) -> Path:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(MODEL)
    for name, shape in (("w0", (4, 6)), ("w1", (6, 3))):
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return path


@pytest.fixture
def bitworth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run a command in this process, in a folder of its own with its own device locks."""
    from bitworth.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    # Wide enough that no test depends on where a line is broken.
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bitworth", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 1, told.out, told.err)

    return run


@pytest.fixture(scope="session")
def tiny_writer() -> Callable[[Path], Path]:
    return write_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.onnx")


@pytest.fixture(autouse=True)
def quick(quick_studies: None) -> None:
    """Every study here, but for those that are marked ``whole``."""


@pytest.fixture
def record(bitworth: Callable[..., Outcome], tiny: Path, tmp_path: Path) -> Path:
    """The record of a short study of the tiny model."""
    done = bitworth(
        "study", tiny, "--random-inputs", "--shape", "x=2,4", "--engine", "mock", "--budget",
        "0.01", "--output", tmp_path / "studies",
    )  # fmt: skip
    assert done.code == 0, done.err
    (path,) = (tmp_path / "studies").rglob("*.json")
    return path
