"""The tables about profiles: where the time of each plan goes, and what did not fuse."""

from __future__ import annotations

from bitworth.record.cells import NONE, Cell, Column, Table, at, columns, line
from bitworth.record.op_classes import CLASSES
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title


def split_table(record: Record, i: int) -> Table:
    """Shares of the time by class of work, a column for each plan of cell ``i``."""
    splits = record.derived.cells[i].splits
    path = ("derived", "cells", i, "splits")
    rows = []
    for name in CLASSES:
        places = [
            next((k for k, share in enumerate(s.by_class) if share.name == name), None)
            for s in splits
        ]
        if any(k is not None for k in places):
            cells = (
                NONE if k is None else at(record, *path, j, "by_class", k, "share_of_profile")
                for j, k in enumerate(places)
            )
            rows.append((line(name), *cells))
    for what, field in (
        ("layers", "layers"),
        ("time of all layers", "layers_ns"),
        ("a call without the profiler", "plain_ns"),
        ("of that in no layer", "gap_ratio"),
        ("mapped to sites", "coverage_ratio"),
    ):
        cells = (
            NONE if getattr(s, field) is None else at(record, *path, j, field)
            for j, s in enumerate(splits)
        )
        rows.append((line(what), *cells))
    heads = [Column(at(record, *path, j, "variant"), True, "") for j in range(len(splits))]
    notes = (
        line(
            "Shares of the time of all layers, from each plan's own profile. A call takes longer "
            "than its layers by what the engine does between them; where the share is negative "
            "the profiler took that much."
        ),
    )
    title = line("Share of the time by kind of work: ", cell_title(record, i))
    return Table(title, (Column(line("work"), False, ""), *heads), tuple(rows), notes)


def outlook_table(record: Record, i: int) -> Table:
    """What each variant of cell ``i`` could give at most, and gave."""
    path = ("derived", "cells", i, "outlooks")
    cell = record.derived.cells[i]
    place = {v.variant: j for j, v in enumerate(cell.variants)}
    rows = []
    for k, found in enumerate(cell.outlooks):
        j = place[found.variant]
        timed = cell.variants[j].comparison
        known = timed is not None and timed.verdict != "void" and timed.time_ratio is not None
        measured = ("derived", "cells", i, "variants", j, "comparison", "time_ratio")
        rows.append(
            (
                at(record, *path, k, "variant"),
                at(record, *path, k, "share_of_profile"),
                line(at(record, *path, k, "ceiling_speedup")),
                NONE
                if found.expected_speedup is None
                else at(record, *path, k, "expected_speedup"),
                line(at(record, *measured), "×") if known else NONE,
                NONE if found.reached_ratio is None else at(record, *path, k, "reached_ratio"),
            )
        )
    titles = (
        "variant", ">share of profiled time", ">at most (derived)", ">expected (estimated)",
        ">measured", ">of what could be saved",
    )  # fmt: skip
    notes = (
        line(
            "At most: its sites at the highest rates that this device was measured to reach, what "
            "lies between them by its bytes, all else as it is. Expected: products of the sites' "
            "own shapes, timed alone; no bound. Formats that were not measured have no row."
        ),
    )
    title = line("What each variant could give: ", cell_title(record, i))
    return Table(title, columns(*titles), tuple(rows), notes if rows else ())


def group_table(record: Record, i: int) -> Table:
    """Shares of the time by group, a column for each plan of cell ``i``."""
    splits = record.derived.cells[i].splits
    path = ("derived", "cells", i, "splits")
    count = len(splits[0].by_group) if splits else 0
    rows = tuple(
        (
            at(record, *path, 0, "by_group", k, "name"),
            *(at(record, *path, j, "by_group", k, "share_of_profile") for j in range(len(splits))),
        )
        for k in range(count)
    )
    heads = [Column(at(record, *path, j, "variant"), True, "") for j in range(len(splits))]
    title = line("Share of the time by group: ", cell_title(record, i))
    return Table(title, (Column(line("group"), False, ""), *heads), rows)


def kernel_table(record: Record, i: int) -> Table:
    """The kernels of each plan of cell ``i``, the longest first."""
    path = ("derived", "cells", i, "splits")
    rows = tuple(
        (
            at(record, *path, j, "variant"),
            *(
                at(record, *path, j, "by_kernel", k, field)
                for field in ("name", "format", "layers", "share_of_profile")
            ),
        )
        for j, split in enumerate(record.derived.cells[i].splits)
        for k in range(len(split.by_kernel))
    )
    titles = ("variant", "kernel", "format", ">layers", ">share of the time")
    return Table(line("Kernels: ", cell_title(record, i)), columns(*titles), rows)


def conversion_table(record: Record, i: int) -> Table:
    """What each variant of cell ``i`` converts beside its products, against the baseline."""
    path = ("derived", "cells", i, "conversions")
    fields = (
        "variant", "layers_before", "layers_after", "count_before", "count_after", "share_before",
        "share_after", "share_added",
    )  # fmt: skip
    found = record.derived.cells[i].conversions
    rows = tuple(
        (
            *(at(record, *path, j, field) for field in fields),
            at(record, *path, j, "unchanged"),
        )
        for j in range(len(found))
    )
    titles = (
        "variant", ">layers before", ">after", ">conversions before", ">after",
        ">share of its time before", ">after", ">added to the baseline's time",
        ">sites in the baseline's format",
    )  # fmt: skip
    title = line("Quantize, dequantize, cast and reformat layers: ", cell_title(record, i))
    return Table(title, columns(*titles), rows)


def unfused_table(record: Record, i: int) -> Table:
    """Conversions of cell ``i`` that the baseline does not have, and what kept each from fusing."""
    path = ("derived", "cells", i, "conversions")
    rows: list[tuple[Cell, ...]] = []
    for j, found in enumerate(record.derived.cells[i].conversions):
        for k, told in enumerate(found.told):
            here = (*path, j, "told", k)
            readers = [
                part
                for n in range(len(told.readers))
                for part in (", " if n else "", at(record, *here, "readers", n))
            ]
            rows.append(
                (
                    at(record, *path, j, "variant"),
                    at(record, *here, "op"),
                    at(record, *here, "share_of_profile"),
                    at(record, *here, "producer") if told.producer else NONE,
                    line(*readers) if readers else NONE,
                    at(record, *here, "why"),
                )
            )
    titles = ("variant", "layer", ">share of the time", "behind", "before", "why it is there")
    title = line("Conversions that did not fuse: ", cell_title(record, i))
    return Table(title, columns(*titles), tuple(rows))
