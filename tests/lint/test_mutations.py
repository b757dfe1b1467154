"""Whatever is changed in a record, or in a text rendered from one, lint finds it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bitworth.lint.tree import lint_paths
from bitworth.record.readme_block import with_block
from bitworth.record.store import canonical, read_record

from .conftest import Studied

Tree = Any
NAMES = ("first", "again", "rich")
#: Cases of each kind: over 200 in records, and over 200 in texts.
EACH = 16
_NUMBER = re.compile(r"(?<![\w/])\d+(?:\.\d+)?(?![\w/]*[A-Za-z_/-])")
_ADDRESS = re.compile(r"<!-- bw:\S+ -->")


def leaves(node: Tree, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*at, key))
    elif isinstance(node, list):
        for key, value in enumerate(node):
            yield from leaves(value, (*at, key))
    else:
        yield at, node


def at(tree: Tree, path: tuple[Any, ...]) -> Tree:
    for key in path:
        tree = tree[key]
    return tree


def put(tree: Tree, path: tuple[Any, ...], value: Any) -> None:
    at(tree, path[:-1])[path[-1]] = value


def edit_a_number(tree: Tree, other: Tree, rng: random.Random) -> bool:
    numbers = [(p, v) for p, v in leaves(tree) if type(v) in (int, float) and len(p) > 1]
    path, value = rng.choice(numbers)
    put(tree, path, value + rng.choice([1, -1]) if isinstance(value, int) else value * 1.01 + 1e-3)
    return True


def swap_two_variants(tree: Tree, other: Tree, rng: random.Random) -> bool:
    """Their names, in the facts, in the conclusions, or in both at once."""
    names = [v["name"] for v in tree["facts"]["cells"][0]["variants"]]
    one, two = rng.sample(names, 2)
    swapped = {one: two, two: one}
    parts = rng.choice([("facts",), ("derived",), ("facts", "derived")])
    done = False
    for part in parts:
        for path, value in list(leaves(tree[part])):
            if value in swapped and path[-1] in ("name", "variant"):
                put(tree[part], path, swapped[value])
                done = True
    return done


def drop_a_not_run_line(tree: Tree, other: Tree, rng: random.Random) -> bool:
    lines = tree["facts"]["not_run"]
    del lines[rng.randrange(len(lines))]
    return True


def rename_the_baseline(tree: Tree, other: Tree, rng: random.Random) -> bool:
    places = [p for p, v in leaves(tree) if v == "baseline" and p[0] in ("facts", "derived")]
    put(tree, rng.choice(places), rng.choice(["base", "baseline ", "fp32", "int8 all"]))
    return True


def reuse_a_value_of_another_run(tree: Tree, other: Tree, rng: random.Random) -> bool:
    mine = dict(leaves(tree))
    there = [
        (p, v) for p, v in leaves(other)
        if type(v) in (int, float) and p in mine and mine[p] != v
    ]  # fmt: skip
    if not there:
        return False
    put(tree, *rng.choice(there))
    return True


RECORD_KINDS: tuple[Callable[[Tree, Tree, random.Random], bool], ...] = (
    edit_a_number, swap_two_variants, drop_a_not_run_line, rename_the_baseline,
    reuse_a_value_of_another_run,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_what_nobody_touched(
    studied: Studied, tmp_path: Path, name: str
) -> None:
    paths = studied.copied(name, tmp_path / name)
    readme = tmp_path / "README.md"
    readme.write_text(with_block("# A model\n", readme, read_record(paths.record), paths.record))
    found, files = lint_paths([tmp_path])
    assert found == []
    assert files == 4


@pytest.mark.parametrize("kind", RECORD_KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_every_change_of_a_record_is_found(
    studied: Studied, tmp_path: Path, name: str, kind: Any
) -> None:
    paths = studied.copied(name, tmp_path)
    before = paths.record.read_bytes()
    other = json.loads(studied.files["again" if name == "first" else "first"].record.read_bytes())
    done = 0
    for seed in range(EACH):
        tree = json.loads(before)
        if not kind(tree, other, random.Random(f"{name} {kind.__name__} {seed}")):
            continue
        if canonical(tree) == canonical(json.loads(before)):
            continue
        paths.record.write_bytes(canonical(tree))
        found, _ = lint_paths([paths.record])
        assert found, f"{kind.__name__}, seed {seed}"
        assert all(f.path == str(paths.record) for f in found)
        done += 1
    assert done > EACH // 2


def edit_a_shown_number(text: str, other: str, rng: random.Random) -> str:
    # Neither what stands in an address nor the name of a picture's file is shown.
    spans = [m.span() for m in re.finditer(r"<!--.*?-->|\]\([^)]*\)", text)]
    shown = [m for m in _NUMBER.finditer(text) if not any(a <= m.start() < b for a, b in spans)]
    found = rng.choice(shown)
    digit = found.end() - 1
    new = str((int(text[digit]) + rng.randint(1, 9)) % 10)
    return text[:digit] + new + text[digit + 1 :]


def swap_two_rows_names(text: str, other: str, rng: random.Random) -> str:
    one, two = "int8 all<!--", "int8 conv<!--"
    return text.replace(one, "\0").replace(two, one).replace("\0", two)


def swap_two_rows_values(text: str, other: str, rng: random.Random) -> str:
    """Values with their addresses, so that each is still the record's."""
    lines = text.split("\n")
    rows = [i for i, line in enumerate(lines) if "| faster<!--" in line or "| slower<!--" in line]
    rows = rows or [i for i, line in enumerate(lines) if line.startswith("| int8")]
    one, two = rng.sample(rows[:2], 2) if len(rows) > 1 else (rows[0], rows[0] + 1)
    a, b = lines[one].split(" | "), lines[two].split(" | ")
    place = rng.randrange(1, min(len(a), len(b)))
    a[place], b[place] = b[place], a[place]
    lines[one], lines[two] = " | ".join(a), " | ".join(b)
    return "\n".join(lines)


