"""Fixtures of the cases: each models, in seconds, what a user reported against some tool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .tools import Engines, Outcome, engines_in


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """onnxruntime and openvino in worker processes, shared by all cases."""
    yield from engines_in(tmp_path_factory.mktemp("engines"))


@pytest.fixture
def bitworth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run a command in this process, in a folder of its own."""
    from bitworth.cli.main import main

    monkeypatch.chdir(tmp_path)
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


@pytest.fixture(autouse=True)
def quick(quick_studies: None) -> None:
    """Every study here, but for those that are marked ``whole``."""
