"""Rules for what is public: every file of a tree, whatever it is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bitworth.lint.finding import Finding
from bitworth.record.fences import closes, opens

#: A file above this is for a release or a hub, not for a repository.
MOST_BYTES = 10_000_000
_SKIPPED = (".git", ".venv", "node_modules", "__pycache__", ".bitworth")
#: Tokens by the marks that their issuers give them, and private keys.
_SECRETS = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{22,}"
    r"|\bhf_[A-Za-z0-9]{34,}\b|\bsk-(?:proj-)?[A-Za-z0-9_-]{32,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[0-9A-Za-z_-]{35}\b|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"
)
#: Folders of one person, and hosts and addresses that only some can reach.
_PRIVATE = re.compile(
    r"(?<![\w.])/(?:home|Users)/(?!(?:user|me|you)\b)[A-Za-z][\w.-]*|\b[A-Z]:\\Users\\\w+"
    r"|(?<=://)(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\d.])"
    r"|\bhttps?://[\w.-]+\.(?:internal|corp|lan|intranet)\b"
)
#: What a branch or "latest" names is another file tomorrow.
_UNPINNED = re.compile(
    r"huggingface\.co/(?:datasets/|spaces/)?[\w.-]+(?:/[\w.-]+)?/resolve/(?:main|master)/"
    r"|raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/(?:refs/heads/)?(?:main|master)/"
    r"|github\.com/[\w.-]+/[\w.-]+/(?:raw|archive)/(?:refs/heads/)?(?:main|master)\b"
    r"|/releases/(?:latest)/download/|\bgit\+https?://(?![^\s\"']+/[^\s\"'@]+@(?!(?:main|master|HEAD)\b)[\w.-]+)[^\s\"']+"
    r"|\b(?:curl|wget)\b[^|\n]*\|\s*(?:sudo\s+)?(?:ba|z)?sh\b"
)
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt")
#: A pickle of protocol 2 to 5 begins so.
_PICKLE_MARKS = tuple(bytes((0x80, n)) for n in range(2, 6))


def lint_public(folder: Path) -> tuple[list[Finding], int]:
    """What must not be public in any file below ``folder``, and how many files there are.

    Of a git repository the files that git has; else all.
    """
    found: list[Finding] = []
    files = list(_files(folder))
    for path in files:
        found += _file(path)
    return sorted(found), len(files)


def _files(folder: Path) -> Iterator[Path]:
    try:
        listed = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "-z"], capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        yield from _walk(folder)
        return
    names = sorted(filter(None, listed.decode("utf-8", "surrogateescape").split("\0")))
    if not names:  # a folder that git does not know
        yield from _walk(folder)
    for name in names:
        path = folder / name
        if path.is_file() and not path.is_symlink():
            yield path


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        if path.is_dir():
            if path.name not in _SKIPPED:
                yield from _walk(path)
        else:
            yield path


def _file(path: Path) -> Iterator[Finding]:
    size = path.stat().st_size
    if size > MOST_BYTES:
        told = f"{size / 1e6:.1f} MB, and {MOST_BYTES / 1e6:g} MB at most belong in a repository"
        yield Finding(str(path), 1, "BW305", told)
        return
    data = path.read_bytes()
    zipped = data[:2] == b"PK" and b".pkl" in data  # what torch.save writes
    if path.suffix.lower() in _PICKLES or data[:2] in _PICKLE_MARKS or zipped:
        told = "a pickle runs code when it is read; keep weights as safetensors or ONNX"
        yield Finding(str(path), 1, "BW304", told)
        return
    if b"\0" in data[:8192]:
        return
    text = data.decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        for rule, pattern, advice in (
            ("BW301", _SECRETS, "take it out, and revoke it: what was public once stays so"),
            ("BW302", _PRIVATE, "write a path or a host that everyone has"),
            ("BW303", _UNPINNED, "name a revision, a tag or a version"),
        ):
            for match in pattern.finditer(line):
                # A secret is not shown again.
                shown = match[0][:8] + "..." if rule == "BW301" else f"'{match[0][:60]}'"
                yield Finding(str(path), number, rule, f"{shown}: {advice}")
    if path.suffix == ".md":
        yield from _markdown(path, text)


def _markdown(path: Path, text: str) -> Iterator[Finding]:
    """Tables whose rows have another number of cells than their head, and open code fences."""
    fence, opened = "", 0
    head = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if fence:
            fence = "" if closes(line, fence) else fence
            continue
        if begun := opens(line):
            fence, opened = begun, number
            continue
        if not line.startswith("|"):
            head = 0
            continue
        cells = _cells(line)
        if head and cells != head:
            told = f"{cells} cells in a table of {head} columns; GitHub drops or adds some"
            yield Finding(str(path), number, "BW306", told)
        head = head or cells
    if fence:
        yield Finding(str(path), opened, "BW307", "a code block that nothing closes; close it")


def _cells(line: str) -> int:
    """Cells of a table's row: a bar parts them, in code too, unless it is escaped (GFM)."""
    bare = re.sub(r"\\\|", "", line.strip())
    return bare.removeprefix("|").removesuffix("|").count("|") + 1
