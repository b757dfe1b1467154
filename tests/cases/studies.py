"""Whole studies in a folder of a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bitworth.record.schema import Record, VariantFacts, VariantSummary
from bitworth.study.config import read_study_file
from bitworth.study.outputs import OutputPaths
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import run_study

INPUTS = """
import numpy as np

def _samples(count, seed, split):
    for i in range(count):
        rng = np.random.default_rng((seed, split, i))
        x = rng.standard_normal({shape}) * ({held_out} if split else 1.0)
        yield {{"x": x.astype(np.float32)}}, {{"i": i}}

def calibration(count, seed):
    return _samples(count, seed, 0)

def holdout(count, seed):
    return _samples(count, seed, 1)
"""
METRIC = """
METRICS = {"accuracy": {"kind": "binary", "better": "higher"}}

def make_metric(metadata):
    def score(outputs, target):
        return {"accuracy": float(abs(outputs["y"]).max() < 1e6)}
    return score
"""


@dataclass(frozen=True)
class Study:
    """What a study left behind."""

    folder: Path
    record: Record
    paths: OutputPaths

    @property
    def variants(self) -> dict[str, VariantFacts]:
        return {v.name: v for v in self.record.facts.cells[0].variants}

    @property
    def summaries(self) -> dict[str, VariantSummary]:
        return {s.variant: s for s in self.record.derived.cells[0].variants}


def run(folder: Path, text: str, shape: tuple[int, ...], held_out: float = 1.0) -> Study:
    """Run the study in ``folder``, where its model lies; inputs and metric are written.

    ``held_out``: how much larger the held-out samples are than those that calibrate.
    """
    (folder / "inputs.py").write_text(INPUTS.format(shape=shape, held_out=held_out))
    (folder / "metric.py").write_text(METRIC)
    head = """
version = 1
[subject]
name = "case"
onnx = "model.onnx"
[data]
source = "inputs.py"
calibration_samples = 5
holdout_samples = 6
[timing]
budget_minutes = 0.01
min_sessions = 2
max_sessions = 2
"""
    (folder / "study.toml").write_text(head + text)
    request = StudyRequest(
        read_study_file(folder / "study.toml"), folder, folder / "studies", "bitworth study"
    )
    return Study(folder, *run_study(request, Reporter(Console(), quiet=True)))


def mock_cell(**script: Any) -> str:
    told = json.dumps({"base_ns": 2e6, "sigma": 0.001, **script})
    return f'[[cell]]\nengine = "mock"\nthreads = 1\noptions = {{ script = {json.dumps(told)} }}\n'
