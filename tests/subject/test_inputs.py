from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bitworth.errors import UserError
from bitworth.subject.inputs import Dataset, from_module, from_npz, random_inputs
from bitworth.subject.onnx_model import InputSpec
from bitworth.subject.samples import Sample, check_no_overlap, sample_sha256

IMAGE = InputSpec("image", "float32", ("N", 3, "H", "W"))
LENGTH = InputSpec("length", "int64", ("N",))
SPECS = (IMAGE, LENGTH)


def _npz(path: Path, **arrays: NDArray[np.generic]) -> Path:
    np.savez(path / "data.npz", **arrays)
    return path / "data.npz"


def _images(*shape: int) -> NDArray[np.float32]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_npz_with_a_sample_axis(tmp_path: Path) -> None:
    images, lengths = _images(5, 2, 3, 4, 4), np.arange(10).reshape(5, 2)
    data = from_npz(_npz(tmp_path, image=images, length=lengths, target=np.arange(5)), SPECS)
    assert len(data) == 5
    for _ in range(2):  # a stream can be read again
        samples = list(data)
        assert [s.target for s in samples] == [0, 1, 2, 3, 4]
        assert np.array_equal(samples[3].inputs["image"], images[3])
        assert np.array_equal(samples[3].inputs["length"], lengths[3])


@pytest.mark.parametrize(("batch", "count"), [("N", 6), (None, 6), (2, 3), (3, 2)])
def test_npz_is_cut_along_the_batch(tmp_path: Path, batch: str | int | None, count: int) -> None:
    spec = InputSpec("image", "float32", (batch, 3, 4, 4))
    images = _images(6, 3, 4, 4)
    data = from_npz(_npz(tmp_path, image=images), (spec,))
    assert data.count == count
    parts = [s.inputs["image"] for s in data]
    assert np.array_equal(np.concatenate(parts), images)
    assert parts[0].shape[0] == 6 // count


