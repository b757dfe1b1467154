from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.measurement.array_store import ArrayStore, is_stored, store_arrays

Sample = dict[str, NDArray[np.generic]]
USAGE = namedtuple("USAGE", "total used free")


def samples() -> list[Sample]:
    random = np.random.default_rng(0)
    return [
        {"y": random.standard_normal((2, 3)).astype(np.float32), "n": np.array(7)},
        {"y": random.standard_normal((5, 1)).T, "n": np.array([], np.int64)},
        {"half": np.arange(3).astype(ml_dtypes.bfloat16), "mask": np.array([[True], [False]])},
        {"narrow": np.arange(5).astype(ml_dtypes.float8_e4m3fn), "text": np.array(["a", "bcd"])},
        {},
        {"empty": np.zeros((3, 0, 2), np.uint8), "scalar": np.array(1.5, np.float16)},
    ]


def same(found: Sample, want: Sample) -> bool:
    return list(found) == list(want) and all(
        found[k].dtype == v.dtype and found[k].shape == v.shape and bool(np.all(found[k] == v))
        for k, v in want.items()
    )


def test_arrays_of_every_shape_and_type(tmp_path: Path) -> None:
    seen: list[int] = []
    store = store_arrays(iter(samples()), 6, tmp_path / "a" / "b", seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]
    for found in (store, ArrayStore(tmp_path / "a" / "b")):
        assert len(found) == 6
        assert all(same(found[i], want) for i, want in enumerate(samples()))
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["arrays.bin", "index.json"]


def test_only_empty_arrays(tmp_path: Path) -> None:
    store = store_arrays([{"e": np.zeros((0, 2))}], 1, tmp_path, lambda _: None)
    assert store[0]["e"].shape == (0, 2)
    assert len(store_arrays([], 0, tmp_path / "none", lambda _: None)) == 0


def test_an_interrupted_store_is_not_one(tmp_path: Path) -> None:
    def killed() -> Iterator[Sample]:
        yield samples()[0]
        assert list(tmp_path.iterdir())  # it is being written
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_arrays(killed(), 6, tmp_path, lambda _: None)
    assert not is_stored(tmp_path)
    assert list(tmp_path.iterdir()) == []
    # What a killed process leaves is written over.
    (tmp_path / "arrays.bin").write_bytes(b"half")
    (tmp_path / "arrays.bin.part").write_bytes(b"half")
    assert not is_stored(tmp_path)
    store_arrays(samples(), 6, tmp_path, lambda _: None)
    assert is_stored(tmp_path)
    assert same(ArrayStore(tmp_path)[1], samples()[1])


def test_no_room_is_told_after_the_first_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: USAGE(9, 9, 1000))
    seen: list[int] = []
    big = [{"y": np.zeros(100, np.float64)}] * 2
    with pytest.raises(UserError, match=r"GB are needed and .* GB are free") as full:
        store_arrays(big, 2, tmp_path, seen.append)
    assert str(tmp_path) in str(full.value)
    assert "\n" not in str(full.value)
    assert seen == []
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from bitworth.errors import UserError
from bitworth.measurement.array_store import store_arrays
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    arrays = ({"y": np.zeros(int(sys.argv[3]), np.uint8)} for _ in range(60))
    store_arrays(arrays, 60, Path(sys.argv[1]), lambda _: None)
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "size"),
    [(5000, 640), (500, 0)],  # the arrays do not fit; their index does not
)
def test_a_full_disk(tmp_path: Path, limit: int, size: int) -> None:
    folder = tmp_path / "reference"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folder), str(limit), str(size)],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{folder}: 60 samples cannot be written (File too large); free")
    assert list(folder.iterdir()) == []
