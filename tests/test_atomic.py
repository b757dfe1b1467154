from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bitworth.atomic import write_atomic
from bitworth.errors import UserError

FULL = """
import resource, signal, sys
from pathlib import Path
from bitworth.atomic import write_atomic
from bitworth.errors import UserError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_atomic(Path(sys.argv[1]), b"x" * 10_000)
except UserError as error:
    print(error)
"""

WRITE = """
import sys
from pathlib import Path
from bitworth.atomic import write_atomic
for _ in range(40):
    write_atomic(Path(sys.argv[1]), sys.argv[2].encode() * 5000)
"""


def names(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir()]


def test_a_file_is_written_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "record.json"
    write_atomic(path, b"one")
    write_atomic(path, b"")
    assert path.read_bytes() == b""
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["record.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"{path}: cannot be written (File too large); free some space or choose another folder "
        "with --output\n"
    )
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["record.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    # Not a folder without write permission: root may write there.
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "x.json", tmp_path / "file" / "deep" / "x.json"):
        with pytest.raises(UserError, match="cannot be written") as refused:
            write_atomic(path, b"new")
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
    assert names(tmp_path) == ["file"]


def test_a_folder_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "x.json" / "inner").mkdir(parents=True)
    with pytest.raises(UserError, match=r"x\.json: cannot be written"):
        write_atomic(tmp_path / "x.json", b"new")
    assert names(tmp_path) == ["x.json"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["record.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "record.json", b"new")
        assert os.umask(umask) == umask  # as it was
    finally:
        os.umask(before)
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == mode


def test_concurrent_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, b"a" * 5000)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter]) for letter in "bc"
    ]
    seen = set()
    while any(w.poll() is None for w in writers):
        data = path.read_bytes()
        assert len(data) == 5000
        assert len(set(data)) == 1
        seen.add(data[:1])
    assert [w.returncode for w in writers] == [0, 0]
    assert path.read_bytes()[:1] in (b"b", b"c")
    assert seen <= {b"a", b"b", b"c"}
    assert names(tmp_path) == ["record.json"]


def test_threads_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    threads = [
        threading.Thread(target=write_atomic, args=(path, letter * 5000))
        for letter in (b"a", b"b", b"c", b"d")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(path.read_bytes())) == 1
    assert names(tmp_path) == ["record.json"]
