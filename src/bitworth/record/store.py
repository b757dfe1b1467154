"""Records as files: canonical JSON, with bulky samples in a gzip file beside it."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from bitworth.atomic import write_atomic
from bitworth.errors import UserError
from bitworth.record.schema import SCHEMA_VERSION, Derived, Record
from bitworth.record.upgrade import upgrade

#: Samples beyond this many bytes of JSON go to a file of their own.
INLINE_SAMPLES_BYTES = 2_000_000
_BULKY = ("samples_ns", "values", "denominators")
_POINTER = "samples_file"


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no space: the same value gives the same bytes everywhere."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def facts_sha256(facts: Any) -> str:
    """Hash of a record's facts as JSON values, with all samples."""
    return sha256(canonical(facts))


def write_record(record: Record, path: Path) -> tuple[Path, ...]:
    """Write ``record`` to ``path``; returns the files written.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    tree = record.model_dump(mode="json")
    written = [path]
    bulk = {pointer: holder[key] for pointer, holder, key in _bulky(tree)}
    if len(canonical(bulk)) > INLINE_SAMPLES_BYTES:
        packed = gzip.compress(canonical(bulk), mtime=0)
        digest = sha256(packed)
        beside = path.with_name(f"{digest}.json.gz")
        write_atomic(beside, packed)
        for _, holder, key in list(_bulky(tree)):
            holder[key] = []
        tree[_POINTER] = beside.name
        written.append(beside)
    write_atomic(path, _readable(tree))
    return tuple(written)


def replace_derived(derived: Derived, path: Path) -> None:
    """Write other conclusions into a record, in today's schema.

    What its facts say and its samples file stay as they are. Facts that were changed since they
    were stored keep the hash that tells it.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    tree = upgrade(_parse(path.read_bytes()))
    tree["facts_sha256"] = _sealed(read_tree(path))["facts_sha256"]
    tree["derived"] = derived.model_dump(mode="json")
    tree["schema_version"] = SCHEMA_VERSION
    write_atomic(path, _readable(tree))


def remove_record(path: Path) -> None:
    """Remove a record and its samples file, if they exist."""
    try:
        name = _parse(path.read_bytes()).get(_POINTER)
    except (OSError, ValueError):
        name = None
    if isinstance(name, str) and Path(name).name == name:
        path.with_name(name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def read_tree(path: Path) -> dict[str, Any]:
    """A record's JSON as it was stored, in whatever version, with its samples.

    Raises:
        UserError: missing, not a record, from a newer Bitworth, or its samples are missing or
            changed.
    """
    try:
        tree = _parse(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such record; give the path of a record's JSON file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a record ({error}); give a record's JSON file") from None
    if not isinstance(tree, dict) or "schema_version" not in tree:
        raise UserError(f"{path}: not a record (no schema_version); give a record's JSON file")
    if isinstance(tree["schema_version"], int) and tree["schema_version"] > SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema version {tree['schema_version']} is newer than this Bitworth reads "
            f"({SCHEMA_VERSION}); upgrade bitworth"
        )
    name = tree.pop(_POINTER, None)
    if name is not None:
        _restore(tree, path, str(name))
    return tree


def is_record(path: Path) -> bool:
    """Whether a file looks like a record, valid or not; other programs write JSON too."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and {"schema_version", "facts"} <= tree.keys()


def read_record(path: Path) -> Record:
    """Read a record with its samples.

    Raises:
        UserError: see ``read_tree``; or it has not what a record has.
    """
    tree = read_tree(path)
    try:
        return Record.model_validate_json(canonical(_sealed(tree)))
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not a valid record ({error} is missing); restore it") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise UserError(f"{path}: not a valid record at {where}: {first['msg']}") from None


def is_sealed(tree: dict[str, Any]) -> bool:
    """Whether the facts are those of which the record has the hash; older records have none."""
    told = tree.get("facts_sha256")
    return told is None or told == facts_sha256(tree["facts"])


def _sealed(tree: dict[str, Any]) -> dict[str, Any]:
    """The record in today's schema, its hash that of the facts in it if it held before."""
    holds, newer = is_sealed(tree), upgrade(tree)
    if newer is tree:
        return tree
    told = facts_sha256(newer["facts"]) if holds else tree["facts_sha256"]
    return {**newer, "facts_sha256": told}


def _restore(tree: dict[str, Any], path: Path, name: str) -> None:
    if Path(name).name != name:
        raise UserError(
            f"{path}: its samples file '{name}' is missing beside it: it lies in another folder"
        )
    beside = path.with_name(name)
    try:
        packed = beside.read_bytes()
    except OSError:
        raise UserError(
            f"{path}: its samples file {name} is missing beside it; restore that file"
        ) from None
    if f"{sha256(packed)}.json.gz" != name:
        raise UserError(f"{beside}: its bytes do not match its name; restore that file")
    bulk = _parse(gzip.decompress(packed))
    for pointer, holder, key in list(_bulky(tree)):
        if isinstance(bulk, dict) and pointer in bulk:
            holder[key] = bulk[pointer]


def _parse(data: bytes) -> Any:
    """JSON without the numbers that JSON does not have.

    Raises:
        ValueError: it is not JSON, or holds NaN or an infinity.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"the number {name} is not JSON")

    def finite(text: str) -> float:
        if not math.isfinite(float(text)):
            refuse(text)
        return float(text)

    return json.loads(data, parse_constant=refuse, parse_float=finite)


def _bulky(node: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _BULKY and isinstance(value, list):
                yield f"{at}/{key}", node, key
            else:
                yield from _bulky(value, f"{at}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _bulky(value, f"{at}/{index}")


def _readable(tree: dict[str, Any]) -> bytes:
    """Canonical, but one line for each leaf list, so that a diff of two records can be read."""
    encoder = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)

    def flat(value: Any) -> bool:
        if isinstance(value, list):
            return all(not isinstance(v, dict) for v in value)
        return not isinstance(value, dict)

    def render(value: Any, indent: str) -> str:
        if flat(value) or not value:
            return encoder.encode(value)
        inner = indent + " "
        if isinstance(value, dict):
            items = [f"{encoder.encode(k)}: {render(v, inner)}" for k, v in sorted(value.items())]
            return "{\n" + ",\n".join(inner + i for i in items) + "\n" + indent + "}"
        items = [render(v, inner) for v in value]
        return "[\n" + ",\n".join(inner + i for i in items) + "\n" + indent + "]"

    return (render(tree, "") + "\n").encode()
