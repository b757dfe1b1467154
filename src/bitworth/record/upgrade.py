"""Older records in today's schema; facts are kept as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bitworth.verdict import sig6

Tree = dict[str, Any]


def upgrade(tree: Tree) -> Tree:
    """A record of any earlier schema version as one of today's; others are returned unchanged."""
    while (step := _STEPS.get(tree.get("schema_version"))) is not None:
        tree = step(tree)
    return tree


def _from_1(tree: Tree) -> Tree:
    """Version 2 says with which constants the verdicts were derived: those of the facts.

    A comparison says which error rate its interval has, and by how much it was widened: a cell's
    rate was shared evenly, and nothing was widened.
    """
    facts, timing = tree["facts"], tree["facts"]["timing"]
    cells = []
    for cell, old in zip(facts["cells"], tree["derived"]["cells"], strict=True):
        total = sum(len(job["labels"]) - 2 for job in cell["jobs"])
        more = {"alpha": sig6(timing["alpha"] / max(1, total)), "widened_ratio": 0.0}
        verdicts = [
            {**verdict, "comparisons": [{**c, **more} for c in verdict["comparisons"]]}
            for verdict in old["verdicts"]
        ]
        variants = [
            {**v, **{name: {**v[name], **more} for name in _COMPARISONS if v[name] is not None}}
            for v in old["variants"]
        ]
        cells.append({**old, "verdicts": verdicts, "variants": variants})
    derived = {**tree["derived"], "timing": timing, "cells": cells}
    return {**tree, "schema_version": 2, "derived": derived}


def _from_2(tree: Tree) -> Tree:
    """Version 3 can say more about recipes; what an older record leaves out was not used."""
    return {**tree, "schema_version": 3}


def _from_3(tree: Tree) -> Tree:
    """Version 4 keeps the profile of every variant; an older record has the baseline's alone."""
    cells = []
    for cell in tree["facts"]["cells"]:
        layers = cell["profile"]
        profile = {"plan_sha256": None, "calls": None, "plain_ns": None, "layers": layers}
        variants = [
            {**v, "profile": profile} if i == 0 and layers else v
            for i, v in enumerate(cell["variants"])
        ]
        cells.append({**{k: v for k, v in cell.items() if k != "profile"}, "variants": variants})
    facts = {**tree["facts"], "cells": cells}
    return {**tree, "schema_version": 4, "facts": facts}


def _from_4(tree: Tree) -> Tree:
    """Version 5 has changes to the baseline and their timing; an older record tried none."""
    return {**tree, "schema_version": 5}


def _from_5(tree: Tree) -> Tree:
    """Version 6 has the hash of its facts, which ``store`` adds: an older record never had one."""
    return {**tree, "schema_version": 6}


def _from_6(tree: Tree) -> Tree:
    """Version 7 says what kind of subject was studied: an older record has ONNX models alone."""
    return {**tree, "schema_version": 7}


_COMPARISONS = ("comparison", "against_best")
_STEPS: dict[object, Callable[[Tree], Tree]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
}
