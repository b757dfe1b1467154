"""The pictures of a record, drawn once for every file that shows them."""

from __future__ import annotations

from dataclasses import dataclass

from bitworth.record.plot import speed_loss_svg
from bitworth.record.plot_split import time_split_svg
from bitworth.record.schema import Record
from bitworth.record.sections import pictured


@dataclass(frozen=True)
class Pictures:
    """SVG of speed against loss, and of where the time goes; None where no two plans compare."""

    speed_loss: str
    time_split: str | None


def draw(record: Record) -> Pictures:
    """The pictures of a record; the same record gives the same bytes."""
    return Pictures(speed_loss_svg(record), time_split_svg(record) if pictured(record) else None)
