"""Cited studies as files."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from bitworth.errors import UserError
from bitworth.record.cited import CITED_VERSION, CitedStudy
from bitworth.record.claims import Number


def is_cited(path: Path) -> bool:
    """Whether a file looks like a cited study, valid or not."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and "cited_version" in tree


def read_cited(path: Path) -> CitedStudy:
    """The cited study in ``path``.

    Raises:
        UserError: it cannot be read, is of another version, or is no cited study.
    """
    try:
        tree = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is no JSON ({error})") from None
    version = tree.get("cited_version") if isinstance(tree, dict) else None
    if version != CITED_VERSION:
        raise UserError(
            f"{path}: its cited_version is {version}, this Bitworth reads {CITED_VERSION}"
        )
    try:
        study = CitedStudy.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UserError(f"{path}: {where}: {first['msg']}") from None
    for table in study.tables:
        for row in table.rows:
            if len(row.values) != len(table.columns):
                raise UserError(
                    f"{path}: table {table.name}, row {row.name}: {len(row.values)} values for "
                    f"{len(table.columns)} columns"
                )
            for value in row.values:
                try:
                    Number.printed(value or "0")
                except ValueError as error:
                    raise UserError(
                        f"{path}: table {table.name}, row {row.name}: {error}; a unit is its "
                        "column's"
                    ) from None
        names = {column.name for column in table.columns}
        for column in table.columns:
            if column.formula is not None and not set(column.formula[1:]) <= names:
                raise UserError(
                    f"{path}: table {table.name}, column {column.name}: its formula names a "
                    "column that the table has not"
                )
    return study


def written_cited(study: CitedStudy) -> bytes:
    """The file of a cited study."""
    return (study.model_dump_json(indent=1, exclude_defaults=False) + "\n").encode()
