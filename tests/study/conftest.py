from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from rich.console import Console

from bitworth.record.schema import Record
from bitworth.study.config import read_study_file
from bitworth.study.outputs import OutputPaths
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[N, 3, 8, 8] x) => (float[N, 5] y) {
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0, b0)
    r = Relu (c)
    d = Conv <kernel_shape = [1, 1]> (r, w1)
    p = GlobalAveragePool (d)
    f = Flatten (p)
    y = MatMul (f, w2)
}
"""

INPUTS = """
import numpy as np

def _samples(count, seed, split):
    for i in range(count):
        rng = np.random.default_rng((seed, split, i))
        x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
        yield {"x": x}, {"text": str(i)}

def calibration(count, seed):
    return _samples(count, seed, 0)

def holdout(count, seed):
    return _samples(count, seed, 1)
"""

METRIC = """
METRICS = {"accuracy": {"kind": "binary", "better": "higher"},
           "error": {"kind": "ratio", "better": "lower"}}

def make_metric(metadata):
    def score(outputs, target):
        y = outputs["y"]
        return {"accuracy": float(y.argmax() >= 0), "error": (float(abs(y).max() > 1e6), 1.0)}
    return score
"""


def write_model(path: Path, text: str = MODEL, denormal: bool = False) -> Path:
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(text)
    weights: dict[str, NDArray[np.float32]] = {
        "w0": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * 0.2,
        "b0": rng.standard_normal(8).astype(np.float32) * 0.1,
        "w1": rng.standard_normal((6, 8, 1, 1)).astype(np.float32) * 0.3,
        "w2": rng.standard_normal((6, 5)).astype(np.float32),
    }
    if denormal:
        weights["w0"][:, 0, 0, 0] = 1e-40
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return path


@dataclass(frozen=True)
class StudyFolder:
    """A folder with a model, data, a metric and a study file on the mock engine."""

    root: Path

    @property
    def study(self) -> Path:
        return self.root / "study.toml"

    def write(self, script: dict[str, Any] | None = None, text: str = "", **timing: Any) -> Path:
        told = json.dumps({"base_ns": 2e6, "sigma": 0.001, **(script or {})})
        timing = {"budget_minutes": 0.01, "precision": 0.02, "min_sessions": 3, **timing}
        self.study.write_text(
            f"""
version = 1
[subject]
name = "small"
onnx = "model.onnx"
[data]
source = "inputs.py"
calibration_samples = 4
holdout_samples = 12
[[cell]]
engine = "mock"
threads = 1
options = {{ script = {json.dumps(told)} }}
[[group]]
name = "conv"
op_types = ["Conv"]
[[variant]]
name = "int8 all"
format = "int8"
[[variant]]
name = "int8 conv"
format = "int8"
groups = ["conv"]
[[variant]]
name = "fp8"
format = "fp8_e4m3"
[quality]
metric = "metric.py"
[policy]
max_loss = {{ accuracy = 0.5 }}
[timing]
{chr(10).join(f"{k} = {v}" for k, v in timing.items())}
{text}
"""
        )
        return self.study


def run(folder: StudyFolder) -> tuple[Record, OutputPaths]:
    """Run the study of a folder in this process."""
    request = StudyRequest(
        config=read_study_file(folder.study),
        folder=folder.root,
        output=folder.root / "studies",
        command="bitworth study study.toml",
    )
    return run_study(request, Reporter(Console(file=io.StringIO()), quiet=True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyFolder:
    # Device locks lie in the temporary folder: tests that run side by side are no rivals.
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setenv("TMPDIR", str(locks))
    monkeypatch.setattr("tempfile.tempdir", None)
    write_model(tmp_path / "model.onnx")
    (tmp_path / "inputs.py").write_text(INPUTS)
    (tmp_path / "metric.py").write_text(METRIC)
    return StudyFolder(tmp_path)


@pytest.fixture
def model_writer() -> Callable[..., Path]:
    return write_model


@pytest.fixture(autouse=True)
def quick(quick_studies: None) -> None:
    """Every study here, but for those that are marked ``whole``."""
