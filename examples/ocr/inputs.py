"""Rendered text lines with known text, for a CTC text recogniser of the PP-OCR family.

Every pixel is made here: the font is the one inside Pillow, the random bits are PCG64's raw
output, and the arithmetic on pixels is on integers, or on floats in a way that rounds alike
everywhere. So one Pillow version gives the same bytes on every machine, and a study can be rerun
without a data set.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

T = TypeVar("T")
Sample = tuple[dict[str, NDArray[np.float32]], dict[str, str]]

HEIGHT = 48
WIDTH = 240
# The box around the text; wide enough that no slant or tilt used here pushes ink out of it.
MARGIN = 9

CALIBRATION, HOLDOUT = 0, 1

# Grey level to model input, once for all levels.
_LEVELS = ((np.arange(256, dtype=np.float32) / 255 - 0.5) / 0.5).astype(np.float32)

_WORD_LIST = """
account adapter airport amber anchor answer apple april archive arrow august autumn avenue balance
banner barrel basket battery beacon bicycle binder blanket border bottle branch bridge bronze
bucket budget butter button cabin cable camera candle canvas carbon carpet castle ceiling cement
center chapter charge cherry circle client clock cloud coffee column copper corner cotton counter
cradle credit current curtain customs danger debit decimal delta deposit desert detail device
dinner discount doctor dollar donkey drawer eagle edition editor eleven energy engine entry error
event exhaust expert export fabric factor farmer feather filter finger flower folder forest format
fountain freight friday future garden gate ginger glass global gravel guitar hammer handle harbor
harvest hazard heater helmet hotel humidity hunter import income index insert invoice island jacket
january journal juice jungle kernel kettle keyboard kitchen ladder lantern leather lemon letter
level library lumber machine magnet manual maple marble margin market master meadow medium member
memory metal meter minute mirror model monday monitor morning motor museum napkin needle network
nickel nitrogen notice number object ocean october offer office olive onion orange orbit order
oxygen packet paddle page panel paper parcel parking pattern payment pebble pencil pepper permit
picture pillow planet plastic platform pocket pollen portal poster powder premium price printer
profit pump purple quality quarter quartz radio railway ramp receipt record refund region remote
rental report reserve ribbon river robot rocket rubber saddle safety salmon sample sandal saturn
scale school screen season sensor serial server shadow shelf shipment shoulder signal silver simple
socket solar sparrow spring square staple station steam stone storage street string studio subtotal
sugar summer sunday supply switch table target taxi teacher temple thermal thunder ticket timber
token total towel tractor traffic transit travel tunnel turbine valve vector velvet vendor voltage
voucher wagon wallet walnut warning water weather weight window winter wooden writer yellow zebra
"""
_WORDS = _WORD_LIST.split()
_SHORT_WORDS = [word for word in _WORDS if len(word) <= 8]
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Without I, O and Q: in a code no context tells them from 1 and 0, not even for a person.
_CODE_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"


class _Dice:
    """Whole numbers drawn from one stream of random bits.

    Only `SeedSequence` and the raw bits are used: NumPy promises to keep both, while the methods
    of `Generator` may change between releases.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def below(self, end: int) -> int:
        return int(self._bits.random_raw()) % end

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def octets(self, size: int) -> NDArray[np.uint8]:
        words = np.asarray(self._bits.random_raw(-(-size // 8)), dtype="<u8")
        return words.view(np.uint8)[:size]


@dataclass(frozen=True)
class _Look:
    """How one line is drawn: font size in pixels, grey levels, noise (standard deviation in grey
    levels), slant and tilt in 1/1024 pixel a pixel, blur radii in 1/8 pixel, and the factors by
    which width and height are reduced and stretched again."""

    size: int
    ink: int
    paper: int
    noise: int
    slant: int
    tilt: int = 0
    blur: int = 0
    shrink: tuple[int, int] = (1, 1)


def calibration(count: int, seed: int) -> Iterator[Sample]:
    """Lines to calibrate scales on; they share no text and no image with `holdout`.

    Yields `count` pairs, one at a time: the inputs, `x` float32 [1, 3, 48, 240] in [-1, 1] with
    zeros right of the line, and the target, `text` and `subset` ("clean" or "degraded", in turn).
    Pair i depends on the seed and i alone. Raises ValueError for a negative count or seed.
    """
    return _lines(CALIBRATION, count, seed)


def holdout(count: int, seed: int) -> Iterator[Sample]:
    """Lines to judge a model on; they share no text and no image with `calibration`.

    Yields and raises as `calibration` does.
    """
    return _lines(HOLDOUT, count, seed)


def _lines(split: int, count: int, seed: int) -> Iterator[Sample]:
    # Checked here and not in the generator, so that the caller hears of it at the call.
    if count < 0 or seed < 0:
        raise ValueError(f"count and seed must not be negative: count {count}, seed {seed}")
    return (_sample(split, seed, index) for index in range(count))


def _sample(split: int, seed: int, index: int) -> Sample:
    # A stream of its own for each line: no line depends on how many were drawn before it.
    dice = _Dice(seed, split, index)
    text = _text_of_split(dice, split)
    degraded = index % 2 == 1
    look = _degraded_look(dice) if degraded else _clean_look(dice)
    inputs = {"x": _to_input(_picture(dice, text, look))}
    return inputs, {"text": text, "subset": "degraded" if degraded else "clean"}


def _text_of_split(dice: _Dice, split: int) -> str:
    # The hash of a text puts it in exactly one split, whatever the seeds and counts. So no text is
    # in both, and no image either: the font draws no two characters used here alike, and the
    # noise of each line has its own stream, which the split is a part of.
    text = _text(dice)
    while hashlib.sha256(text.encode()).digest()[0] % 2 != split:
        text = _text(dice)
    return text


def _text(dice: _Dice) -> str:
    form = dice.choice((_words, _words, _words, _labelled, _number, _price, _date, _code))
    return form(dice)


def _word(dice: _Dice) -> str:
    word = dice.choice(_WORDS)
    return dice.choice((word, word, word.capitalize(), word.upper()))


def _words(dice: _Dice) -> str:
    while True:
        text = " ".join(_word(dice) for _ in range(dice.choice((1, 2, 2, 2))))
        if 6 <= len(text) <= 16:
            return text


def _labelled(dice: _Dice) -> str:
    word = dice.choice(_SHORT_WORDS).capitalize()
    return f"{word} {dice.between(10, 9999)}"


def _number(dice: _Dice) -> str:
    return dice.choice(
        (
            f"{dice.between(1000, 9999999):,}.{dice.below(100):02d}",
            f"{dice.between(100000, 99999999)}",
            f"{dice.between(100, 999)}.{dice.below(10000):04d}",
            f"+{dice.between(1, 99)}-{dice.between(100, 999)}-{dice.between(1000, 9999)}",
        )
    )


def _price(dice: _Dice) -> str:
    amount = f"{dice.between(1, 9999):,}.{dice.below(100):02d}"
    return dice.choice((f"${amount}", f"{amount} USD", f"{amount} EUR", f"Total: {amount}"))


def _date(dice: _Dice) -> str:
    year, month, day = dice.between(1950, 2049), dice.between(1, 12), dice.between(1, 28)
    return dice.choice(
        (
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}/{month:02d}/{year}",
            f"{day} {_MONTHS[month - 1]} {year}",
            f"{dice.below(24):02d}:{dice.below(60):02d}:{dice.below(60):02d}",
        )
    )


def _code(dice: _Dice) -> str:
    def letters(size: int) -> str:
        return "".join(dice.choice(_CODE_LETTERS) for _ in range(size))

    return dice.choice(
        (
            f"{letters(2)}-{dice.between(1000, 9999)}-{letters(2)}",
            f"{letters(3)}/{dice.between(100, 999)}-{dice.between(10, 99)}",
            f"#{dice.between(10000, 99999)}/{letters(1)}{dice.below(10)}",
            f"{letters(1)}{dice.between(10, 99)}{letters(2)}{dice.between(100, 999)}",
        )
    )


def _clean_look(dice: _Dice) -> _Look:
    dark, light = dice.between(0, 80), dice.between(175, 255)
    ink, paper = dice.choice(((dark, light), (dark, light), (dark, light), (light, dark)))
    return _Look(
        size=dice.between(22, 34),
        ink=ink,
        paper=paper,
        noise=dice.between(1, 6),
        slant=dice.between(-200, 200),
        tilt=dice.between(-8, 8),
    )


def _degraded_look(dice: _Dice) -> _Look:
    look = _clean_look(dice)
    harms = [_blur, _noise, _low_contrast, _tilt, _downscale]
    for _ in range(dice.between(2, 3)):
        look = harms.pop(dice.below(len(harms)))(dice, look)
    return look


def _blur(dice: _Dice, look: _Look) -> _Look:
    return replace(look, blur=dice.between(6, 12))


def _noise(dice: _Dice, look: _Look) -> _Look:
    return replace(look, noise=dice.between(8, 20))


def _low_contrast(dice: _Dice, look: _Look) -> _Look:
    step = dice.between(40, 76) * (1 if look.ink > look.paper else -1)
    middle = dice.between(60, 195)
    return replace(look, ink=middle + step // 2, paper=middle - step // 2)


def _tilt(dice: _Dice, look: _Look) -> _Look:
    return replace(look, tilt=dice.between(25, 60) * dice.choice((-1, 1)))


def _downscale(dice: _Dice, look: _Look) -> _Look:
    return replace(look, shrink=dice.choice(((2, 2), (2, 2), (2, 4), (4, 2))))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    # Without FreeType, Pillow has a bitmap font of one size only; it raises before it gets here.
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _picture(dice: _Dice, text: str, look: _Look) -> NDArray[np.uint8]:
    """Grey levels [48, w] of one line, w at most WIDTH."""
    coverage = np.asarray(_coverage(dice, text, look)).astype(np.int32)
    contrast = look.ink - look.paper
    grey = look.paper + (contrast * coverage + 127) // 255
    noisy: NDArray[np.int32] = grey + _grain(dice, grey.shape, look.noise)
    return noisy.clip(0, 255).astype(np.uint8)


def _coverage(dice: _Dice, text: str, look: _Look) -> Image.Image:
    """How much of each pixel is ink, 0 to 255, after everything that moves or smears the ink."""
    font, (left, top, right, bottom) = _fitting(text, look.size)
    width = right - left + 2 * MARGIN
    origin = (MARGIN - left, (HEIGHT - bottom - top) // 2 + dice.between(-2, 2))
    image = Image.new("L", (width, HEIGHT))
    ImageDraw.Draw(image).text(origin, text, fill=255, font=font)
    image = image.transform(
        image.size, Image.Transform.AFFINE, _shear(look, width), Image.Resampling.BILINEAR
    )
    return _smear(image, look)


def _fitting(text: str, size: int) -> tuple[ImageFont.FreeTypeFont, tuple[int, int, int, int]]:
    """The font of at most this size in which the text fits, and the box of its ink in pixels."""
    left, top, right, bottom = _font(size).getbbox(text)
    if right - left + 2 * MARGIN > WIDTH:
        return _fitting(text, size - 1)
    return _font(size), (round(left), round(top), round(right), round(bottom))


def _shear(look: _Look, width: int) -> tuple[float, float, float, float, float, float]:
    # Slant moves rows, tilt moves columns, both about the middle. All are multiples of 1/1024, so
    # the products are exact in a double and a fused multiply-add gives the same pixels.
    slant, tilt = look.slant / 1024, look.tilt / 1024
    return (1.0, slant, -slant * HEIGHT / 2, tilt, 1.0, -tilt * width / 2)


def _smear(image: Image.Image, look: _Look) -> Image.Image:
    if look.shrink != (1, 1):
        across, down = look.shrink
        size = image.size
        # The factors are powers of two: see _shear.
        image = image.reduce(look.shrink).transform(
            size, Image.Transform.AFFINE, (1 / across, 0, 0, 0, 1 / down, 0),
            Image.Resampling.BILINEAR,
        )  # fmt: skip
    if look.blur:
        # Twice a box is near a Gaussian, and unlike Pillow's Gaussian needs no square root.
        box = ImageFilter.BoxBlur(look.blur / 8)
        image = image.filter(box).filter(box)
    return image


def _grain(dice: _Dice, shape: tuple[int, ...], deviation: int) -> NDArray[np.int32]:
    # The sum of four bytes is near enough to a normal variable of mean 510 and deviation 147.8,
    # and takes no logarithm whose last bit is the machine's.
    size = int(np.prod(shape))
    total = dice.octets(4 * size).reshape(4, size).sum(axis=0, dtype=np.int32)
    grain: NDArray[np.int32] = (total - 510) * deviation // 148
    return grain.reshape(shape)


def _to_input(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    x = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    x[..., : grey.shape[1]] = _LEVELS[grey]
    return x
