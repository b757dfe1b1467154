"""Findings as text, as annotations of a GitHub workflow, and as SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from bitworth.lint.finding import RULES, Finding


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding: ``path:line: rule name: message``."""
    return "\n".join(
        f"{f.path}:{f.line}: {f.rule} {RULES[f.rule].name}: {f.message}" for f in findings
    )


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands, which GitHub shows beside the lines that they name.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    return "\n".join(
        f"::error file={_property(f.path)},line={f.line},"
        f"title={_property(f'{f.rule} {RULES[f.rule].name}')}::{_data(f.message)}"
        for f in findings
    )


def as_json(findings: Sequence[Finding], files: int) -> str:
    """The findings and the number of files as one JSON object."""
    told = [{**vars(f), "name": RULES[f.rule].name} for f in findings]
    return json.dumps({"files": files, "findings": told})


def as_sarif(findings: Sequence[Finding], version: str) -> str:
    """A SARIF log (OASIS, Static Analysis Results Interchange Format 2.1.0)."""
    rules = list(RULES.values())
    places = {rule.id: place for place, rule in enumerate(rules)}
    driver: dict[str, Any] = {
        "name": "bitworth lint",
        "version": version,
        "rules": [
            {"id": r.id, "name": r.name, "shortDescription": {"text": r.asks}} for r in rules
        ],
    }
    results = [
        {
            "ruleId": f.rule,
            "ruleIndex": places[f.rule],
            "level": "error",
            "message": {"text": f.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(PurePath(f.path).as_posix())},
                        "region": {"startLine": f.line},
                    }
                }
            ],
        }
        for f in findings
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=1)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
