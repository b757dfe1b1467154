"""What the claims of a published study come to, formed as typed claims from its printed tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bitworth.record.cited import CitedClaim, CitedColumn, CitedRow, CitedStudy, CitedTable
from bitworth.record.claims import (
    ClaimError,
    Measurement,
    Number,
    Place,
    agrees,
    bound,
    covered,
    difference,
    estimate,
    ratio,
    share,
)


@dataclass(frozen=True)
class ClaimFault:
    """Something that a study says and its own numbers do not.

    Attributes:
        where: the claim's name, or ``TABLE/ROW/COLUMN``.
        rule: of ``ClaimError``, or ``graph``, ``unnamed``, ``unknown``.
        message: what is wrong, with the numbers.
    """

    where: str
    rule: str
    message: str


def claim_faults(study: CitedStudy) -> tuple[ClaimFault, ...]:
    """Everything that is wrong with a study's printed results and claims."""
    return (
        *_arithmetic(study),
        *_parts(study),
        *(fault for claim in study.claims for fault in _claim(study, claim)),
    )


def number_at(study: CitedStudy, address: str) -> Measurement:
    """The number at ``TABLE/ROW/COLUMN``.

    Raises:
        LookupError: there is none.
    """
    found = address.split("/")
    if len(found) != 3:
        raise LookupError(f"'{address}' is no TABLE/ROW/COLUMN")
    table = next((t for t in study.tables if t.name == found[0]), None)
    row = next((r for r in table.rows if r.name == found[1]), None) if table else None
    column = next((c for c in table.columns if c.name == found[2]), None) if table else None
    if table is None or row is None or column is None:
        raise LookupError(f"'{address}' is in no table")
    measured = _number(study, table, row, column)
    if measured is None:
        raise LookupError(f"'{address}' was not printed")
    return measured


def _number(
    study: CitedStudy, table: CitedTable, row: CitedRow, column: CitedColumn
) -> Measurement | None:
    text = row.values[table.columns.index(column)]
    if text is None:
        return None
    place = Place(
        run=column.run or table.run,
        cell=row.cell,
        region=column.region or table.region,
        accounting=column.accounting or table.accounting,
        baseline=column.baseline or table.baseline,
    )
    return Measurement(
        Number.printed(text),
        column.unit or table.unit,
        column.variant,
        place,
        column.evidence or table.evidence,
        table.n,
        source=study.source,
    )


def _arithmetic(study: CitedStudy) -> Iterator[ClaimFault]:
    """Printed results of columns that do not follow from the columns that they are formed of."""
    for table in study.tables:
        columns = {c.name: c for c in table.columns}
        for column in table.columns:
            if column.formula is None:
                continue
            kind, one, other = column.formula
            for row in table.rows:
                found = [_number(study, table, row, c) for c in (columns[one], columns[other])]
                printed = row.values[table.columns.index(column)]
                if printed is None or found[0] is None or found[1] is None:
                    continue
                where = f"{table.name}/{row.name}/{column.name}"
                yield from _result(where, printed, kind, found[0], found[1])


def _result(
    where: str, printed: str, kind: str, one: Measurement, other: Measurement
) -> Iterator[ClaimFault]:
    try:
        if kind == "ratio":
            made = ratio(one, other)
            value, low, high = made.value, made.low, made.high
        else:
            number = difference(one, other).number
            value, (low, high) = number.value, number.ends
    except ClaimError as error:
        yield ClaimFault(where, error.rule, str(error))
        return
    if not agrees(Number.printed(printed), low, high):
        sign = "/" if kind == "ratio" else "-"
        text = f"{one.number.value:g} {sign} {other.number.value:g} = {value:.4g}"
        yield ClaimFault(where, "arithmetic", f"{text}, printed {printed}")


def _parts(study: CitedStudy) -> Iterator[ClaimFault]:
    """Parts of a region that are printed as more than the region itself, in one account."""
    numbers = [
        (f"{table.name}/{row.name}/{column.name}", found)
        for table in study.tables
        for row in table.rows
        for column in table.columns
        if (found := _number(study, table, row, column)) is not None
    ]
    for region in study.regions:
        for where, part in numbers:
            if part.place.region not in region.parts:
                continue
            for of, whole in numbers:
                same = (whole.variant, whole.unit) == (part.variant, part.unit) and (
                    whole.place == replace(part.place, region=region.name, run=whole.place.run)
                )
                if same and part.number.ends[0] > whole.number.ends[1]:
                    text = f"{part.number.value:g} is a part of {whole.number.value:g} ({of})"
                    yield ClaimFault(where, "share", f"{text}: they are not of one account")


