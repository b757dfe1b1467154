"""Conditions under which a study should be looked at again, as a program checks them.

``NAME.version > 1.32.0``, ``NAME.format.fp8_e4m3 == native`` and ``cpu.isa has avx512_vnni``, where
NAME is an engine; what a machine does not know leaves a condition open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_CONDITION = re.compile(r"^\s*(\S+)\s+(>=|<=|==|>|<|has)\s+(.+?)\s*$")
Met = Literal["met", "not met", "unknown"]


@dataclass(frozen=True)
class Checked:
    """A condition on this machine: whether it is met, and by what."""

    condition: str
    met: Met
    why: str


def condition_name(support: str) -> str:
    """A format as a condition names it: without spaces."""
    return support.replace(" ", "_")


def check_condition(condition: str, known: Mapping[str, str]) -> Checked:
    """Whether ``condition`` is met.

    Args:
        condition: as a record has it.
        known: what is known of this machine, by the condition's names, such as
            ``onnxruntime.version``; a value of ``cpu.isa`` holds names apart by spaces.
    """
    found = _CONDITION.match(condition)
    if found is None:
        return Checked(condition, "unknown", "it is not written as NAME OPERATOR VALUE")
    name, operator, wanted = found.groups()
    if name not in known:
        return Checked(condition, "unknown", f"{name} is not known here")
    have = known[name]
    if operator == "has":
        return Checked(condition, _told(wanted in have.split()), f"{name} is {have or 'empty'}")
    if operator == "==" and not name.endswith(".version"):
        return Checked(condition, _told(have == wanted), f"{name} is {have}")
    read = _version if name.endswith(".version") else _value
    one, other = read(have), read(wanted)
    if one is None or other is None:
        return Checked(condition, "unknown", f"{name} is {have}, which has no order")
    length = max(len(one), len(other))
    a, b = (p + (0,) * (length - len(p)) for p in (one, other))
    met = {">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b, "==": a == b}[operator]
    return Checked(condition, _told(met), f"{name} is {have}")


def _told(met: bool) -> Met:
    return "met" if met else "not met"


def _version(text: str) -> tuple[float, ...] | None:
    """The numbers of a version; None where it has none."""
    found = re.match(r"^\d+(?:\.\d+)*", text)
    return tuple(float(p) for p in found[0].split(".")) if found else None


def _value(text: str) -> tuple[float, ...] | None:
    """A number; None where it is none."""
    try:
        return (float(text),)
    except ValueError:
        return None
