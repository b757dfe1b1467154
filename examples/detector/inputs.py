"""Drawn pages with known text boxes, for a text detector of the PP-OCR family.

The texts are those of the OCR example's lines, which its two splits share none of; they are set
here in the font inside Pillow, in rows of one or two columns among rules, frames and dots that are
no text. As there, randomness is PCG64's raw bits and the arithmetic on pixels is on integers, so
that one Pillow version gives the same bytes on every machine.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

#: Height and width, multiples of 32 as the network needs them.
PAGE = (320, 480)
#: Between the page's edge and anything on it.
EDGE = 12
#: Between two columns; wide enough that no reader would take them for one line.
GUTTER = 48
#: The most texts that one page can need: rows are at least 30 pixels apart.
TEXTS_A_PAGE = 2 * (PAGE[0] // 30)

CALIBRATION, HOLDOUT = 0, 1

Box = tuple[int, int, int, int]
Sample = tuple[dict[str, NDArray[np.float32]], dict[str, Any]]

# Grey level to model input, once for all levels.
_LEVELS = ((np.arange(256, dtype=np.float32) / 255 - 0.5) / 0.5).astype(np.float32)


class _Dice:
    """Whole numbers out of raw random bits, which NumPy promises to keep."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, first: int, last: int) -> int:
        return first + int(self._bits.random_raw()) % (last - first + 1)

    def octets(self, size: int) -> NDArray[np.uint8]:
        words = np.asarray(self._bits.random_raw(-(-size // 8)), dtype="<u8")
        return words.view(np.uint8)[:size]


@dataclass
class _Page:
    """Grey levels [320, 480] in the making, and the boxes of the lines on it."""

    image: Image.Image
    boxes: list[Box]


def calibration(count: int, seed: int) -> Iterator[Sample]:
    """Pages to calibrate scales on; they share no text with `holdout`.

    Yields `count` pairs, one at a time: the inputs, `x` float32 [1, 3, 320, 480] in [-1, 1], and
    the target: `boxes`, (top, left, bottom, right) of each line in pixels, and `subset` ("clean" or
    "degraded", in turn). Pair i depends on the seed and i alone. Raises
    ValueError for a negative count or seed.
    """
    return _pages(CALIBRATION, count, seed)


def holdout(count: int, seed: int) -> Iterator[Sample]:
    """Pages to judge a model on; they share no text with `calibration`.

    Yields and raises as `calibration` does.
    """
    return _pages(HOLDOUT, count, seed)


def _pages(split: int, count: int, seed: int) -> Iterator[Sample]:
    lines = _line_example()
    texts = (lines.calibration, lines.holdout)[split](count * TEXTS_A_PAGE, seed)

    def drawn() -> Iterator[Sample]:
        for index in range(count):
            own = [next(texts)[1]["text"] for _ in range(TEXTS_A_PAGE)]
            yield _sample(_Dice(seed, split, index), own, degraded=index % 2 == 1)

    return drawn()


@cache
def _line_example() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "ocr" / "inputs.py"
    spec = importlib.util.spec_from_file_location("detector_text_lines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up there while the file runs.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _sample(dice: _Dice, texts: list[str], *, degraded: bool) -> Sample:
    page = _set(dice, texts, degraded)
    grey = np.asarray(_worn(dice, page.image) if degraded else page.image).astype(np.int32)
    noise = dice.between(4, 10) if degraded else dice.between(1, 6)
    levels = (grey + _grain(dice, noise)).clip(0, 255)
    x = np.broadcast_to(_LEVELS[levels], (1, 3, *PAGE))
    target = {
        "boxes": [list(box) for box in page.boxes],
        "subset": "degraded" if degraded else "clean",
    }
    return {"x": np.ascontiguousarray(x)}, target


def _set(dice: _Dice, texts: list[str], degraded: bool) -> _Page:
    """A page of rows, each a line, two lines side by side, or something that is no text."""
    dark = dice.between(0, 3) == 0
    paper = dice.between(0, 80) if dark else dice.between(175, 255)
    page = _Page(Image.new("L", (PAGE[1], PAGE[0]), paper), [])
    left_over = list(texts)
    top = EDGE + dice.between(0, 10)
    while True:
        size = dice.between(12, 26)
        if top + size + 8 > PAGE[0] - EDGE:
            return page
        step = _contrast(dice, degraded) * (1 if dark else -1)
        ink = min(255, max(0, paper + step))
        if dice.between(0, 5) == 0:
            _no_text(dice, page.image, top, size, ink)
        else:
            _row(dice, page, left_over, top, size, ink)
        top += size + dice.between(19, 34)


def _contrast(dice: _Dice, degraded: bool) -> int:
    return dice.between(55, 105) if degraded else dice.between(95, 175)


def _row(dice: _Dice, page: _Page, texts: list[str], top: int, size: int, ink: int) -> None:
    left = EDGE + dice.between(0, 60)
    for _ in range(dice.between(1, 2)):
        text = texts.pop()
        width = round(_font(size).getlength(text))
        if left + width > PAGE[1] - EDGE:
            return
        page.boxes.append(_line(page.image, (left, top), text, size, ink))
        left += width + GUTTER + dice.between(0, 40)


def _line(image: Image.Image, place: tuple[int, int], text: str, size: int, ink: int) -> Box:
    """Draw a line with its upper left corner near `place`; the box around it."""
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).text(place, text, fill=255, font=_font(size), anchor="la")
    image.paste(ink, mask=mask)
    box = mask.getbbox()
    assert box is not None
    left, top, right, bottom = box
    # People who mark text, and so the detector that learnt from them, leave a margin around it.
    margin = 2 + (bottom - top) // 8
    return top - margin, left - margin, bottom + margin, right + margin


def _no_text(dice: _Dice, image: Image.Image, top: int, size: int, ink: int) -> None:
    draw = ImageDraw.Draw(image)
    left, right = EDGE + dice.between(0, 120), PAGE[1] - EDGE - dice.between(0, 120)
    form = dice.between(0, 2)
    if form == 0:
        draw.line((left, top + size // 2, right, top + size // 2), ink, dice.between(1, 3))
    elif form == 1:
        draw.rectangle((left, top, right, top + size), outline=ink, width=dice.between(1, 3))
    else:
        for x in range(left, right - size, 2 * size + dice.between(4, 30)):
            draw.ellipse((x, top, x + size, top + size), fill=ink)


def _worn(dice: _Dice, image: Image.Image) -> Image.Image:
    """The page as a poor camera sees it: out of focus, and every other one at half the pixels."""
    if dice.between(0, 1):
        # The factor is a power of two, so that the products are exact in a double.
        image = image.reduce(2).transform(
            image.size, Image.Transform.AFFINE, (0.5, 0, 0, 0, 0.5, 0), Image.Resampling.BILINEAR
        )
    # Twice a box is near a Gaussian, and unlike Pillow's Gaussian needs no square root.
    box = ImageFilter.BoxBlur(dice.between(2, 7) / 8)
    return image.filter(box).filter(box)


def _grain(dice: _Dice, deviation: int) -> NDArray[np.int32]:
    # The sum of four bytes is near enough to a normal variable of mean 510 and deviation 147.8.
    size = PAGE[0] * PAGE[1]
    total = dice.octets(4 * size).reshape(4, size).sum(axis=0, dtype=np.int32)
    grain: NDArray[np.int32] = (total - 510) * deviation // 148
    return grain.reshape(PAGE)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    # Without FreeType, Pillow has a bitmap font of one size only; it raises before it gets here.
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
