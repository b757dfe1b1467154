"""What each number of a record says."""

from __future__ import annotations

import re

import pytest

from bitworth.record.address import read
from bitworth.record.claim_of import told
from bitworth.record.render_markdown import render_markdown
from bitworth.record.schema import Record


def test_a_speedup_is_a_measured_ratio_with_its_interval(record: Record) -> None:
    cell = record.derived.cells[0]
    place = next(i for i, v in enumerate(cell.variants) if v.variant == "int8 all")
    base = f"/derived/cells/0/variants/{place}"
    made = cell.variants[place].comparison
    assert made is not None
    found = told(record, f"{base}/comparison/time_ratio")
    assert (found.kind, found.evidence) == ("ratio", "measured")
    assert (found.variant, found.baseline, found.n) == ("int8 all", "baseline", made.sessions)
    assert found.cell.startswith("onnxruntime 1.")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", found.interval)
    loss = told(record, f"{base}/losses/0/loss")
    assert (loss.kind, loss.evidence, loss.n) == ("measurement", "measured", 200)


def test_quality_that_was_emulated_says_so(record: Record) -> None:
    cell = record.derived.cells[0]
    place = next(i for i, v in enumerate(cell.variants) if v.evidence == "emulated")
    assert told(record, f"/derived/cells/0/variants/{place}/rel_l2").evidence == "emulated"


def test_shares_bounds_and_facts(record: Record) -> None:
    assert told(record, "/derived/cells/0/bounds/0/share_of_profile").kind == "share"
    bound = told(record, "/derived/cells/0/bounds/0/ceiling_speedup")
    assert (bound.kind, bound.evidence) == ("bound", "derived")
    assert told(record, "/facts/environment/cores").kind == "fact"
    assert told(record, "/derived/decision/sentence").kind == "conclusion"


@pytest.mark.parametrize("which", ["record", "partial_record", "rival_record"])
def test_every_number_that_is_shown_says_something(
    which: str, request: pytest.FixtureRequest
) -> None:
    record: Record = request.getfixturevalue(which)
    text = render_markdown(record, "a.svg")
    found_in = re.findall(r"<!-- bw:(\S+) -->", text)
    addresses = {read(a) for a in found_in if not a.endswith("~#")}
    assert len(addresses) > 50
    for address in addresses:
        found = told(record, address)
        assert found.kind
        assert found.evidence in ("measured", "derived", "emulated", "estimated", "none")
        assert found.region


def test_an_address_without_a_value(record: Record) -> None:
    with pytest.raises(LookupError):
        told(record, "/derived/cells/9/decision")
