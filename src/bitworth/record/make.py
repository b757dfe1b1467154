"""A record from its facts."""

from __future__ import annotations

from bitworth.record.derive import derive
from bitworth.record.schema import Facts, Record
from bitworth.record.store import facts_sha256


def make_record(id_: str, facts: Facts) -> Record:
    """The record of these facts, with their hash and what follows from them."""
    tree = facts.model_dump(mode="json")
    return Record(id=id_, facts_sha256=facts_sha256(tree), facts=facts, derived=derive(facts))
