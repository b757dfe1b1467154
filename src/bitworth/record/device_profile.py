"""How fast a device multiplies and copies, as measured through one engine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from bitworth.errors import UserError
from bitworth.record.part import Part

VERSION: Literal[1] = 1


class ProductTime(Part):
    """One matrix product (m by k) times (k by n), in one format, as a GEMM or a convolution."""

    kind: Literal["gemm", "conv"]
    format: str
    m: int
    n: int
    k: int
    time_ns: float

    @property
    def rate(self) -> float:
        """Operations in a ns."""
        return 2 * self.m * self.n * self.k / self.time_ns


class CopyTime(Part):
    """One copy of so many bytes from memory to memory: twice as many are moved."""

    bytes: int
    time_ns: float


class DeviceProfile(Part):
    """Measured rates of one device."""

    version: Literal[1] = VERSION
    engine: str
    engine_version: str
    device: str
    threads: int
    details: dict[str, str]
    created: str = Field(description="UTC, ISO 8601")
    products: tuple[ProductTime, ...]
    copies: tuple[CopyTime, ...]

    def peak(self, format_: str | None = None) -> float | None:
        """The highest rate of any product in ``format_``, operations in a ns; None: none ran.

        Without a format that of any product at all.
        """
        return max((p.rate for p in self.products if format_ in (None, p.format)), default=None)

    def bandwidth(self) -> float | None:
        """The most bytes moved in a ns by any copy, caches included; None: none was measured."""
        return max((2 * c.bytes / c.time_ns for c in self.copies), default=None)

    def memory_bandwidth(self) -> float | None:
        """Bytes moved in a ns by the largest copy, which no cache holds; None: there is none."""
        largest = max(self.copies, key=lambda c: c.bytes, default=None)
        return None if largest is None else 2 * largest.bytes / largest.time_ns

    def time_ns(self, kind: str, format_: str, m: int, n: int, k: int) -> float | None:
        """Time of a product in ``format_``: measured at this shape, or at the rate of the nearest.

        The nearest of its kind in the logarithms of m, n and k.
        """
        found = [p for p in self.products if (p.kind, p.format) == (kind, format_)]
        if not found:
            return None
        best = min(found, key=lambda p: _distance((p.m, p.n, p.k), (m, n, k)))
        return 2 * m * n * k / best.rate


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    return sum((math.log(a) - math.log(b)) ** 2 for a, b in zip(one, other, strict=True))


def read_device_profile(path: Path) -> DeviceProfile:
    """The device profile in ``path``.

    Raises:
        UserError: it cannot be read, is of another version, or is no device profile.
    """
    try:
        tree = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise UserError(f"{path}: is no JSON; give what 'bitworth roofline' wrote") from None
    version = tree.get("version") if isinstance(tree, dict) else None
    if version != VERSION:
        raise UserError(
            f"{path}: is of version {version}, this Bitworth reads {VERSION}; measure the device "
            "again with 'bitworth roofline'"
        )
    try:
        return DeviceProfile.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UserError(f"{path}: {where}: {first['msg']}") from None
