"""The OCR example: its rendered lines, its metric, and how well the real model reads them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr"
Split = Callable[[int, int], Iterator[tuple[dict[str, NDArray[np.float32]], dict[str, str]]]]


def load(name: str) -> ModuleType:
    # Not entered in sys.modules: the files must work for a caller that does not do it either.
    spec = importlib.util.spec_from_file_location(f"ocr_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inputs = load("inputs")
metric = load("metric")
both_splits = pytest.mark.parametrize("split", [inputs.calibration, inputs.holdout])

# What the dice give must not move with a release of NumPy: a stored study names seeds only.
FIRST_TEXTS = {
    "calibration": ["681.3797", "keyboard WALLET", "Coffee", "August 2903"],
    "holdout": ["DINNER Motor", "7,354,800.57", "cable POCKET", "348,443.21"],
}


def drawn(split: Split, count: int, seed: int) -> list[tuple[bytes, dict[str, str]]]:
    return [(x["x"].tobytes(), target) for x, target in split(count, seed)]


@both_splits
def test_the_same_seed_gives_the_same_lines(split: Split) -> None:
    assert drawn(split, 12, 3) == drawn(split, 12, 3)
    assert drawn(split, 12, 3) != drawn(split, 12, 4)


@both_splits
def test_a_line_does_not_depend_on_the_count(split: Split) -> None:
    assert drawn(split, 20, 5)[:7] == drawn(split, 7, 5)


@both_splits
def test_the_texts_of_a_seed_are_fixed(split: Split) -> None:
    assert [target["text"] for _, target in split(4, 0)] == FIRST_TEXTS[split.__name__]


@both_splits
def test_lines_are_made_one_at_a_time(split: Split) -> None:
    assert len(list(islice(split(10**12, 0), 3))) == 3


def test_splits_share_no_text_and_no_image() -> None:
    # Two seeds on one side: the hash of the text must part the splits whatever the seeds are.
    calibration = drawn(inputs.calibration, 300, 0) + drawn(inputs.calibration, 100, 1)
    holdout = drawn(inputs.holdout, 400, 0)
    assert {image for image, _ in calibration}.isdisjoint(image for image, _ in holdout)
    assert {t["text"] for _, t in calibration}.isdisjoint(t["text"] for _, t in holdout)


@both_splits
def test_shape_range_and_padding(split: Split) -> None:
    for x, target in split(40, 1):
        (name, array), *more = x.items()
        assert (name, more) == ("x", [])
        assert array.shape == (1, 3, 48, 240)
        assert array.dtype == np.float32
        assert np.abs(array).max() <= 1
        assert (array[:, 0] == array[:, 1]).all()
        assert (array[:, 0] == array[:, 2]).all()
        # No grey level maps to 0, so zero is padding: none inside the line, all to its right.
        width = np.count_nonzero(array[0, 0, 0])
        assert array[..., :width].all()
        assert not array[..., width:].any()
        assert 6 <= len(target["text"]) <= 16


@both_splits
def test_every_second_line_is_degraded(split: Split) -> None:
    assert [t["subset"] for _, t in split(5, 0)] == ["clean", "degraded"] * 2 + ["clean"]


@both_splits
def test_the_ink_stays_inside_the_line(split: Split) -> None:
    for x, _ in islice(split(200, 2), 0, None, 2):
        line = x["x"][0, 0, :, : np.count_nonzero(x["x"][0, 0, 0])]
        frame = np.concatenate([line[0], line[-1], line[:, 0], line[:, -1]])
        # The noise of a clean line is under 21 grey levels either way, its contrast over 94.
        assert np.ptp(frame) < 0.35 < np.ptp(line)


@both_splits
@pytest.mark.parametrize(("count", "seed"), [(-1, 0), (1, -1)])
def test_negative_arguments_are_refused_at_the_call(split: Split, count: int, seed: int) -> None:
    with pytest.raises(ValueError, match=f"must not be negative: count {count}, seed {seed}"):
        split(count, seed)


def steps(path: list[int], classes: int) -> dict[str, NDArray[np.float32]]:
    """Probabilities [1, T, classes] whose most probable classes are `path`."""
    probabilities = np.full((1, len(path), classes), 0.1, np.float32)
    probabilities[0, np.arange(len(path)), path] = 0.9
    return {"any name": probabilities}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([0, 0, 0], ""),
        ([1, 1, 2, 2, 2, 3], "abc"),
        ([1, 0, 1], "aa"),
        ([0, 1, 1, 0, 0, 1, 2, 0], "aab"),
        ([1, 4, 4, 2], "a b"),
        ([2, 1, 2], "bab"),
    ],
)
def test_decoding(path: list[int], text: str) -> None:
    score = metric.make_metric({"character": "a\nb\nc"})
    clean = score(steps(path, 5), {"text": text, "subset": "clean"})
    assert clean == {"line_accuracy": 1.0, "cer": (0.0, float(len(text)))}


def test_no_space_without_a_class_for_it() -> None:
    score = metric.make_metric({"character": "a\nb\nc\n"})
    target = {"text": "abc", "subset": "clean"}
    assert score(steps([1, 2, 3], 4), target)["line_accuracy"] == 1.0


def test_a_wrong_degraded_line_counts_in_all_three() -> None:
    score = metric.make_metric({"character": "a\nb\nc"})
    # "é" is in no alphabet: never read right, and no error either.
    result = score(steps([1, 2, 3], 5), {"text": "abé!", "subset": "degraded"})
    assert result == {"line_accuracy": 0.0, "line_accuracy_degraded": 0.0, "cer": (2.0, 4.0)}
    assert result.keys() == metric.METRICS.keys()


def test_metadata_without_characters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no key 'character' \(keys found: author, shape\)"):
        metric.make_metric({"shape": "", "author": ""})


@pytest.mark.parametrize("classes", [3, 6])
def test_class_count_that_does_not_match_is_refused(classes: int) -> None:
    score = metric.make_metric({"character": "a\nb\nc"})
    with pytest.raises(ValueError, match=f"{classes} classes, but its metadata lists 3 char"):
        score(steps([1], classes), {"text": "a", "subset": "clean"})


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"y": np.zeros((2, 3, 5))},
        {"y": np.zeros((3, 5))},
        {"y": np.zeros((1, 3, 5)), "z": np.zeros((1, 3, 5))},
    ],
)
def test_outputs_of_another_shape_are_refused(outputs: dict[str, NDArray[Any]]) -> None:
    score = metric.make_metric({"character": "a\nb\nc"})
    with pytest.raises(ValueError, match="expected one output of shape"):
        score(outputs, {"text": "a", "subset": "clean"})


def distance_by_definition(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(
        distance_by_definition(a[1:], b) + 1,
        distance_by_definition(a, b[1:]) + 1,
        distance_by_definition(a[1:], b[1:]) + (a[0] != b[0]),
    )


@settings(deadline=None)
@given(st.text("ab ", max_size=5), st.text("ab ", max_size=5))
def test_edit_distance_is_its_definition(a: str, b: str) -> None:
    assert metric.edit_distance(a, b) == distance_by_definition(a, b)


@settings(deadline=None)
@given(st.text("abcdé 1", max_size=16), st.text("abcdé 1", max_size=16))
def test_edit_distance_is_a_metric(a: str, b: str) -> None:
    distance = metric.edit_distance(a, b)
    assert distance == metric.edit_distance(b, a)
    assert abs(len(a) - len(b)) <= distance <= max(len(a), len(b))
    assert (distance == 0) == (a == b)


@pytest.fixture(scope="module")
def model() -> onnxruntime.InferenceSession:
    # Found without importing the package, which would load OpenCV for a file beside it.
    spec = importlib.util.find_spec("rapidocr")
    assert spec is not None, "pip install '.[example]'"
    assert spec.origin is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    path = Path(spec.origin).parent / "models" / "PP-OCRv6_rec_small.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_the_real_model_reads_the_clean_lines_and_most_degraded_ones(
    model: onnxruntime.InferenceSession,
) -> None:
    score = metric.make_metric(model.get_modelmeta().custom_metadata_map)
    names = [output.name for output in model.get_outputs()]
    clean, degraded, cer = [], [], []
    for x, target in inputs.holdout(120, 0):
        result = score(dict(zip(names, model.run(names, x), strict=True)), target)
        cer.append(result["cer"])
        if "line_accuracy_degraded" in result:
            degraded.append(result["line_accuracy_degraded"])
        else:
            clean.append(result["line_accuracy"])
    assert len(clean) == len(degraded) == 60
    assert np.mean(clean) >= 0.95
    assert 0.70 <= np.mean(degraded) <= 0.95
    edits, characters = np.sum(cer, axis=0)
    assert 0 < edits / characters < 0.1