def drop_a_line(text: str, other: str, rng: random.Random) -> str:
    """A row of what was not run, or another line with a value."""
    lines = text.split("\n")
    told = [i for i, line in enumerate(lines) if "/not_run/" in line]
    told = told or [i for i, line in enumerate(lines) if _ADDRESS.search(line)]
    del lines[rng.choice(told)]
    return "\n".join(lines)


def rename_a_shown_baseline(text: str, other: str, rng: random.Random) -> str:
    places = [m.start() for m in re.finditer(r"baseline<!-- bw", text)]
    start = rng.choice(places)
    return text[:start] + "reference" + text[start + len("baseline") :]


def show_a_value_of_another_run(text: str, other: str, rng: random.Random) -> str:
    mine = text.split("\n")
    shown = {tuple(_ADDRESS.findall(line)): line for line in other.split("\n")}
    places = [
        i for i, line in enumerate(mine)
        if (key := tuple(_ADDRESS.findall(line))) and shown.get(key, line) != line
    ]  # fmt: skip
    if not places:
        return text
    place = rng.choice(places)
    mine[place] = shown[tuple(_ADDRESS.findall(mine[place]))]
    return "\n".join(mine)


def add_a_claim(text: str, other: str, rng: random.Random) -> str:
    lines = text.split("\n")
    place = rng.choice([i for i, line in enumerate(lines) if line.startswith(("- ", "| int8"))])
    lines.insert(place, "- It is 1.7 times as fast.")
    return "\n".join(lines)


TEXT_KINDS: tuple[Callable[[str, str, random.Random], str], ...] = (
    edit_a_shown_number, swap_two_rows_names, swap_two_rows_values, drop_a_line,
    rename_a_shown_baseline, show_a_value_of_another_run, add_a_claim,
)  # fmt: skip


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("where", ["study", "readme"])
def test_every_change_of_a_text_is_found(
    studied: Studied, tmp_path: Path, where: str, kind: Any
) -> None:
    paths = studied.copied("first", tmp_path / "studies")
    texts = {}
    for name in ("first", "again"):
        if where == "study":
            texts[name] = studied.files[name].readme.read_text()
        else:
            record = read_record(studied.files[name].record)
            target = tmp_path / "README.md"
            texts[name] = with_block("", target, record, paths.record)
    path = paths.readme if where == "study" else tmp_path / "README.md"
    done = 0
    for seed in range(EACH):
        rng = random.Random(f"{where} {kind.__name__} {seed}")
        changed = kind(texts["first"], texts["again"], rng)
        if changed == texts["first"]:
            continue
        path.write_text(changed)
        found, _ = lint_paths([path])
        assert found, f"{kind.__name__}, seed {seed}"
        done += 1
    assert done > EACH // 2


def test_every_change_of_a_page_is_found(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    page = paths.report.read_text()
    # Digits of the text between elements, not those of styles.
    body = page.index("<body")
    places = [m.start() for m in re.finditer(r"\d(?=[^<>]*</span>)", page) if m.start() > body]
    rng = random.Random(3)
    for place in rng.sample(places, 20):
        new = str((int(page[place]) + 1) % 10)
        paths.report.write_text(page[:place] + new + page[place + 1 :])
        found, _ = lint_paths([paths.report])
        assert {f.rule for f in found} & {"BW101", "BW105"}, page[place - 30 : place + 30]
