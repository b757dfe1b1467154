"""The examples' metrics on outputs that are made up: right ones, and ones that are wrong."""

from __future__ import annotations

import importlib.util
import math
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bitworth.study.config import read_study_file

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, name: str) -> ModuleType:
    path = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their class up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["ocr", "detector", "efficientnet", "minilm", "decoder"])
def test_a_study_file_is_valid_and_its_limits_name_metrics(example: str) -> None:
    config = read_study_file(EXAMPLES / example / "study.toml")
    assert {c.engine for c in config.cell} == {"onnxruntime", "openvino"}
    declared = load(example, "metric").METRICS
    assert set(config.policy.max_loss) <= set(declared)
    assert config.policy.max_loss


def test_pages_are_those_of_their_split_and_seed() -> None:
    inputs = load("detector", "inputs")
    for split in (inputs.calibration, inputs.holdout):
        first, again = (list(islice(split(4, 0), 4)) for _ in range(2))
        for (a, _), (b, _) in zip(first, again, strict=True):
            ((name, x),) = a.items()
            np.testing.assert_array_equal(x, b[name])
            assert (x.dtype, x.shape) == (np.float32, (1, 3, *inputs.PAGE))
    seen = [x.tobytes() for a, _ in inputs.calibration(4, 0) for x in a.values()]
    held = [x.tobytes() for a, _ in inputs.holdout(4, 0) for x in a.values()]
    assert not set(seen) & set(held)


def test_a_detector_that_shows_the_drawn_boxes_misses_none() -> None:
    inputs, metric = load("detector", "inputs"), load("detector", "metric")
    score = metric.make_metric({})
    for _, target in inputs.holdout(4, 0):
        # The network learns boxes shrunk by what the metric grows them by.
        found = np.zeros((1, 1, *inputs.PAGE), np.float32)
        for top, left, bottom, right in target["boxes"]:
            high, wide = bottom - top, right - left
            by = 0.35 * min(high, wide)
            rows = slice(int(top + by), int(bottom - by))
            found[0, 0, rows, int(left + by) : int(right - by)] = 1.0
        right_ = score({"map": found}, target)
        assert right_["missed_lines"] == (0.0, float(len(target["boxes"])))
        assert right_["false_boxes"][0] == 0.0
        blind = score({"map": np.zeros_like(found)}, target)
        assert blind["missed_lines"][0] == len(target["boxes"])
        assert ("missed_lines_degraded" in blind) == (target["subset"] == "degraded")


def test_a_classifier_agrees_with_itself_and_not_with_another() -> None:
    score = load("efficientnet", "metric").make_metric({})
    logits = np.random.default_rng(0).standard_normal((1, 50)).astype(np.float32)
    best = np.argsort(-logits[0])[:5].tolist()
    same = score({"logits": logits}, {"fp32_top5": best, "subset": "degraded"})
    assert same == {"top1_as_fp32": 1.0, "top5_as_fp32": 1.0, "top1_as_fp32_degraded": 1.0}
    other = score({"logits": -logits}, {"fp32_top5": best, "subset": "clean"})
    assert other == {"top1_as_fp32": 0.0, "top5_as_fp32": 0.0}
    with pytest.raises(ValueError, match="classes"):
        score({"logits": logits[0]}, {"fp32_top5": best, "subset": "clean"})


def test_neighbours_change_where_embeddings_move() -> None:
    metric = load("minilm", "metric")
    rng = np.random.default_rng(0)
    group = rng.standard_normal((8, 16))
    group /= np.linalg.norm(group, axis=1, keepdims=True)
    target = {"fp32_nearest": metric.nearest(group).tolist(), "subset": "clean"}
    score = metric.make_metric({})
    assert score({"e": group}, target) == {"nearest_as_fp32": (8.0, 8.0)}
    shuffled = score({"e": rng.permuted(group, axis=1)}, target)["nearest_as_fp32"]
    assert shuffled[0] < 8.0


def test_perplexity_is_that_of_the_probabilities() -> None:
    score = load("decoder", "metric").make_metric({})
    target = [3, 7, 7, 1]
    even = score({"logits": np.zeros((1, 4, 256), np.float32)}, target)
    assert even["perplexity"] == (pytest.approx(4 * math.log(256)), 4.0)
    sure = np.zeros((1, 4, 256), np.float32)
    sure[0, range(4), target] = 50.0
    assert score({"logits": sure}, target)["perplexity"][0] == pytest.approx(0.0, abs=1e-6)
    assert score({"logits": sure}, target)["next_byte"] == (4.0, 4.0)
    # A constant added to all logits changes no probability, however large.
    assert score({"logits": sure + 1e4}, target)["perplexity"][0] == pytest.approx(0, abs=1e-6)


def test_the_decoders_texts_are_apart() -> None:
    inputs = load("decoder", "inputs")
    train = (EXAMPLES / "decoder" / "text" / "train.txt").read_text()
    for feed, target in inputs.holdout(8, 0):
        assert feed["ids"].shape == (1, inputs.LENGTH)
        assert bytes(feed["ids"][0, 1:].astype(np.uint8)) == bytes(target[:-1])
        assert bytes(target).decode(errors="ignore") not in train
    with pytest.raises(ValueError, match="passages"):
        next(inputs.holdout(10_000, 0))
