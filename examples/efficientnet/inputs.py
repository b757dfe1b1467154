"""Crops of photographs, for EfficientNet-Lite0.

The photographs are those inside scikit-image and scikit-learn: nothing is fetched. One that is
calibrated on is never judged on. What is in them no list says, so the target of a held-out crop is
what the fp32 model itself makes of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

MODEL = Path(__file__).parent / "efficientnet_lite0.onnx"
SIZE = 224

#: By split, package and file in it.
PHOTOGRAPHS = {
    "calibration": (
        ("skimage", "data/chelsea.png"),
        ("skimage", "data/motorcycle_left.png"),
        ("sklearn", "datasets/images/china.jpg"),
        ("skimage", "data/rocket.jpg"),
        ("skimage", "data/coins.png"),
        ("skimage", "data/brick.png"),
        ("skimage", "data/hubble_deep_field.jpg"),
        ("skimage", "data/retina.jpg"),
    ),
    "holdout": (
        ("skimage", "data/astronaut.png"),
        ("skimage", "data/coffee.png"),
        ("sklearn", "datasets/images/flower.jpg"),
        ("skimage", "data/camera.png"),
        ("skimage", "data/clock_motion.png"),
        ("skimage", "data/gravel.png"),
        ("skimage", "data/moon.png"),
        ("skimage", "data/ihc.png"),
    ),
}

Inputs = dict[str, NDArray[np.float32]]
Target = dict[str, Any]


class _Dice:
    """Whole numbers out of raw random bits, which NumPy promises to keep."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, first: int, last: int) -> int:
        return first + int(self._bits.random_raw()) % (last - first + 1)

    def octets(self, size: int) -> NDArray[np.uint8]:
        words = np.asarray(self._bits.random_raw(-(-size // 8)), dtype="<u8")
        return words.view(np.uint8)[:size]


def calibration(count: int, seed: int) -> Iterator[tuple[Inputs, Target]]:
    """Crops to calibrate scales on, of photographs that `holdout` has none of.

    Yields `count` pairs, one at a time: the inputs, `image` float32 [1, 3, 224, 224], which are
    (grey level - 127) / 128, and the target, `subset` ("clean" or "degraded", in turn). Crop i
    depends on the seed and i alone. Raises ValueError for a negative count or seed.
    """
    _check(count, seed)
    return (_crop("calibration", seed, index) for index in range(count))


def holdout(count: int, seed: int) -> Iterator[tuple[Inputs, Target]]:
    """Crops to judge a model on, of photographs that `calibration` has none of.

    Yields and raises as `calibration` does; the target has `fp32_top5` as well, the fp32 model's
    five best classes, the best first.
    """
    _check(count, seed)
    return (_answered(*_crop("holdout", seed, index)) for index in range(count))


def _check(count: int, seed: int) -> None:
    if count < 0 or seed < 0:
        raise ValueError(f"count and seed must not be negative: count {count}, seed {seed}")


def _answered(inputs: Inputs, target: Target) -> tuple[Inputs, Target]:
    (logits,) = _reference().run(None, inputs)
    return inputs, {**target, "fp32_top5": np.argsort(-logits[0], kind="stable")[:5].tolist()}


@cache
def _reference() -> onnxruntime.InferenceSession:
    """The model as it was given, with no optimization: what studies call the reference."""
    if not MODEL.is_file():
        raise FileNotFoundError(f"{MODEL} is not there; write it with make_model.py beside it")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])


def _crop(split: str, seed: int, index: int) -> tuple[Inputs, Target]:
    named = PHOTOGRAPHS[split]
    dice = _Dice(seed, list(PHOTOGRAPHS).index(split), index)
    photograph = _photograph(*named[index // 2 % len(named)])
    degraded = index % 2 == 1
    image = _cut(dice, photograph)
    if degraded:
        image = _worn(dice, image)
    levels = np.asarray(image).astype(np.int32)
    if degraded:
        levels = levels + _grain(dice, levels.shape)
    scaled = (levels.clip(0, 255).astype(np.float32) - 127) / 128
    return (
        {"image": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])},
        {"subset": "degraded" if degraded else "clean"},
    )


@cache
def _photograph(package: str, name: str) -> Image.Image:
    # Found without importing the package, which takes seconds for a file beside it.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed; pip install 'bitworth[example]'")
    with Image.open(Path(spec.origin).parent / name) as image:
        return image.convert("RGB")


def _cut(dice: _Dice, photograph: Image.Image) -> Image.Image:
    """A square of 2/5 to all of the shorter side, every other one mirrored."""
    short = min(photograph.size)
    side = dice.between(short * 2 // 5, short)
    left = dice.between(0, photograph.width - side)
    top = dice.between(0, photograph.height - side)
    box = (left, top, left + side, top + side)
    image = photograph.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if dice.between(0, 1) else image


def _worn(dice: _Dice, image: Image.Image) -> Image.Image:
    """The crop as a poor camera keeps it: few pixels, dark or pale, much compressed."""
    small = SIZE // dice.between(2, 4)
    image = image.resize((small, small), Image.Resampling.BOX)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    low = dice.between(0, 80)
    high = low + dice.between(90, 170)
    image = image.point([low + (high - low) * level // 255 for level in range(256)] * 3)
    kept = BytesIO()
    image.save(kept, "JPEG", quality=dice.between(10, 40))
    return Image.open(kept)


def _grain(dice: _Dice, shape: tuple[int, ...]) -> NDArray[np.int32]:
    # The sum of four bytes is near enough to a normal variable of mean 510 and deviation 147.8.
    size, deviation = int(np.prod(shape)), dice.between(2, 12)
    total = dice.octets(4 * size).reshape(4, size).sum(axis=0, dtype=np.int32)
    grain: NDArray[np.int32] = (total - 510) * deviation // 148
    return grain.reshape(shape)
