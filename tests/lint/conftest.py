"""Records of real studies on the mock engine: two runs of one study, and one with more in it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bitworth.record.pictures import Pictures
from bitworth.study.outputs import OutputPaths
from tests.forked_worker import start
from tests.study.conftest import INPUTS, METRIC, StudyFolder, run, write_model

FREE = '[[free_win]]\nname = "a spell"\noptions = { magic = "1" }\n'
SCRIPTS: dict[str, tuple[dict[str, Any], str]] = {
    "first": ({"ratios": {"int8 all": 0.8, "int8 conv": 1.25}}, ""),
    "again": ({"ratios": {"int8 all": 0.83, "int8 conv": 1.2}, "seed": 7}, ""),
    "rich": ({"ratios": {"int8 all": 0.7, "a spell": 0.9}, "faults": {"int8 conv": "build"}}, FREE),
}


@dataclass(frozen=True)
class Studied:
    """The files of each study by its name."""

    files: dict[str, OutputPaths]

    def copied(self, name: str, folder: Path) -> OutputPaths:
        """A copy of the study's files that a test may change."""
        paths = self.files[name]
        shutil.copytree(paths.record.parent, folder, dirs_exist_ok=True)
        return OutputPaths(
            *(folder / getattr(paths, f).name for f in OutputPaths.__dataclass_fields__)
        )


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory, fork_server: None) -> Studied:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitworth.measurement.workers.start_process", start)
        patch.setattr("bitworth.study.outputs.draw", lambda _: Pictures("<svg></svg>", None))
        for name, (script, text) in SCRIPTS.items():
            root = tmp_path_factory.mktemp(name)
            write_model(root / "model.onnx", denormal=name == "rich")
            (root / "inputs.py").write_text(INPUTS)
            (root / "metric.py").write_text(METRIC)
            folder = StudyFolder(root)
            folder.write(script, text)
            _, found[name] = run(folder)
    return Studied(found)
