"""What must not be public, by files that are made here, and this repository itself."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import pytest

from bitworth.lint.hygiene import MOST_BYTES, lint_public
from bitworth.lint.tree import lint_paths

ROOT = Path(__file__).parents[2]


def rules(folder: Path) -> set[str]:
    return {f.rule for f in lint_public(folder)[0]}


def test_this_repository_is_fit_to_be_public() -> None:
    found, files = lint_public(ROOT)
    assert found == []
    assert files > 300


def test_its_records_and_texts_are_sound() -> None:
    found, files = lint_paths([ROOT / "studies", ROOT / "README.md", ROOT / "docs"])
    assert found == []
    assert files > 20


# In two parts, so that this file has none of them.
SECRETS = (
    ("AK" "IA", "ABCDEFGHIJKLMNOP"), ("gh" "p_", "a" * 36), ("h" "f_", "a" * 34),
    ("s" "k-", "a1" * 20), ("xo" "xb-", "1234567890-abc"), ("AI" "za", "a" * 35),
    ("-----BEGIN RSA ", "PRIVATE KEY-----"), ("-----BEGIN ", "PRIVATE KEY-----"),
)  # fmt: skip


@pytest.mark.parametrize("parts", SECRETS, ids=[p[0].strip("-") for p in SECRETS])
def test_secrets(tmp_path: Path, parts: tuple[str, str]) -> None:
    (tmp_path / "a.py").write_text(f"x = 1\nkey = '{parts[0]}{parts[1]}'\n")
    found, _ = lint_public(tmp_path)
    assert [(f.rule, f.line) for f in found] == [("BW301", 2)]
    assert parts[0] + parts[1] not in found[0].message


@pytest.mark.parametrize(
    "text",
    ["/ho" "me/alice/models/a.onnx", "/Us" "ers/bob/x/", "http://10" ".1.2.3:80", "/ho" "me/alice",
     "C:\\Us" "ers\\eve", "https://registry" ".internal/x", "ftp://192" ".168.0.7/"],
)  # fmt: skip
def test_private_places(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(f"see {text}\n")
    assert rules(tmp_path) == {"BW302"}


@pytest.mark.parametrize(
    "text",
    [
        "/home/user/x",
        "10.5 ms",
        "1.10.2.3",
        "version 192.168",
        "a/home/b/",
        "https://x.org/tensorrt/10.7.0/a",
        "/opt/lib-10.7.0.23/lib",
    ],
)
def test_places_that_are_no_ones(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(text)
    assert rules(tmp_path) == set()


@pytest.mark.parametrize(
    "text",
    ["https://hugging" "face.co/a/b/resolve/main/x.onnx",
     "https://raw.github" "usercontent.com/a/b/main/x",
     "https://github.com/a/b/releases/" "latest/download/x",
     "pip install git" "+https://github.com/a/b", "git" "+https://git@github.com/a/b",
     "git" "+https://github.com/a/b@main", "hugging" "face.co/datasets/a/b/resolve/main/x",
     "cu" "rl https://x.org/i.sh | sh"],
)  # fmt: skip
def test_unpinned_downloads(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.sh").write_text(text + "\n")
    assert rules(tmp_path) == {"BW303"}


@pytest.mark.parametrize(
    "text",
    ["https://huggingface.co/a/b/resolve/0123abc/x.onnx", "git+https://github.com/a/b@v1.2"],
)
def test_pinned_downloads(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.sh").write_text(text)
    assert rules(tmp_path) == set()


def test_pickles_by_name_and_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"anything")
    assert rules(tmp_path) == {"BW304"}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "weights.pth").write_bytes(b"")
        (tmp_path / "weights.pth").rename(tmp_path / "data.bin")
        (tmp_path / "data.bin").write_bytes(pickle.dumps({"a": 1}, protocol))
        assert rules(tmp_path) == {"BW304"}
        (tmp_path / "data.bin").rename(tmp_path / "weights.pth")


def test_a_file_for_a_release(tmp_path: Path) -> None:
    with (tmp_path / "a.onnx").open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    assert rules(tmp_path) == {"BW305"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", set()),
        ("| a | b |\n|---|---|\n| 1 |\n", {"BW306"}),
        ("| a | b |\n|---|---|\n| 1 | 2 | 3 |\n", {"BW306"}),
        ("| a | b |\n|---|---|\n| `x` | a \\| b |\n", set()),
        ("| a | b |\n|---|---|\n| `x|y` | b |\n", {"BW306"}),
        ("| a | b |\n|---|---|\n| 1 ||\n", set()),
        ("```\n| a |\n| 1 | 2 |\n```\n", set()),
        ("```\ncode\n", {"BW307"}),
        ("````\n```\n````\n", set()),
        ("~~~\n```\n~~~\n", set()),
    ],
)
def test_markdown(tmp_path: Path, text: str, expected: set[str]) -> None:
    (tmp_path / "a.md").write_text(text)
    assert rules(tmp_path) == expected


def test_folders_of_tools_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "a.pkl").write_bytes(b"x")
    assert lint_public(tmp_path) == ([], 0)


def test_a_folder_that_git_does_not_know_is_read(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.pkl").write_bytes(b"x")
    assert rules(tmp_path / "dist") == {"BW304"}
