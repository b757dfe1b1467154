"""Each rule by an example that breaks it, and the pages that tell of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.errors import UserError
from bitworth.lint.finding import RULES
from bitworth.lint.formats import as_github, as_sarif, as_text
from bitworth.lint.tree import lint_paths
from bitworth.record.derive import derive
from bitworth.record.readme_block import END_MARK, with_block
from bitworth.record.schema import Record
from bitworth.record.store import canonical, facts_sha256, read_record, sha256

from .conftest import Studied

DOCUMENT = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()
Tree = dict[str, Any]


def rules(path: Path) -> set[str]:
    found, _ = lint_paths([path])
    return {f.rule for f in found}


def forged(studied: Studied, folder: Path, change: Callable[[Tree], None]) -> Path:
    """A record that was changed by someone who also wrote the hash and the conclusions anew."""
    paths = studied.copied("first", folder)
    tree = json.loads(paths.record.read_bytes())
    change(tree)
    tree["facts_sha256"] = facts_sha256(tree["facts"])
    paths.record.write_bytes(canonical(tree))
    record = read_record(paths.record)
    tree["derived"] = derive(record.facts).model_dump(mode="json")
    paths.record.write_bytes(canonical(tree))
    return paths.record


def test_the_document_has_every_rule_with_an_example() -> None:
    told = dict(re.findall(r"^### (BW\d{3}) ([\w-]+)$", DOCUMENT, flags=re.MULTILINE))
    assert told == {rule.id: rule.name for rule in RULES.values()}
    for rule in RULES.values():
        section = DOCUMENT.split(f"### {rule.id} {rule.name}\n")[1].split("\n#")[0]
        assert rule.asks.rstrip(".") in " ".join(section.split()), rule.id


def cell(tree: Tree) -> Tree:
    found: Tree = tree["facts"]["cells"][0]
    return found


def exchange_sessions(tree: Tree) -> None:
    sessions = cell(tree)["jobs"][0]["sessions"]
    sessions[0]["samples_ns"], sessions[1]["samples_ns"] = (
        sessions[1]["samples_ns"], sessions[0]["samples_ns"],
    )  # fmt: skip
    sessions[0]["order"], sessions[1]["order"] = sessions[1]["order"], sessions[0]["order"]


def lose_a_block(tree: Tree) -> None:
    cell(tree)["jobs"][0]["sessions"][1]["samples_ns"][2][1] = []


def lose_a_sample(tree: Tree) -> None:
    cell(tree)["jobs"][0]["sessions"][1]["samples_ns"][2][1].pop()


def lose_a_session(tree: Tree) -> None:
    del cell(tree)["jobs"][0]["sessions"][0]


def rename_a_label(tree: Tree) -> None:
    cell(tree)["jobs"][0]["labels"][2] = "int8 everything"


def rename_the_baseline(tree: Tree) -> None:
    cell(tree)["jobs"][0]["labels"][0] = "fp32"


def drop_a_gap(tree: Tree) -> None:
    tree["facts"]["not_run"] = [n for n in tree["facts"]["not_run"] if "fp8" not in n["what"]]


def move_sites(tree: Tree) -> None:
    variants = {v["name"]: v for v in cell(tree)["variants"]}
    variants["int8 all"]["sites"] = variants["int8 conv"]["sites"]


def make_up_a_site(tree: Tree) -> None:
    cell(tree)["groups"]["conv"] = ["w9"]


def change_the_options(tree: Tree) -> None:
    cell(tree)["options"]["threads"] = "8"


def change_the_config(tree: Tree) -> None:
    tree["facts"]["config"]["timing"]["seed"] = 5


def judge_by_fewer(tree: Tree) -> None:
    cell(tree)["variants"][1]["quality"]["n"] -= 1


def lose_a_value(tree: Tree) -> None:
    """Of every variant, so that they still pair."""
    for variant in cell(tree)["variants"]:
        for metric in variant["quality"]["metrics"].values():
            metric["values"].pop()
            if metric["denominators"]:
                metric["denominators"].pop()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (judge_by_fewer, "BW009"), (lose_a_value, "BW009"),
        (exchange_sessions, "BW005"), (lose_a_block, "BW007"), (lose_a_sample, "BW005"),
        (lose_a_session, "BW005"), (rename_a_label, "BW006"), (rename_the_baseline, "BW006"),
        (drop_a_gap, "BW007"), (move_sites, "BW004"), (make_up_a_site, "BW006"),
        (change_the_options, "BW004"), (change_the_config, "BW004"),
    ],
)  # fmt: skip
def test_a_forged_record_contradicts_itself(
    studied: Studied, tmp_path: Path, change: Callable[[Tree], None], rule: str
) -> None:
    assert rule in rules(forged(studied, tmp_path, change))


def test_a_sample_that_was_edited_is_found_by_the_hash(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    tree = json.loads(paths.record.read_bytes())
    cell(tree)["jobs"][0]["sessions"][0]["samples_ns"][0][0][0] += 1
    paths.record.write_bytes(canonical(tree))
    assert "BW002" in rules(paths.record)


def test_a_verdict_that_was_edited_is_found(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    tree = json.loads(paths.record.read_bytes())
    tree["derived"]["decision"]["kind"] = "do not ship"
    paths.record.write_bytes(canonical(tree))
    found, _ = lint_paths([paths.record])
    assert {f.rule for f in found} == {"BW003"}
    assert "/derived/decision" in found[0].message


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema_version": 6, "facts": {}}', b"[]"])
def test_what_is_no_record_is_unreadable_where_it_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert rules(path) == {"BW001"}


def test_json_of_other_programs_is_left_alone_in_a_tree(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"version": 3}')
    assert lint_paths([tmp_path]) == ([], 0)


def test_a_record_under_another_name(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    paths.record.rename(tmp_path / "other.json")
    assert rules(tmp_path / "other.json") == {"BW008"}


@pytest.fixture
def block(studied: Studied, tmp_path: Path) -> tuple[Path, Record, Path]:
    paths = studied.copied("first", tmp_path / "studies")
    record = read_record(paths.record)
    readme = tmp_path / "README.md"
    readme.write_text(with_block("# Words\n\n3 of them.\n", readme, record, paths.record))
    return readme, record, paths.record


Block = tuple[Path, Record, Path]


def edited(block: Block, old: str, new: str) -> Path:
    text = block[0].read_text()
    assert old in text
    block[0].write_text(text.replace(old, new, 1))
    return block[0]


def test_an_untouched_block_between_words_is_sound(block: Block) -> None:
    assert rules(block[0]) == set()


def test_a_value_that_is_not_the_records(block: Block) -> None:
    found, _ = lint_paths([edited(block, "ship int8 all", "ship int8 conv")])
    assert {"BW101", "BW105"} <= {f.rule for f in found}
    told = next(f for f in found if f.rule == "BW101")
    line = block[0].read_text().split("\n")[told.line - 1]
    assert "ship int8 conv" in line


def test_an_address_that_leads_nowhere(block: Block) -> None:
    path = edited(block, "bw:/derived/cells/0/variants/0/variant", "bw:/derived/cells/9/x")
    assert "BW102" in rules(path)


def test_a_number_without_an_address(block: Block) -> None:
    path = edited(block, END_MARK, f"It is 1.7 times as fast.\n{END_MARK}")
    assert "BW103" in rules(path)


@pytest.mark.parametrize("word", ["int8", "L2", "p99", "fp8_e4m3", "u8 x s8", "MatMul-2"])
def test_digits_in_names_are_no_numbers(block: Block, word: str) -> None:
    found = rules(edited(block, END_MARK, f"A {word} word.\n{END_MARK}"))
    assert found == {"BW105"}


def test_own_words_in_a_block_of_their_own(block: Block) -> None:
    """Without ``result`` a block is no copy of what the record renders; its values are checked."""
    readme, record, path = block
    relative = path.relative_to(readme.parent).as_posix()
    speed = "/derived/cells/0/variants/1/comparison/time_ratio"
    variants = record.derived.cells[0].variants
    assert variants[1].comparison is not None
    assert variants[1].comparison.time_ratio is not None
    told = f"{1 / variants[1].comparison.time_ratio:.3f}"
    text = f"<!-- bitworth:begin {relative} -->\nIt is {told}<!-- bw:{speed} -->×.\n{END_MARK}\n"
    readme.write_text(text)
    assert rules(readme) == set()
    readme.write_text(text.replace(told, "9.999"))
    assert rules(readme) == {"BW101"}


def test_values_without_their_record(block: Block) -> None:
    readme, _, path = block
    lines = [t for t in readme.read_text().split("\n") if "bitworth:" not in t]
    readme.write_text("\n".join(lines))
    assert rules(readme) == {"BW106"}
    edited_path = readme.with_name("B.md")
    edited_path.write_text(f"<!-- bitworth:begin studies/none.json -->\n1\n{END_MARK}\n")
    assert rules(edited_path) == {"BW106"}
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    [
        END_MARK,
        "<!-- bitworth:begin a.json -->",
        f"<!-- bitworth:begin a.json -->\n<!-- bitworth:begin b.json -->\n{END_MARK}",
        "<!-- bitworth:begin -->",
    ],
)
def test_marks_come_in_pairs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(text)
    assert "BW107" in rules(path)


def test_a_rule_is_silenced_with_a_reason_at_its_line(block: Block) -> None:
    readme, _, path = block
    relative = path.relative_to(readme.parent).as_posix()
    begin = f"<!-- bitworth:begin {relative} -->\n"
    reason = "<!-- bitworth:allow BW103: the year, which no record has -->"
    readme.write_text(f"{begin}{reason}\nIn 2026.\n{END_MARK}\n")
    assert rules(readme) == set()
    readme.write_text(f"{begin}In 2026. {reason}\n{END_MARK}\n")
    assert rules(readme) == set()
    readme.write_text(f"{begin}{reason}\n\nIn 2026.\n{END_MARK}\n")
    assert rules(readme) == {"BW103", "BW901"}
    for bad in ("BW103", "BW103:", "BW999: because", "because", ""):
        readme.write_text(f"{begin}<!-- bitworth:allow {bad} -->\nIn 2026.\n{END_MARK}\n")
        assert rules(readme) == {"BW103", "BW902"}


def test_every_format_tells_file_line_and_rule(block: Block) -> None:
    found, _ = lint_paths([edited(block, END_MARK, f"It is 1.7 times, 100%.\n{END_MARK}")])
    first = found[0]
    assert as_text(found).startswith(f"{first.path}:{first.line}: {first.rule} ")
    github = as_github(found).split("\n")
    assert len(github) == len(found)
    assert all(line.startswith("::error file=") and f"line={f.line}" in line
               for line, f in zip(github, found, strict=True))  # fmt: skip
    log = json.loads(as_sarif(found, "1"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [r["ruleId"] for r in run["results"]] == [f.rule for f in found]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        lint_paths([tmp_path / "none"])
    other = tmp_path / "a.txt"
    other.write_text("x")
    with pytest.raises(UserError, match=r"reads records \(.json\) and texts"):
        lint_paths([other])


@pytest.mark.parametrize(
    "text", ["2x", "17ms", "takes .5 points", "-3.5 points", "12%", "1.7\u00d7"]
)
def test_numbers_with_their_units_are_numbers(block: Block, text: str) -> None:
    readme, _, path = block
    relative = path.relative_to(readme.parent).as_posix()
    readme.write_text(f"<!-- bitworth:begin {relative} -->\nIt is {text}.\n{END_MARK}\n")
    assert rules(readme) == {"BW103"}


def test_another_sign_is_another_value(block: Block) -> None:
    readme, record, path = block
    relative = path.relative_to(readme.parent).as_posix()
    cores = record.facts.environment.cores
    for sign, expected in (("", set()), ("-", {"BW101"}), ("+", {"BW101"}), ("a-", set())):
        value = f"{sign}{cores}<!-- bw:/facts/environment/cores -->"
        readme.write_text(f"<!-- bitworth:begin {relative} -->\nIt has {value}.\n{END_MARK}\n")
        assert rules(readme) == expected, sign


def test_a_record_that_was_cut_off_is_found_in_a_tree(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    for path in tmp_path.iterdir():
        if path != paths.record:
            path.unlink()
    data = paths.record.read_bytes()
    paths.record.write_bytes(data[: len(data) // 2])
    assert rules(tmp_path) == {"BW001"}


@pytest.mark.parametrize("code", ["```x``` is code", "```\nx\n````", "~~~ `x`\n```\n~~~"])
def test_code_hides_nothing_behind_it(tmp_path: Path, code: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"{code}\n<!-- bitworth:begin none.json -->\n1\n{END_MARK}\n")
    assert rules(path) == {"BW106"}
    path.write_text(f"```\n<!-- bitworth:begin none.json -->\n```\n`{END_MARK}`\n")
    assert rules(path) == set()


def test_neighbouring_lines_have_their_own_silences(block: Block) -> None:
    readme, _, path = block
    relative = path.relative_to(readme.parent).as_posix()
    allow = "<!-- bitworth:allow BW103: a year -->"
    rows = f"| 2025 {allow} |\n| 2026 {allow} |"
    readme.write_text(f"<!-- bitworth:begin {relative} -->\n{rows}\n{END_MARK}\n")
    assert rules(readme) == set()


def test_text_that_is_no_unicode_is_a_finding(studied: Studied, tmp_path: Path) -> None:
    paths = studied.copied("first", tmp_path)
    text = paths.record.read_text().replace('"mock"', '"mo\\ud800ck"', 1)
    paths.record.write_text(text)
    assert "BW001" in rules(paths.record)


def test_a_gap_is_told_for_each_cell_of_an_engine(studied: Studied, tmp_path: Path) -> None:
    """A line for one cell is none for a second one of the same engine."""

    def second_cell(tree: Tree) -> None:
        again = json.loads(json.dumps(cell(tree)))
        again["threads"], again["options"]["threads"] = 2, "2"
        again["options_sha256"] = sha256(canonical(again["options"]))
        tree["facts"]["cells"].append(again)

    path = forged(studied, tmp_path, second_cell)
    found, _ = lint_paths([path])
    told = [f.message for f in found if f.rule == "BW007"]
    assert told == [
        "not_run has no line 'mock: time of fp8' for each cell where it was not measured"
    ]
