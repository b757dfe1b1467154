"""Functions that make PyTorch modules: by file, by package, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bitworth.errors import UserError
from bitworth.subject.torch_factory import factory_of, load_function, make_module, source_sha256

MODEL = """
import torch

def make():
    return torch.nn.Linear(4, 4)

def nothing():
    return 3

def broken():
    raise RuntimeError("no\\nweights")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "bad.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "needs.py").write_text("import a_package_that_is_not_here\n")
    return tmp_path


def test_a_file_beside_the_study(folder: Path) -> None:
    module = make_module(factory_of("model.py:make", folder))
    assert isinstance(module, torch.nn.Linear)
    assert not module.training
    assert not module.weight.requires_grad


def test_a_package() -> None:
    module = make_module(factory_of("tests.torch_nets:net", Path()))
    assert type(module).__name__ == "Net"


def test_a_package_depends_on_no_folder(folder: Path) -> None:
    assert factory_of("tests.torch_nets:net", folder) == factory_of("tests.torch_nets:net", Path())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("model", "names no function"),
        ("model.py:", "names no function"),
        (":make", "names no function"),
        ("model.py:2x", "names no function"),
        ("model.py:other", "has no function 'other'"),
        ("absent.py:make", "no such file"),
        ("no_such_package_at_all:make", "there is no module 'no_such_package_at_all'"),
        ("tests.no_such:make", "there is no module 'tests.no_such'"),
        ("bad.py:make", "cannot be imported (division by zero)"),
        ("needs.py:make", "cannot be imported (No module named 'a_package_that_is_not_here')"),
        ("model.py:nothing", "makes a int"),
        ("model.py:broken", "raised RuntimeError: no weights"),
    ],
)
def test_what_is_wrong_is_one_line_with_what_to_do(folder: Path, name: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        make_module(factory_of(name, folder))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_source_is_told_by_its_hash(folder: Path) -> None:
    before = source_sha256(factory_of("model.py:make", folder))
    other = folder / "other"
    other.mkdir()
    (other / "model.py").write_text(MODEL + "\n# changed\n")
    assert source_sha256(factory_of("model.py:make", other)) != before
    assert callable(load_function(factory_of("model.py:make", folder)))
