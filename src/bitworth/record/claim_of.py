"""What a number of a record says: as which claim, of what, known how, from how many."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bitworth.record.address import resolve, shown
from bitworth.record.derive import cell_names
from bitworth.record.schema import Record

_VARIANT = re.compile(
    r"^/derived/cells/(\d+)/(variants|splits|conversions|outlooks|latency|cycles)/\d+"
)
_CELL = re.compile(r"^/(?:facts|derived)/cells/(\d+)")
#: Kind, evidence and region of the numbers below a place; the first that fits.
_KINDS: tuple[tuple[re.Pattern[str], str, str, str], ...] = (
    (re.compile(r"/comparison/|/against_best/|/comparisons/\d+/"), "ratio", "measured",
     "time of a whole call over the baseline's, both of one job"),
    (re.compile(r"/cycles/\d+/"), "ratio", "measured", "clock cycles of a whole call"),
    (re.compile(r"/losses/\d+/"), "measurement", "", "loss from the baseline, on held-out samples"),
    (re.compile(r"/scores/|/rel_l2$"), "measurement", "", "quality on held-out samples"),
    (re.compile(r"/outlooks/\d+/ceiling_speedup$"), "bound", "derived",
     "speed-up of a whole call at the least times that the device was measured to need"),
    (re.compile(r"/outlooks/\d+/expected_speedup$"), "estimate", "estimated",
     "speed-up of a whole call, from products timed alone"),
    (re.compile(r"/outlooks/\d+/reached_ratio$"), "share", "derived",
     "time that was saved, of what could be saved at most"),
    (re.compile(r"/bounds/\d+/ceiling_speedup$"), "bound", "derived",
     "speed-up of a whole call if the group took no time at all"),
    (re.compile(r"/share_\w+$|/profile_coverage$|/(gap|coverage)_ratio$"), "share", "derived",
     "time in the plan's own profile"),
    (re.compile(r"/latency/\d+/"), "measurement", "measured",
     "absolute time of this run alone; no other run's compares with it"),
    (re.compile(r"/call_time_ratio$"), "ratio", "measured", "time of a whole call"),
    (re.compile(r"/(plan_bytes_ratio|peak_bytes|load_ns)$"), "measurement", "measured",
     "the plan, and the process that runs it"),
    (re.compile(r"^/facts/"), "fact", "measured", "as it was observed or asked for"),
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What a number says.

    Attributes:
        text: as every output shows it.
        kind: measurement, ratio, share, bound, estimate or fact; conclusion for what is none.
        evidence: how it is known.
        region: what it is of.
        cell: name of its cell; empty: of the whole study.
        variant: empty: of no single one.
        baseline: what it is compared with; empty: with nothing.
        n: sessions or samples behind it; None: not that kind.
        interval: as shown; empty: it has none.
    """

    text: str
    kind: str
    evidence: str
    region: str
    cell: str
    variant: str
    baseline: str
    n: int | None
    interval: str


def told(record: Record, address: str) -> Told:
    """What the value at ``address`` says.

    Raises:
        LookupError: nothing lies there.
    """
    text = shown(record, address)
    cell = _CELL.match(address)
    name = cell_names(record.facts)[int(cell[1])] if cell else ""
    kind, evidence, region = "conclusion", "derived", "what follows from the facts by rule"
    for pattern, *found in _KINDS:
        if pattern.search(address):
            kind, evidence, region = found
            break
    place = _VARIANT.match(address)
    variant = str(resolve(record, f"{place[0]}/variant")) if place else ""
    n, interval, baseline = None, "", ""
    if re.search(r"/(comparison|against_best)/", address):
        base = re.sub(r"/(comparison|against_best)/.*$", r"/\1", address)
        baseline = str(resolve(record, f"{base}/baseline"))
        sessions = resolve(record, f"{base}/sessions")
        n = sessions if isinstance(sessions, int) else None
        ends = [shown(record, f"{base}/time_ratio_{end}") for end in ("high", "low")]
        interval = "" if "unknown" in ends else " to ".join(ends)
    elif found_loss := re.match(r"(.*/losses/\d+)/", address):
        samples = resolve(record, f"{found_loss[1]}/n")
        n = samples if isinstance(samples, int) else None
        ends = [shown(record, f"{found_loss[1]}/{end}") for end in ("low", "high")]
        interval, baseline = " to ".join(ends), "baseline"
    if not evidence:
        known = resolve(record, f"{place[0]}/evidence") if place else "measured"
        evidence = str(known)
    return Told(text, kind, evidence, region, name, variant, baseline, n, interval)
