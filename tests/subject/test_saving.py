from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.subject.onnx_model import load
from bitworth.subject.prepare import PreparedModel, graph_sha256, prepare
from bitworth.subject.saving import save, serialize

Write = Callable[..., Path]
Run = Callable[..., list[NDArray[np.generic]]]


@pytest.fixture
def prepared(write: Write) -> PreparedModel:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((200, 300)).astype(np.float32)
    path = write(
        "g (float[N, 300] x) => (float[N, 200] y)"
        "{ t = Transpose<perm = [1, 0]>(w) \n y = MatMul(x, t) }",
        {"w": weight},
    )
    return prepare(load(path), 17)


@pytest.mark.parametrize("external_above", [10**9, 1000])
def test_what_is_saved_reads_back(
    prepared: PreparedModel, tmp_path: Path, external_above: int
) -> None:
    path = tmp_path / "out" / "saved.onnx"
    save(prepared.model, path, external_above)
    assert graph_sha256(load(path).model) == graph_sha256(prepared.model)
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == (["saved.onnx"] if external_above > 1000 else ["saved.onnx", "saved.onnx.data"])


def test_external_data_of_the_source_is_carried_over(
    prepared: PreparedModel, tmp_path: Path, run: Run
) -> None:
    first = tmp_path / "a" / "m.onnx"
    save(prepared.model, first, external_above=1000)
    read = load(first)
    save(read.model, tmp_path / "b" / "m.onnx", external_above=1000)
    save(read.model, tmp_path / "c.onnx")
    x = np.ones((1, 300), np.float32)
    expected = run(serialize(prepared.model), x=x)[0]
    assert np.array_equal(run((tmp_path / "c.onnx").read_bytes(), x=x)[0], expected)
    assert graph_sha256(load(tmp_path / "b" / "m.onnx").model) == graph_sha256(prepared.model)


def test_saving_over_the_models_own_data_is_refused(
    prepared: PreparedModel, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    save(prepared.model, path, external_above=1000)
    with pytest.raises(UserError, match=r"holds weight 'w' of the model itself"):
        save(load(path).model, path, external_above=1000)


@pytest.mark.parametrize("external_above", [10**9, 1000])
def test_a_full_disk_leaves_what_was_there(
    prepared: PreparedModel, tmp_path: Path, external_above: int
) -> None:
    path = tmp_path / "full" / "m.onnx"
    path.parent.mkdir()
    path.write_bytes(b"what was there")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match="cannot be written") as caught:
            save(prepared.model, path, external_above)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(path) in str(caught.value)
    assert [p.name for p in path.parent.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == b"what was there"


def test_a_folder_that_is_a_file_is_named(prepared: PreparedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save(prepared.model, tmp_path / "file" / "m.onnx")


def test_a_weight_that_does_not_read_back_is_named(
    prepared: PreparedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bitworth.subject.saving as saving

    def damaged(model: object, path: Path, external: bool) -> None:
        data = bytearray(serialize(prepared.model))
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))

    monkeypatch.setattr(saving, "_write", damaged)
    with pytest.raises(UserError, match="weight 'w' does not read back"):
        save(prepared.model, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