def _claim(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    check = {
        "range": _range, "bound": _bound, "estimate": _estimate, "share": _share, "ratio": _ratio,
        "placement": _placement,
    }.get(claim.kind)  # fmt: skip
    if check is None:
        return
    try:
        yield from check(study, claim)
    except ClaimError as error:
        yield ClaimFault(claim.name, error.rule, str(error))
    except (LookupError, ValueError) as error:
        yield ClaimFault(claim.name, "unknown", str(error))


def _range(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    members: list[Measurement] = []
    for address in claim.over:
        name, _, column_name = address.partition("/")
        table = next((t for t in study.tables if t.name == name), None)
        column = next((c for c in table.columns if c.name == column_name), None) if table else None
        if table is None or column is None:
            raise LookupError(f"'{address}' is no TABLE/COLUMN")
        members += [
            found
            for row in table.rows
            if (found := _number(study, table, row, column)) is not None
            and (not claim.cells or row.cell in claim.cells)
        ]
    told = set(claim.variants)
    if not told:
        names = ", ".join(dict.fromkeys(m.variant for m in members)) or "none"
        yield ClaimFault(
            claim.name, "unnamed", f"the range names no variant; its numbers are of {names}"
        )
    elif untold := {m.variant for m in members} - told:
        raise LookupError(f"the range takes numbers of {', '.join(sorted(untold))}, unnamed")
    missing = told - {m.variant for m in members}
    missing |= set(claim.cells) - {m.place.cell for m in members}
    if missing:
        raise LookupError(f"the range names {', '.join(sorted(missing))}, without a number of it")
    low, high = Number.printed(claim.low or ""), Number.printed(claim.high or "")
    covered(low, high, _over_floor(study, claim, members))


def _over_floor(
    study: CitedStudy, claim: CitedClaim, members: list[Measurement]
) -> list[Measurement]:
    """The numbers as printed, which a range copies, or each over the claim's floor."""
    if not claim.floor:
        return [replace(m, number=Number(m.number.value)) for m in members]
    floor = number_at(study, claim.floor)
    found = []
    for member in members:
        made = ratio(member, floor)
        found.append(replace(member, number=Number(made.value, (made.high - made.low) / 2)))
    return found


def _bound(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    numbers = [number_at(study, address) for address in claim.of]
    bound(Number.printed(claim.value or "").value, numbers)
    yield from _product(claim, numbers)


def _estimate(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    yield from _product(claim, [number_at(study, address) for address in claim.of])


def _product(claim: CitedClaim, numbers: list[Measurement]) -> Iterator[ClaimFault]:
    """The largest of the numbers times what they occur in."""
    times = Number.printed(claim.times).value
    largest = max(numbers, key=lambda m: m.number.value)
    made = estimate(largest, times)
    low, high = (end * times for end in largest.number.ends)
    if not agrees(Number.printed(claim.value or ""), low, high):
        text = f"{largest.number.value:g} x {times:g} = {made.value:.4g}, printed {claim.value}"
        yield ClaimFault(claim.name, "arithmetic", text)


def _share(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    region = next((r for r in study.regions if r.name == claim.region), None)
    if region is None:
        raise LookupError(f"'{claim.region}' is no region of the study")
    part, whole = (number_at(study, address) for address in claim.of)
    if whole.place.region != region.name:
        raise LookupError(f"the whole is of '{whole.place.region}', not of '{region.name}'")
    if unknown := set(claim.counted) - set(region.parts):
        raise LookupError(f"'{region.name}' has no part {', '.join(sorted(unknown))}")
    made = share(part, whole, claim.counted, region.parts, claim.leaves_out)
    printed = Number.printed(claim.value or "")
    if not agrees(printed, made.low, made.high):
        text = f"{part.number.value:g} / {whole.number.value:g} = {made.value:.4g}"
        yield ClaimFault(claim.name, "arithmetic", f"{text}, printed {claim.value}")


def _ratio(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    one, other = (number_at(study, address) for address in claim.of)
    yield from _result(claim.name, claim.value or "", "ratio", one, other)


def _placement(study: CitedStudy, claim: CitedClaim) -> Iterator[ClaimFault]:
    graph = {layer.name: layer for layer in study.layers}
    for said in claim.layers:
        known = graph.get(said.name)
        if known is None:
            raise LookupError(f"the graph has no layer '{said.name}'")
        for what in ("runs_in", "rows"):
            one, other = getattr(said, what), getattr(known, what)
            if one and one != other:
                text = f"'{said.name}' is said to have {what} '{one}', and the graph has '{other}'"
                yield ClaimFault(claim.name, "graph", text)
