from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitworth.errors import UserError
from bitworth.measurement.metric_file import load_metric
from bitworth.measurement.quality import MetricSpec

GOOD = """
from __future__ import annotations
from dataclasses import dataclass

METRICS = {"acc": {"kind": "binary", "better": "higher"}}

@dataclass
class Answer:
    text: str

def make_metric(metadata):
    answer = Answer(metadata["character"])
    return lambda outputs, target: {"acc": float(answer.text == target)}
"""


def test_a_metric_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "metric.py"
    path.write_text(GOOD, encoding="utf-8")
    specs, score = load_metric(path, {"character": "a"})
    assert specs == {"acc": MetricSpec("binary", "higher")}
    assert score({"y": np.zeros(1)}, "a") == {"acc": 1.0}
    assert score({"y": np.zeros(1)}, "b") == {"acc": 0.0}


def test_two_files_of_one_name(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        path = tmp_path / name / "metric.py"
        path.parent.mkdir()
        path.write_text(
            f"METRICS = {{'{name}': {{'kind': 'mean', 'better': 'lower'}}}}\n"
            f"NAME = '{name}'\n"
            "def make_metric(metadata):\n    return lambda outputs, target: {NAME: 1.0}\n",
            encoding="utf-8",
        )
        found.append(load_metric(path, {}))
    assert [list(score({}, None)) for _, score in found] == [["one"], ["two"]]


SPEC = "METRICS = {'a': {'kind': 'mean', 'better': 'lower'}}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
        ("raise ValueError('one\\ntwo')\n", "ValueError: one two"),
        ("", "has no attribute 'METRICS'"),
        (SPEC, "has no attribute 'make_metric'"),
        ("METRICS = ['a']\n", "AttributeError"),
        ("METRICS = {'a': {'kind': 'mean'}}\n", "KeyError: 'better'"),
        (SPEC + "def make_metric(m):\n    return m['character']\n", "KeyError: 'character'"),
        (SPEC + "def make_metric(m):\n    pass\n", "make_metric.metadata. returns no function"),
        (
            SPEC.replace("mean", "average") + "def make_metric(m):\n    return len\n",
            r"METRICS\['a'\]: kind is one of binary, mean, ratio",
        ),
        (SPEC.replace("lower", "less") + "def make_metric(m):\n    return len\n", "lower"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "metric.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=told) as wrong:
        load_metric(path, {})
    assert str(wrong.value).startswith(f"{path}: ")
    assert "\n" not in str(wrong.value)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "metric.py", tmp_path):
        with pytest.raises(UserError, match=r"no such file; quality\.metric names a Python file"):
            load_metric(path, {})


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "metric.toml"
    path.write_text("a = 1", encoding="utf-8")
    with pytest.raises(UserError, match=r"metric\.toml: is no Python file"):
        load_metric(path, {})
