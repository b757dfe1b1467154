"""Where the labels of a scatter plot go, so that none covers another, a point or an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Align = Literal["left", "right", "center"]
Offset = tuple[Align, float, float]
Point = tuple[float, float]
Box = tuple[float, float, float, float]

_CHARACTER, _LINE = 7.4, 15.0
# Offsets in pixels, best first: beside the point between its intervals, then farther away.
_SIDES: tuple[tuple[Align, float], ...] = (("left", 9.0), ("right", -9.0))
_OFFSETS = tuple(
    (align, dx * far, dy * far)
    for far in (1.0, 1.8, 2.8)
    for dy in (-12.0, 12.0)
    for align, dx in _SIDES
)


@dataclass(frozen=True)
class Frame:
    """A panel: its axis ranges in data units and its size in pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    width: float
    height: float

    def data(self, left: float, top: float) -> Point:
        """Data units of a pixel."""
        return (
            self.x_low + left / self.width * (self.x_high - self.x_low),
            self.y_high - top / self.height * (self.y_high - self.y_low),
        )

    def pixel(self, x: float, y: float) -> Point:
        """Pixels from the upper left corner."""
        return (
            (x - self.x_low) / (self.x_high - self.x_low) * self.width,
            (self.y_high - y) / (self.y_high - self.y_low) * self.height,
        )


@dataclass(frozen=True)
class Spot:
    """A point with its intervals, data units."""

    text: str
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]


@dataclass(frozen=True)
class Label:
    """A text at a point in data units, shifted by ``dx`` and ``dy`` pixels.

    ``leader`` is where a line from the point to the text ends, in data units; None where the text
    is plainly the point's own.
    """

    text: str
    x: float
    y: float
    align: Align
    dx: float
    dy: float
    leader: tuple[float, float] | None


def place_labels(spots: Sequence[Spot], frame: Frame) -> list[Label]:
    """A label for each spot where it covers least; the same spots give the same labels."""
    taken = [box for spot in spots for box in _obstacles(spot, frame)]
    labels = []
    # From the right, where the edge leaves the least choice.
    for spot in sorted(spots, key=lambda s: (-s.x, s.y, s.text)):
        others = [frame.pixel(s.x, s.y) for s in spots if s is not spot]
        offsets = (*_OFFSETS, *_ends(spot, frame))
        offset = min(offsets, key=lambda o: _cost(spot, o, taken, others, frame))
        taken.append(_box(spot, offset, frame))
        labels.append(
            Label(spot.text, spot.x, spot.y, *offset, _leader(spot, offset, others, frame))
        )
    return labels


def _cost(
    spot: Spot, offset: Offset, taken: Iterable[Box], others: Iterable[Point], frame: Frame
) -> float:
    box = _box(spot, offset, frame)
    outside = sum(max(0.0, end) for end in (-box[0], box[2] - frame.width)) * _LINE
    outside += sum(max(0.0, end) for end in (-box[1], box[3] - frame.height)) * 60
    distance = 30.0 if offset[0] == "center" else abs(offset[1]) + abs(offset[2])
    covered = sum(_overlap(box, other) for other in taken)
    return 2 * outside + covered + distance + (25 if _ambiguous(spot, box, others, frame) else 0)


def _ends(spot: Spot, frame: Frame) -> tuple[Offset, Offset]:
    """Above and below the upright interval."""
    y = frame.pixel(spot.x, spot.y)[1]
    low, high = (frame.pixel(spot.x, end)[1] for end in spot.y_range)
    return ("center", 0.0, min(high - y, -7.0) - 10), ("center", 0.0, max(low - y, 7.0) + 10)


def _ambiguous(spot: Spot, box: Box, others: Iterable[Point], frame: Frame) -> bool:
    """Whether a reader could take the text for that of another point."""
    x, y = frame.pixel(spot.x, spot.y)
    if abs(box[0] + box[2] - 2 * x) < 1 and _length(spot, frame) > 30:
        return False  # at the end of its interval, which leads to the point
    own = _distance((x, y), box)
    return any(_distance(other, box) < own + 8 for other in others)


def _length(spot: Spot, frame: Frame) -> float:
    """Pixels from end to end of the upright interval."""
    low, high = (frame.pixel(spot.x, end)[1] for end in spot.y_range)
    return low - high


def _distance(point: Point, box: Box) -> float:
    dx = max(box[0] - point[0], 0.0, point[0] - box[2])
    dy = max(box[1] - point[1], 0.0, point[1] - box[3])
    return math.hypot(dx, dy)


def _leader(
    spot: Spot, offset: Offset, others: Iterable[Point], frame: Frame
) -> tuple[float, float] | None:
    if not _ambiguous(spot, _box(spot, offset, frame), others, frame):
        return None
    x, y = frame.pixel(spot.x, spot.y)
    _, dx, dy = offset
    # To the corner of the text, a hair short of its letters.
    return frame.data(x + dx * 0.8, y + dy - (7 if dy > 0 else -5))


def _box(spot: Spot, offset: Offset, frame: Frame) -> Box:
    align, dx, dy = offset
    x, y = frame.pixel(spot.x, spot.y)
    width = len(spot.text) * _CHARACTER
    left = x + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
    return left, y + dy - _LINE / 2, left + width, y + dy + _LINE / 2


def _obstacles(spot: Spot, frame: Frame) -> list[Box]:
    x, y = frame.pixel(spot.x, spot.y)
    left, bottom = frame.pixel(spot.x_range[0], spot.y_range[0])
    right, top = frame.pixel(spot.x_range[1], spot.y_range[1])
    return [
        (x - 6, y - 6, x + 6, y + 6),
        (left, y - 2, right, y + 2),
        (x - 2, top, x + 2, bottom),
    ]


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height + 20 if width > 0 and height > 0 else 0.0
