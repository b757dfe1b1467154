"""A cited study as Markdown, every number with its address behind it."""

from __future__ import annotations

from collections.abc import Sequence

from bitworth.record.address import pointer, resolve
from bitworth.record.cited import CitedFact, CitedStudy, CitedTable
from bitworth.record.render_markdown import address_comment, escape

_CITED = (
    "Cited: every number here was published by others and transcribed as it was printed; nobody "
    "here measured it."
)


def cited_value(study: CitedStudy, address: str) -> str:
    """The text of the value at ``address``.

    Raises:
        LookupError: nothing lies there.
    """
    found = resolve(study, address)
    if found is None or not isinstance(found, str):
        raise LookupError(f"{address}: is no text")
    return " ".join(found.split())


def render_cited(study: CitedStudy) -> str:
    """The whole study: what was tried, how, what came out, what was not measured."""
    return "\n\n".join(
        [
            f"# {_at(study, 'title')}",
            f"{_at(study, 'decision')}. {_CITED}",
            _facts("Source", study, "checkpoints", [f"- published in {_at(study, 'source')}"]),
            f"## What is built\n\n{_at(study, 'builds')}",
            _facts("Recipe", study, "recipe"),
            _facts("Method", study, "method"),
            *(_table(study, place, table) for place, table in enumerate(study.tables)),
            _claims(study),
            _list("Why", study, "why"),
            _list("Not measured", study, "not_measured"),
            *([_list("Not possible", study, "not_possible")] if study.not_possible else []),
            _list("Look again when", study, "revisit"),
            *([_list("Notes", study, "notes")] if study.notes else []),
        ]
    ) + "\n"  # fmt: skip


def _at(study: CitedStudy, *path: str | int) -> str:
    address = pointer(*path)
    return escape(cited_value(study, address)) + address_comment(address)


def _facts(title: str, study: CitedStudy, name: str, first: Sequence[str] = ()) -> str:
    facts: Sequence[CitedFact] = getattr(study, name)
    lines = [
        f"- {_at(study, name, k, 'what')}: {_at(study, name, k, 'told')}" for k in range(len(facts))
    ]
    return f"## {title}\n\n" + "\n".join([*first, *lines])


def _list(title: str, study: CitedStudy, name: str) -> str:
    lines = [f"- {_at(study, name, k)}" for k in range(len(getattr(study, name)))]
    return f"## {title}\n\n" + ("\n".join(lines) if lines else "Nothing was said.")


def _table(study: CitedStudy, place: int, table: CitedTable) -> str:
    path = ("tables", place)
    heads = [_at(study, *path, "columns", k, "title") for k in range(len(table.columns))]
    rows = []
    for k, row in enumerate(table.rows):
        cells = [
            "–" if value is None else _at(study, *path, "rows", k, "values", c)
            for c, value in enumerate(row.values)
        ]
        note = f" ({_at(study, *path, 'rows', k, 'note')})" if row.note else ""
        rows.append(f"| {_at(study, *path, 'rows', k, 'cell')}{note} | {' | '.join(cells)} |")
    about = f"Of {_at(study, *path, 'region')}, {_at(study, *path, 'run')}"
    about += f"; a number is of one {_at(study, *path, 'accounting')}."
    return "\n".join(
        [
            f"## {_at(study, *path, 'title')}", "", about, "",
            f"| cell | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads), *rows,
        ]
    )  # fmt: skip


def _claims(study: CitedStudy) -> str:
    lines = [
        f"- {_at(study, 'claims', k, 'text')} ({_at(study, 'claims', k, 'kind')})"
        for k in range(len(study.claims))
    ]
    return "## What was claimed\n\n" + "\n".join(lines)
