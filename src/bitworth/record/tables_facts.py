"""The tables of facts: recipes, errors by output, data, policy, environment and what is open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bitworth.recipe.consistency import needs_ranges
from bitworth.recipe.granularity import PerBlock
from bitworth.recipe.recipe import Quantize, Recipe
from bitworth.record.cells import NONE, Cell, Path, Table, at, columns, joined, key, line
from bitworth.record.schema import Record
from bitworth.record.tables import cell_title


def recipe_table(record: Record, i: int) -> Table:
    """The resolved recipe of every variant of cell ``i``, one row for each group."""
    rows: list[tuple[Cell, ...]] = []
    for j in range(len(record.facts.cells[i].variants)):
        rows += _recipe_rows(record, i, j)
    titles = (
        "variant", "base", "group", "format", "weights", "activations", "zero point", "calibrator",
        "outputs quantized", ">sites", ">dead", ">left out",
    )  # fmt: skip
    preferences = record.facts.cells[i].preferences
    path = ("facts", "cells", i, "preferences")
    notes = []
    if preferences:
        told = [
            line(key(record, *path, name), " ", at(record, *path, name))
            for name in sorted(preferences)
        ]
        notes = [line("Where a recipe says auto, this engine prefers: ", joined("; ", told), ".")]
    return Table(cell_title(record, i), columns(*titles), tuple(rows), tuple(notes))


def site_table(record: Record, i: int) -> Table:
    """Sites of cell ``i`` that are dead or left out, and what a 16-bit base could not hold."""
    rows: list[tuple[Cell, ...]] = []
    for j, variant in enumerate(record.facts.cells[i].variants):
        path = ("facts", "cells", i, "variants", j)
        for kind, word, pairs in (
            ("dead", "dead", variant.dead),
            ("left_out", "left out", variant.left_out),
            ("kept", "kept in fp32", variant.kept),
            ("overflow", "overflow", variant.overflow),
        ):
            rows += [
                (
                    at(record, *path, "name"),
                    line(word),
                    at(record, *path, kind, k, 0),
                    at(record, *path, kind, k, 1),
                )
                for k in range(len(pairs))
            ]
    return Table(
        line("Sites that are dead or left out: ", cell_title(record, i)),
        columns("variant", "what", "site", "reason"),
        tuple(rows),
    )


def output_table(record: Record, i: int) -> Table:
    """Error of every output of every variant of cell ``i`` against the fp32 reference."""
    rows: list[tuple[Cell, ...]] = []
    for j, variant in enumerate(record.facts.cells[i].variants):
        quality = variant.quality
        for name in sorted(quality.outputs) if quality is not None else ():
            path = ("facts", "cells", i, "variants", j, "quality", "outputs", name)
            values = ("rel_l2", "cosine", "sqnr_db", "max_abs", "non_finite")
            rows.append(
                (
                    at(record, "facts", "cells", i, "variants", j, "name"),
                    key(record, *path),
                    *(at(record, *path, value) for value in values),
                )
            )
    titles = (
        "variant", "output", ">relative L2", ">cosine", ">SQNR, dB", ">max abs", ">not finite"
    )  # fmt: skip
    title = line("Error of every output: ", cell_title(record, i))
    return Table(title, columns(*titles), tuple(rows))


def subject_table(record: Record) -> Table:
    """What was studied."""
    subject = record.facts.subject
    path = ("facts", "subject")
    opset = line(at(record, *path, "opset"), ", studied at ", at(record, *path, "prepared_opset"))
    rows = [
        ("model", at(record, *path, "name")),
        ("source", at(record, *path, "source")),
        ("SHA256", at(record, *path, "sha256")),
        ("opset", opset) if subject.kind == "onnx" else ("base", at(record, *path, "base")),
        ("sites", at(record, *path, "sites")),
        ("attention matmuls left alone", at(record, *path, "attention_left_alone")),
        ("weighted operations that are no site", at(record, *path, "uncovered")),
        (
            "denormal weights",
            line(at(record, *path, "denormal_weights"), " of ", at(record, *path, "weights")),
        ),
    ]
    if not subject.denormal_weights:
        rows.pop()
    return _pairs("Subject", rows)


def data_table(record: Record) -> Table:
    """The data that calibrated and the data that judged."""
    data = record.facts.data
    rows = []
    for name, word, split in (
        ("calibration", "calibration", data.calibration),
        ("holdout", "held out", data.holdout),
    ):
        path = ("facts", "data", name)
        shapes = [
            _shapes(record, (*path, "shapes", k), shape) for k, shape in enumerate(split.shapes)
        ]
        count, hash_ = at(record, *path, "count"), at(record, *path, "sha256")
        rows.append((line(word), count, hash_, joined("; ", shapes) if shapes else NONE))
    checked = data.calibration.count > 0 and not data.random
    notes = [
        line(
            "Source: ", at(record, "facts", "data", "source"), ", seed ",
            at(record, "facts", "data", "seed"), ". ",
            "No sample is in both splits." if checked else "",
        )
    ]  # fmt: skip
    notes += [
        line(
            at(record, "facts", "data", "non_finite_activations", name),
            " activations of ", key(record, "facts", "data", "non_finite_activations", name),
            " were not finite in calibration, and entered no range.",
        )
        for name in sorted(data.non_finite_activations)
    ]  # fmt: skip
    if data.random:
        notes.append(line("The inputs are random: they say nothing about quality."))
    for metric in sorted(record.derived.resolvable_loss):
        here = ("derived", "resolvable_loss", metric)
        found = (key(record, *here), ": a loss of ", at(record, *here), " can be resolved.")
        notes.append(line(*found))
    titles = ("split", ">samples", "SHA256", "shapes")
    return Table(line("Data"), columns(*titles), tuple(rows), tuple(notes))


def policy_table(record: Record) -> Table:
    """What a variant must reach to be shipped."""
    policy = record.facts.policy
    path = ("facts", "policy")
    rows: list[tuple[str | Cell, Cell]] = [("speed-up at least", at(record, *path, "min_speedup"))]
    for k in range(len(policy.max_loss)):
        metric, limit = (at(record, *path, "max_loss", k, end) for end in (0, 1))
        rows.append((line("loss of ", metric, " at most"), limit))
    if policy.max_rel_l2 is not None:
        rows.append(("relative L2 at most", at(record, *path, "max_rel_l2")))
    if policy.max_error_over_floor is not None:
        error = at(record, *path, "max_error_over_floor")
        rows.append(("error over the baseline's own at most", error))
    return _pairs("Policy", rows)


def environment_table(record: Record) -> Table:
    """Where the study ran."""
    path = ("facts", "environment")
    environment = record.facts.environment
    rows: list[tuple[str | Cell, Cell]] = [
        ("date", at(record, "facts", "created")),
        ("processor", at(record, *path, "cpu")),
        ("cores", at(record, *path, "cores")),
        ("memory", at(record, *path, "memory_bytes")),
        ("platform", at(record, *path, "platform")),
        ("Python", at(record, *path, "python")),
        ("Bitworth", at(record, *path, "bitworth")),
    ]
    for name in sorted(environment.libraries):
        here = (*path, "libraries", name)
        rows.append((key(record, *here), at(record, *here)))
    return _pairs("Machine", rows)


def engine_table(record: Record, i: int) -> Table:
    """The engine of cell ``i``: device, options, formats and what else it told."""
    cell = record.facts.cells[i]
    path = ("facts", "cells", i)
    rows: list[tuple[str | Cell, Cell]] = [
        ("device", at(record, *path, "device")),
        ("mode", at(record, *path, "mode")),
    ]
    for name in sorted(cell.shape):
        here = (*path, "shape", name)
        rows.append((line("input ", key(record, *here)), _dimensions(record, here)))
    for part, word in (("options", "option "), ("details", "")):
        for name in sorted(getattr(cell, part)):
            here = (*path, part, name)
            rows.append((line(word, key(record, *here)), at(record, *here)))
    for name, (_, reason) in sorted(cell.formats.items()):
        here = (*path, "formats", name)
        why = line(": ", at(record, *here, 1)) if reason else line()
        rows.append((line("format ", key(record, *here)), line(at(record, *here, 0), why)))
    table = _pairs("", rows)
    return Table(line("Engine: ", cell_title(record, i)), table.columns, table.rows)


def not_run_table(record: Record) -> Table:
    """Everything that was not run, and why."""
    rows = tuple(
        (at(record, "facts", "not_run", k, "what"), at(record, "facts", "not_run", k, "reason"))
        for k in range(len(record.facts.not_run))
    )
    return Table(line(), columns("what", "why"), rows)


def revisit_table(record: Record) -> Table:
    """Conditions under which the answer may no longer hold."""
    rows = tuple((at(record, "facts", "revisit", k),) for k in range(len(record.facts.revisit)))
    return Table(line(), columns("condition"), rows)


def _pairs(title: str, rows: Sequence[tuple[str | Cell, Cell]]) -> Table:
    cells = tuple((line(name), value) for name, value in rows)
    return Table(line(title), columns("what", "value"), cells)


def _recipe_rows(record: Record, i: int, j: int) -> list[tuple[Cell, ...]]:
    variant = record.facts.cells[i].variants[j]
    path = ("facts", "cells", i, "variants", j)
    name = at(record, *path, "name")
    if variant.recipe is None:
        source = line("file ", at(record, *path, "file")) if variant.file else line("file")
        return [(name, source, *[NONE] * 10)]
    base = _base(record, (*path, "recipe"), variant.recipe)
    if not variant.recipe.quantize:
        return [(name, base, *[NONE] * 10)]
    counts = (at(record, *path, "sites"), at(record, *path, "dead"), at(record, *path, "left_out"))
    rows = []
    for k, entry in enumerate(variant.recipe.quantize):
        here = (*path, "recipe", "quantize", k)
        # The record counts the sites of a variant, not of each of its groups.
        sites = counts if k == 0 else (line("(above)"), line("(above)"), line("(above)"))
        rows.append((name, base, *_entry(record, here, entry), *sites))
    return rows


def _base(record: Record, path: Path, recipe: Recipe) -> Cell:
    """The base precision, what stays out of it, and in which type sites compute if not in it."""
    base = at(record, *path, "base")
    if recipe.keep_fp32:
        kept = [at(record, *path, "keep_fp32", k) for k in range(len(recipe.keep_fp32))]
        base = line(base, " but for ", joined(", ", kept))
    for k, entry in enumerate(recipe.quantize[:1]):
        if entry.dequantize not in ("base", recipe.base):
            base = line(base, ", sites in ", at(record, *path, "quantize", k, "dequantize"))
    return base


def _entry(record: Record, path: Path, entry: Quantize) -> tuple[Cell, ...]:
    return (
        at(record, *path, "group"),
        at(record, *path, "format"),
        _weights(record, path, entry),
        _activations(record, path, entry),
        at(record, *path, "zero_point") if _is_static_int8(entry) else NONE,
        _calibrator(record, path, entry),
        at(record, *path, "placement"),
    )


def _weights(record: Record, path: Path, entry: Quantize) -> Cell:
    weights = at(record, *path, "weights", "kind")
    if isinstance(entry.weights, PerBlock):
        weights = line(weights, " of ", at(record, *path, "weights", "size"))
    if entry.format == "int8":
        weights = line(weights, ", ", at(record, *path, "weight_range"), " range")
    return weights


def _activations(record: Record, path: Path, entry: Quantize) -> Cell:
    if entry.scheme == "weight_only":
        return line("left alone")
    kind = at(record, *path, "activations", "kind")
    if isinstance(entry.activations, PerBlock):
        kind = line(kind, " of ", at(record, *path, "activations", "size"))
    if entry.scheme == "dynamic":
        return line(kind, ", ", at(record, *path, "scheme"))
    return line(kind, ", ", at(record, *path, "sign")) if _is_static_int8(entry) else kind


def _calibrator(record: Record, path: Path, entry: Quantize) -> Cell:
    if not needs_ranges(entry):
        return NONE
    told = at(record, *path, "calibrator", "name")
    if entry.calibrator.name == "percentile":
        told = line(told, " ", at(record, *path, "calibrator", "percentile"))
    if entry.smooth is not None:
        told = line(told, ", SmoothQuant ", at(record, *path, "smooth"))
    if entry.smooth_insert:
        told = line(told, " with multiplications")
    return line(told, ", equalized") if entry.equalize else told


def _is_static_int8(entry: Quantize) -> bool:
    return entry.format == "int8" and entry.scheme == "static"


def _shapes(record: Record, path: Path, names: Iterable[str]) -> Cell:
    parts = [
        line(key(record, *path, name), " ", _dimensions(record, (*path, name)))
        for name in sorted(names)
    ]
    return joined(", ", parts)


def _dimensions(record: Record, path: Path) -> Cell:
    count = int(at(record, *path).text)
    return joined("×", [at(record, *path, k) for k in range(count)]) if count else line("scalar")
