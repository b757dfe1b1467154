"""A study that someone else published: its tables as printed, and its claims as typed data.

Numbers are kept as the text that was printed, since the last place says how they were rounded. A
number is addressed as ``TABLE/ROW/COLUMN``, rows by their name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bitworth.record.part import Part

CITED_VERSION: Literal[1] = 1
Known = Literal["measured", "derived", "emulated", "estimated"]


class CitedColumn(Part):
    """A column of numbers. What is empty is that of its table."""

    name: str
    title: str
    variant: str
    unit: str = ""
    region: str = ""
    run: str = ""
    accounting: str = ""
    baseline: str = ""
    evidence: Known | Literal[""] = ""
    formula: tuple[Literal["ratio", "difference"], str, str] | None = Field(
        default=None, description="of two columns of the same row"
    )


class CitedRow(Part):
    """A row: where its numbers are from, and the numbers as printed; None: nothing was printed."""

    name: str
    cell: str
    values: tuple[str | None, ...]
    note: str = ""


class CitedTable(Part):
    """Numbers that were printed together."""

    name: str
    title: str
    region: str
    run: str
    accounting: str
    baseline: str = ""
    unit: str = ""
    evidence: Known = "measured"
    n: int | None = None
    columns: tuple[CitedColumn, ...]
    rows: tuple[CitedRow, ...]


class CitedRegion(Part):
    """A part of the work, and the parts that it has itself."""

    name: str
    parts: tuple[str, ...]


class CitedLayer(Part):
    """Where a layer runs, and how many rows it has, by the graph."""

    name: str
    runs_in: str
    rows: str


class CitedClaim(Part):
    """A sentence with numbers.

    Kinds and what they need: ``range``: low, high, over (columns) and the variants that it names;
    ``bound`` and ``estimate``: value, of, times; ``share``: value, of (part, whole), region,
    counted, leaves_out; ``ratio``: value, of; ``placement``: layers; ``statement``: nothing.
    """

    name: str
    text: str
    kind: Literal["range", "bound", "estimate", "share", "ratio", "placement", "statement"]
    value: str | None = None
    low: str | None = None
    high: str | None = None
    over: tuple[str, ...] = Field(default=(), description="TABLE/COLUMN, for a range")
    floor: str = Field(default="", description="TABLE/ROW/COLUMN that a range's numbers are over")
    variants: tuple[str, ...] = ()
    cells: tuple[str, ...] = Field(default=(), description="empty: all that the tables have")
    of: tuple[str, ...] = Field(default=(), description="TABLE/ROW/COLUMN")
    times: str = "1"
    region: str = ""
    counted: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    layers: tuple[CitedLayer, ...] = ()


class CitedFact(Part):
    """A line of the recipe, the method or the environment."""

    what: str
    told: str


class CitedStudy(Part):
    """A published study; every number in it is ``cited``: nobody here measured it."""

    cited_version: Literal[1] = CITED_VERSION
    id: str
    title: str
    family: str
    source: str = Field(description="where it was published")
    checkpoints: tuple[CitedFact, ...]
    builds: str
    recipe: tuple[CitedFact, ...]
    method: tuple[CitedFact, ...]
    tables: tuple[CitedTable, ...]
    regions: tuple[CitedRegion, ...] = ()
    layers: tuple[CitedLayer, ...] = Field(default=(), description="as the graph has them")
    claims: tuple[CitedClaim, ...]
    why: tuple[str, ...]
    decision: str
    not_measured: tuple[str, ...]
    not_possible: tuple[str, ...] = ()
    revisit: tuple[str, ...]
    notes: tuple[str, ...] = ()
