"""Renders the committed results into docs/peers.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.judge import FAMILIES, worse
from benchmarks.peers.results import Comparison, Error, Row, Run

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"
BEGIN = "<!-- peers: rendered by benchmarks.peers.report -->"
END = "<!-- peers: end -->"

NAMES = {
    "detector": "PP-OCRv6 detector",
    "recogniser": "PP-OCRv6 recogniser",
    "efficientnet": "EfficientNet-Lite0",
    "minilm": "all-MiniLM-L6-v2",
}
METHODS = {
    "int8_max": "int8 max",
    "int8_max_per_channel": "int8 max, per channel",
    "int8_max_symmetric": "int8 max, per channel, symmetric",
    "int8_entropy": "int8 entropy",
    "fp8_max": "fp8 max",
    "fp8": "fp8",
}


def insert(document: str, comparisons: Sequence[Comparison]) -> str:
    """The document with the rendered tables between its two markers.

    Raises:
        ValueError: the document has no place for them.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables: the document needs '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{render(comparisons)}\n{END}{after}"


def render(comparisons: Sequence[Comparison]) -> str:
    """All tables."""
    parts = [
        "### Scales\n",
        *_scales(comparisons),
        "\n### Held-out error\n",
        *_errors(comparisons),
        "\n### Causes\n",
        *_causes(comparisons),
        "\n### Decisions and versions\n",
        *_setting(comparisons),
    ]
    return "\n".join(parts) + "\n"


def _scales(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield (
        "| model | peer, method | activations both quantize | equal | within 1% | further apart "
        "| Bitworth alone | peer alone | weights of both | equal | within 1% | further apart |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for comparison in comparisons:
        for run in comparison.runs:
            cells = [NAMES[comparison.model], _form(run)]
            if run.failed:
                yield _line([*cells, f"no model: {_cell(run.failed)}", *[""] * 9])
                continue
            yield _line([*cells, *map(str, _counts(run))])


def _counts(run: Run) -> Iterator[int]:
    for kind, equal in (("activation", len(run.equal)), ("weight", len(run.equal_weights))):
        rows = [row for row in run.rows if row.kind == kind]
        both = [row for row in rows if row.ours is not None and row.theirs is not None]
        near = sum(row.apart <= 0.01 for row in both)
        yield from (len(both) + equal, equal, near, len(both) - near)
        if kind == "activation":
            yield sum(row.theirs is None for row in rows)
            yield sum(row.ours is None for row in rows)


def _errors(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield (
        "| model | peer, method | peer | Bitworth | its inputs alone | the peer's "
        "operations alone | peer's model, Bitworth's scales | peer's model, scales nudged "
        "| where Bitworth is over 10% above the best peer |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for comparison in comparisons:
        for methods in FAMILIES.values():
            for run in (r for r in comparison.runs if r.method in methods):
                figures = (
                    run.theirs,
                    run.ours,
                    run.ours_inputs_only,
                    run.ours_their_sites,
                    run.exchanged,
                )
                yield _line(
                    [
                        NAMES[comparison.model],
                        _form(run),
                        *map(_figure, figures),
                        "" if run.nudged is None else "{:.3g} to {:.3g}".format(*run.nudged),
                        worse(comparison, run),
                    ]
                )
        for name, found in comparison.others.items():
            yield _line([NAMES[comparison.model], name, _figure(found), *[""] * 6])


def _causes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    found: dict[tuple[str, str], list[tuple[Comparison, Run, Row]]] = {}
    for comparison in comparisons:
        for run in comparison.runs:
            for row in run.rows:
                found.setdefault((row.kind, row.cause), []).append((comparison, run, row))
    yield "| tensor | cause | rows | example: model, peer and method, tensor | Bitworth | peer |"
    yield "|---|---|--:|---|--:|--:|"
    for (kind, cause), rows in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]))):
        comparison, run, row = max(rows, key=lambda entry: entry[2].apart)
        example = f"{NAMES[comparison.model]}, {_form(run)}: `{row.tensor}`"
        if row.other:
            example += f" (`{row.other}`)"
        yield _line([kind, cause, str(len(rows)), example, _scale(row.ours), _scale(row.theirs)])


def _setting(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield "| model | samples to calibrate, held out | the second figure counts |"
    yield "|---|--:|---|"
    for comparison in comparisons:
        counts = f"{comparison.calibration}, {comparison.holdout}"
        yield _line([NAMES[comparison.model], counts, comparison.decision])
    versions = {
        f"{package} {version}"
        for comparison in comparisons
        for name, packages in comparison.versions.items()
        if name != "models"
        for package, version in packages.items()
        if package in ("nvidia-modelopt", "nncf") or (name, package) == ("onnxruntime", name)
    }
    yield f"\nPeers: {', '.join(sorted(versions))}."


def _form(run: Run) -> str:
    return f"{run.peer} {METHODS[run.method]}"


def _figure(found: Error | None) -> str:
    return "" if found is None else f"{found.relative_l2:.3g} ({found.agreement:.2f})"


def _scale(scale: float | None) -> str:
    return "" if scale is None else f"{scale:.6g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "/")[:80]
