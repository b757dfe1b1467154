"""Where code begins and ends in Markdown (CommonMark 0.31, fenced code blocks)."""

from __future__ import annotations

import re

_OPENS = re.compile(r"^ {0,3}(?:(`{3,})[^`]*|(~{3,}).*)$")


def opens(line: str) -> str:
    """The fence that ``line`` opens; empty for none. Backticks that close in it are no fence."""
    found = _OPENS.match(line)
    return (found[1] or found[2]) if found else ""


def closes(line: str, fence: str) -> bool:
    """Whether ``line`` closes ``fence``: as many of its marks or more, and nothing behind them."""
    marks = line.strip()
    return len(marks) >= len(fence) and set(marks) == {fence[0]}