IMAGES = _images(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"imge": IMAGES, "length": np.zeros(2, "i8")}, r"no input 'imge'; did you mean 'image'"),
        ({"image": IMAGES}, "input 'length' is missing"),
        ({"image": IMAGES, "length": np.zeros(3, "i8")}, "'length' has 3 samples, 'image' has 2"),
        ({"image": _images(4, 4), "length": np.zeros(3, "i8")}, "'image' has 2 dimensions; give 4"),
        ({"image": _images(0, 3, 4, 4), "length": np.zeros(0, "i8")}, "'image' is empty"),
        ({"image": IMAGES, "length": np.zeros(2, "i8"), "target": np.zeros(3)}, "'target' must"),
    ],
)  # fmt: skip
def test_a_bad_npz_is_refused_at_once(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], says: str
) -> None:
    path = _npz(tmp_path, **arrays)
    with pytest.raises(UserError, match=says) as caught:
        from_npz(path, SPECS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut"])
def test_not_an_npz(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        from_npz(path, SPECS)


def test_missing_npz(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        from_npz(tmp_path / "none.npz", SPECS)


def test_an_object_array_is_never_unpickled(tmp_path: Path) -> None:
    path = _npz(tmp_path, image=np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"not a readable \.npz"):
        from_npz(path, SPECS)


def _dataset(*samples: Sample, count: int | None = None) -> Dataset:
    def opened() -> Iterator[Sample]:
        return iter(samples)

    return Dataset("data", len(samples) if count is None else count, SPECS, opened)


def _sample(**changes: NDArray[np.generic]) -> Sample:
    return Sample({"image": _images(1, 3, 4, 4), "length": np.array([4]), **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image": _images(1, 3, 4, 4).astype("f8")}, "'image' is float64, the model takes"),
        ({"image": _images(1, 4, 4, 4)}, r"shape \[1, 4, 4, 4\], the model takes \[N, 3, H, W\]"),
        ({"image": _images(3, 4, 4)}, r"shape \[3, 4, 4\]"),
        ({"image": np.full((1, 3, 2, 2), np.nan, "f4")}, "has 12 values that are not finite .*NaN"),
        ({"image": np.full((1, 3, 2, 2), np.inf, "f4")}, "not finite .*infinite"),
        ({"image": _images(1, 3, 0, 4)}, "is empty"),
        ({"length": np.array([1, 2])}, r"'length' has shape \[2\]"),  # N is 1 in the image
        ({"lenght": np.array([1])}, "did you mean 'length'"),
    ],
)  # fmt: skip
def test_a_bad_sample_is_named(changes: dict[str, NDArray[np.generic]], says: str) -> None:
    data = _dataset(_sample(), _sample(**changes))
    with pytest.raises(UserError, match=says) as caught:
        list(data)
    assert str(caught.value).startswith("data: sample 1: ")


def test_a_sample_without_an_input_is_named() -> None:
    with pytest.raises(UserError, match="sample 0: input 'length' is missing"):
        list(_dataset(Sample({"image": _images(1, 3, 4, 4)})))


def test_a_stream_that_ends_early_is_an_error() -> None:
    with pytest.raises(UserError, match="ended after 2 of 3 samples"):
        list(_dataset(_sample(), _sample(), count=3))


def test_a_stream_is_not_read_past_its_count() -> None:
    assert len(list(_dataset(_sample(), _sample(), count=1))) == 1


MODULE = """
import numpy as np
from dataclasses import dataclass

@dataclass
class Target:
    text: str

def _make(count, seed):
    rng = np.random.default_rng(seed)
    for i in range(count):
        x = rng.standard_normal((1, 3, 4, 4)).astype(np.float32)
        yield {"image": x, "length": np.array([4])}, Target(str(i))

def calibration(count, seed):
    return _make(count, seed)

def holdout(count, seed):
    if seed == 1:
        raise RuntimeError("no such\\nseed")
    if seed == 2:
        return iter([1])
    return _make(count, seed + 1000)
"""


def test_a_module_makes_samples(tmp_path: Path) -> None:
    path = tmp_path / "inputs.py"
    path.write_text(MODULE)
    data = from_module(path, "calibration", 3, 7, SPECS)
    assert [s.target.text for s in data] == ["0", "1", "2"]  # type: ignore[attr-defined]
    assert [sample_sha256(s) for s in data] == [sample_sha256(s) for s in data]
    assert len(list(islice(data, 2))) == 2


@pytest.mark.parametrize(
    ("seed", "says"), [(1, "raised RuntimeError: no such seed"), (2, "item 0 is no pair")]
)
def test_a_module_that_fails_while_streaming(tmp_path: Path, seed: int, says: str) -> None:
    path = tmp_path / "inputs.py"
    path.write_text(MODULE)
    with pytest.raises(UserError, match=says):
        list(from_module(path, "holdout", 3, seed, SPECS))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = ", "cannot be imported"),
        ("import no_such_module_1", "cannot be imported"),
        ("", "has no function"),
    ],
)  # fmt: skip
def test_a_bad_module(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "inputs.py"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        from_module(path, "calibration", 3, 0, SPECS)


def test_a_missing_module(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        from_module(tmp_path / "none.py", "calibration", 3, 0, SPECS)


def test_no_samples_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one sample"):
        from_module(tmp_path / "none.py", "calibration", 0, 0, SPECS)
    with pytest.raises(UserError, match="at least one sample"):
        random_inputs(SPECS, {"image": (1, 3, 4, 4), "length": (1,)}, 0, 0)


def test_random_inputs() -> None:
    shapes = {"image": (1, 3, 4, 4), "length": (1,)}
    data = random_inputs(SPECS, shapes, 2, 5)
    first, again = list(data), list(data)
    assert [sample_sha256(s) for s in first] == [sample_sha256(s) for s in again]
    assert sample_sha256(first[0]) != sample_sha256(first[1])
    with pytest.raises(UserError, match="input 'length' has free dimensions"):
        random_inputs(SPECS, {"image": (1, 3, 4, 4)}, 2, 5)
    with pytest.raises(UserError, match="did you mean 'image'"):
        random_inputs(SPECS, {"imag": (1,), **shapes}, 2, 5)


def test_overlap_names_the_samples() -> None:
    check_no_overlap(["a", "b"], ["c", "d"])
    with pytest.raises(UserError, match=r"sample 1 \(= calibration 2\), 2 \(= calibration 0\)"):
        check_no_overlap(["a", "b", "c"], ["d", "c", "a"])


def test_the_hash_knows_names_types_and_shapes() -> None:
    x = _images(2, 2)
    samples = [{"a": x}, {"b": x}, {"a": x.reshape(4)}, {"a": x.astype("f8")}, {"a": x + 1}]
    assert len({sample_sha256(Sample(s)) for s in samples}) == 5
    assert sample_sha256(Sample({"a": x}, 1)) == sample_sha256(Sample({"a": x}, 2))
    assert sample_sha256(Sample({"a": x.T})) == sample_sha256(Sample({"a": x.T.copy()}))
