"""Whose value an address is: which cell of the study, and which variant."""

from __future__ import annotations

import re

from bitworth.record.address import resolve
from bitworth.record.schema import Record

#: Places that are of one variant, with where its name stands below them.
_PLACES = (
    (re.compile(r"^/derived/cells/(\d+)/(variants|splits|conversions|outlooks|reasons|cycles|"
                r"latency)/\d+(?=/|$)"), "variant"),
    (re.compile(r"^/facts/cells/(\d+)/variants/\d+(?=/|$)"), "name"),
    (re.compile(r"^/derived/cells/(\d+)/verdicts/\d+/comparisons/\d+(?=/|$)"), "variant"),
    (re.compile(r"^/derived/cells/(\d+)/free_wins/\d+(?=/|$)"), "name"),
    (re.compile(r"^/facts/cells/(\d+)/free_win_search/tries/\d+(?=/|$)"), "name"),
)  # fmt: skip
_CELL = re.compile(r"^/(?:facts|derived)/cells/(\d+)(?=/|$)")


def owner(record: Record, address: str) -> tuple[int, str] | None:
    """Index of the cell and name of the variant that a value is of; None: of no single one."""
    for pattern, key in _PLACES:
        if found := pattern.match(address):
            try:
                name = resolve(record, f"{found[0]}/{key}")
            except LookupError:
                return None
            return int(found[1]), str(name)
    return None


def names_owner(address: str) -> bool:
    """Whether a value is the name itself of the variant that it is of."""
    return any(
        (found := pattern.match(address)) and address == f"{found[0]}/{key}"
        for pattern, key in _PLACES
    )


def cell_of(address: str) -> int | None:
    """Index of the cell that a value is of; None: of none."""
    found = _CELL.match(address)
    return int(found[1]) if found else None
