"""Published studies: the faults that their reviewers found, as first published and in others."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitworth.lint.cited_rules import lint_cited
from bitworth.lint.tree import lint_paths
from bitworth.record.cited import CitedStudy
from bitworth.record.cited_claims import claim_faults
from bitworth.record.cited_store import read_cited
from bitworth.record.render_cited import render_cited

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(__file__).parent / "published"
CORRECTED = ROOT / "studies" / "cited"
NAMES = ("pixart", "sana_wm", "timm_hrnet")
EACH = 12
Tree = dict[str, Any]

#: What reviewers found in each study as first published, and what its summary and tables disagree
#: on, by rule and claim.
KNOWN = {
    "pixart": {
        ("BW205", "speed-range"), ("BW205", "error-range"), ("BW205", "lpips-fp16"),
        ("BW205", "lpips-fp8"), ("BW205", "cross-range"),
    },
    "sana_wm": {
        ("BW201", "at-most"), ("BW202", "graph-share"), ("BW203", "plugin-saving"),
        ("BW204", "other-linears"),
    },
    "timm_hrnet": {
        ("BW205", "top1-drop"), ("BW202", "profile/b200-11.4-b1/fp16"),
        ("BW202", "profile/b200-11.4-b1/fp8"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_faults_of_what_was_first_published_are_found(name: str) -> None:
    path = PUBLISHED / f"{name}.cited"
    found = lint_cited(path)
    assert {(f.rule, f.message.split(": ")[0]) for f in found} == KNOWN[name]
    lines = path.read_text().split("\n")
    for finding in found:
        where = finding.message.split(": ")[0].split("/")
        assert f'"name": "{where[1] if len(where) == 3 else where[0]}"' in lines[finding.line - 1]


def test_nothing_is_found_in_what_was_corrected() -> None:
    found, files = lint_paths([CORRECTED])
    assert found == []
    assert files == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_both_have_the_same_numbers(name: str) -> None:
    """A correction changes what is said of the numbers, and none of them."""

    def numbers(path: Path) -> Counter[str]:
        tables = read_cited(path).tables
        return Counter(v for t in tables for r in t.rows for v in r.values if v is not None)

    published, corrected = numbers(PUBLISHED / f"{name}.cited"), numbers(CORRECTED / f"{name}.json")
    assert published == corrected


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_rendered_whole(name: str) -> None:
    study = read_cited(CORRECTED / f"{name}.json")
    text = render_cited(study)
    assert (CORRECTED / f"{name}.md").read_text() == text
    plain = re.sub(r"<!--.*?-->", "", text)
    told = [c.text for c in study.claims] + list(study.not_measured) + list(study.why)
    told += [v for t in study.tables for r in t.rows for v in r.values if v is not None]
    for line in told:
        assert re.sub(r"\\", "", line) in re.sub(r"\\", "", plain)


def invented(rng: random.Random) -> Tree:
    """A sound study of another model, with numbers of its own."""
    base = rng.uniform(2, 20)
    rows, cells = [], [f"gpu {chr(97 + i)}" for i in range(rng.randint(2, 4))]
    for place, cell in enumerate(cells):
        times = [base * rng.uniform(0.9, 1.1)]
        times += [times[0] / rng.uniform(0.8, 1.6) for _ in range(2)]
        printed = [f"{t:.3f}" for t in times]
        ratios = [f"{float(printed[0]) / float(p):.2f}" for p in printed[1:]]
        rows.append({"name": f"r{place}", "cell": cell, "values": [*printed, *ratios]})
    part, rest = rng.uniform(1, 4), rng.uniform(5, 9)
    shares = [f"{part:.2f}", f"{part * 0.6:.2f}", f"{rest:.2f}", f"{part + rest:.1f}"]
    both = [float(v) for r in rows for v in r["values"][3:]]
    saved = float(shares[0]) - float(shares[1])
    value = float(shares[0]) / float(shares[3])
    return {
        "cited_version": 1, "id": "made", "title": "A model", "family": "f", "source": "s",
        "checkpoints": [], "builds": "b", "recipe": [], "method": [], "why": [], "decision": "No",
        "not_measured": [], "revisit": [],
        "tables": [
            {
                "name": "speed", "title": "t", "region": "call", "run": "one job",
                "accounting": "call", "unit": "ms", "rows": rows,
                "columns": [
                    {"name": "base", "title": "base", "variant": "base"},
                    {"name": "one", "title": "one", "variant": "one"},
                    {"name": "two", "title": "two", "variant": "two"},
                    {"name": "x1", "title": "x", "variant": "one", "unit": "x",
                     "formula": ["ratio", "base", "one"]},
                    {"name": "x2", "title": "x", "variant": "two", "unit": "x",
                     "formula": ["ratio", "base", "two"]},
                ],
            },
            {
                "name": "parts", "title": "t", "region": "graph", "run": "alone",
                "accounting": "block", "unit": "ms", "evidence": "estimated", "baseline": "bf16",
                "columns": [
                    {"name": "graph", "title": "g", "variant": "base"},
                    {"name": "fp8", "title": "g8", "variant": "one"},
                    {"name": "rest", "title": "r", "variant": "base", "region": "plugins"},
                    {"name": "all", "title": "a", "variant": "base", "region": "block"},
                ],
                "rows": [{"name": "r0", "cell": cells[0], "values": shares}],
            },
        ],
        "regions": [{"name": "block", "parts": ["a", "b", "c"]}],
        "layers": [{"name": "head", "runs_in": "graph", "rows": "all"},
                   {"name": "tail", "runs_in": "plugin", "rows": "few"}],
        "claims": [
            {"name": "range", "kind": "range", "text": "r", "low": f"{min(both):.2f}",
             "high": f"{max(both):.2f}", "over": ["speed/x1", "speed/x2"],
             "variants": ["one", "two"]},
            {"name": "guess", "kind": "estimate", "text": "e", "of": ["parts/r0/graph"],
             "times": "20", "value": f"{float(shares[0]) * 20:.1f}"},
            {"name": "share", "kind": "share", "text": "s", "value": f"{value:.2f}",
             "of": ["parts/r0/graph", "parts/r0/all"], "region": "block",
             "counted": ["a", "b"], "leaves_out": ["c"]},
            {"name": "ratio", "kind": "ratio", "text": "q", "of": ["speed/r0/base", "speed/r0/one"],
             "value": rows[0]["values"][3]},
            {"name": "place", "kind": "placement", "text": "p",
             "layers": [{"name": "head", "runs_in": "graph", "rows": "all"}]},
        ],
        "notes": [f"{saved:.2f}"],
    }  # fmt: skip


def claim(tree: Tree, name: str) -> Tree:
    return next(c for c in tree["claims"] if c["name"] == name)


def call_it_a_bound(tree: Tree, rng: random.Random) -> None:
    claim(tree, "guess")["kind"] = "bound"


def hide_what_is_left_out(tree: Tree, rng: random.Random) -> None:
    claim(tree, "share")["leaves_out"] = []
    claim(tree, "share")["counted"] = rng.sample(["a", "b", "c"], rng.randint(0, 2))


def print_a_part_as_more_than_its_whole(tree: Tree, rng: random.Random) -> None:
    tree["regions"].append({"name": "call", "parts": ["convolutions"]})
    row = tree["tables"][0]["rows"][0]
    tree["tables"].append(
        {
            "name": "profile", "title": "t", "region": "convolutions", "run": "profiler",
            "accounting": "call", "unit": "ms",
            "columns": [{"name": "base", "title": "b", "variant": "base"}],
            "rows": [{"name": "r0", "cell": row["cell"],
                      "values": [f"{float(row['values'][0]) * rng.uniform(1.1, 3):.3f}"]}],
        }
    )  # fmt: skip


def compare_with_another_place(tree: Tree, rng: random.Random) -> None:
    field = rng.choice(["run", "region", "accounting", "baseline"])
    tree["tables"][0]["columns"][1][field] = "another"


def compare_two_cells(tree: Tree, rng: random.Random) -> None:
    claim(tree, "ratio")["of"] = ["speed/r0/base", "speed/r1/one"]


def contradict_the_graph(tree: Tree, rng: random.Random) -> None:
    layer = claim(tree, "place")["layers"][0]
    field = rng.choice(["runs_in", "rows"])
    layer[field] = {"runs_in": "plugin", "rows": "few"}[field]


def name_no_variant(tree: Tree, rng: random.Random) -> None:
    claim(tree, "range")["variants"] = []


def cut_a_number_off(tree: Tree, rng: random.Random) -> None:
    made = claim(tree, "range")
    end, sign = rng.choice([("low", 1), ("high", -1)])
    made[end] = f"{float(made[end]) + sign * 0.01 * rng.randint(1, 5):.2f}"


def reach_beyond_every_number(tree: Tree, rng: random.Random) -> None:
    made = claim(tree, "range")
    end, sign = rng.choice([("low", -1), ("high", 1)])
    made[end] = f"{float(made[end]) + sign * 0.01 * rng.randint(1, 9):.2f}"


def print_another_result(tree: Tree, rng: random.Random) -> None:
    row = rng.choice(tree["tables"][0]["rows"])
    place = rng.choice([3, 4])
    row["values"][place] = f"{float(row['values'][place]) + rng.choice([-1, 1]) * 0.06:.2f}"


def print_another_product(tree: Tree, rng: random.Random) -> None:
    made = claim(tree, "guess")
    made["value"] = f"{float(made['value']) * rng.choice([0.9, 1.1]):.1f}"


def name_a_number_that_is_not_there(tree: Tree, rng: random.Random) -> None:
    one, wrong = rng.choice(
        [("ratio", "speed/r9/base"), ("ratio", "speed/r0"), ("share", "parts/r0/none"),
         ("guess", "none/r0/graph")]
    )  # fmt: skip
    claim(tree, one)["of"] = [wrong, *claim(tree, one)["of"][1:]]


def name_another_region(tree: Tree, rng: random.Random) -> None:
    tree["regions"].append({"name": "other", "parts": ["z"]})
    claim(tree, "share").update(region="other", counted=["z"], leaves_out=[])


def name_a_variant_without_a_number(tree: Tree, rng: random.Random) -> None:
    field, value = rng.choice([("variants", "int4"), ("cells", "gpu z")])
    made = claim(tree, "range")
    cells = [r["cell"] for r in tree["tables"][0]["rows"]]
    made[field] = [*(made["variants"] if field == "variants" else cells), value]


KINDS: tuple[tuple[str, Callable[[Tree, random.Random], None]], ...] = (
    ("BW201", call_it_a_bound), ("BW202", hide_what_is_left_out),
    ("BW202", print_a_part_as_more_than_its_whole), ("BW203", compare_with_another_place),
    ("BW203", compare_two_cells), ("BW204", contradict_the_graph), ("BW205", name_no_variant),
    ("BW205", cut_a_number_off), ("BW205", reach_beyond_every_number),
    ("BW206", print_another_result), ("BW206", print_another_product),
    ("BW207", name_a_number_that_is_not_there), ("BW207", name_another_region),
    ("BW207", name_a_variant_without_a_number),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "change"), KINDS, ids=[k.__name__ for _, k in KINDS])
def test_each_rule_catches_its_fault_in_other_studies(
    tmp_path: Path, rule: str, change: Callable[[Tree, random.Random], None]
) -> None:
    path = tmp_path / "made.json"
    for seed in range(EACH):
        rng = random.Random(f"{change.__name__} {seed}")
        tree = invented(rng)
        path.write_text(json.dumps(tree, indent=1))
        assert lint_cited(path) == [], f"seed {seed}"
        change(tree, rng)
        path.write_text(json.dumps(tree, indent=1))
        assert rule in {f.rule for f in lint_cited(path)}, f"seed {seed}"


def test_a_text_that_was_edited_is_found(tmp_path: Path) -> None:
    for suffix in (".json", ".md"):
        (tmp_path / f"pixart{suffix}").write_bytes((CORRECTED / f"pixart{suffix}").read_bytes())
    text = (tmp_path / "pixart.md").read_text()
    (tmp_path / "pixart.md").write_text(text.replace("1.05<!--", "1.25<!--", 1))
    found, _ = lint_paths([tmp_path])
    assert {f.rule for f in found} == {"BW101", "BW105"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"cited_version": 9}', "its cited_version is 9"),
        (b'{"cited_version": 1}', "id: Field required"),
    ],
)
def test_what_is_no_study(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    (found,) = lint_cited(path)
    assert found.rule == "BW001"
    assert told in found.message


def test_rows_have_a_value_for_each_column(tmp_path: Path) -> None:
    tree = invented(random.Random(1))
    tree["tables"][0]["rows"][0]["values"].pop()
    path = tmp_path / "made.json"
    path.write_text(json.dumps(tree))
    (found,) = lint_cited(path)
    assert "4 values for 5 columns" in found.message


def test_claims_of_a_study_in_memory() -> None:
    study = CitedStudy.model_validate_json(json.dumps(invented(random.Random(2))))
    assert claim_faults(study) == ()


@pytest.mark.parametrize("value", ["2.0x", "about 3", "nan"])
def test_a_value_that_is_no_number_is_one_finding(tmp_path: Path, value: str) -> None:
    tree = invented(random.Random(1))
    tree["tables"][0]["rows"][0]["values"][0] = value
    path = tmp_path / "made.json"
    path.write_text(json.dumps(tree))
    (found,) = lint_cited(path)
    assert found.rule == "BW001"


def test_a_formula_of_columns_that_are_not_there(tmp_path: Path) -> None:
    tree = invented(random.Random(1))
    tree["tables"][0]["columns"][3]["formula"] = ["ratio", "base", "none"]
    path = tmp_path / "made.json"
    path.write_text(json.dumps(tree))
    (found,) = lint_cited(path)
    assert "names a column that the table has not" in found.message
