"""Where a study's results lie, and writing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitworth.atomic import write_atomic
from bitworth.record.pictures import draw
from bitworth.record.render_html import render_html
from bitworth.record.render_markdown import render_markdown, time_picture
from bitworth.record.schema import Record
from bitworth.record.store import replace_derived, write_record


@dataclass(frozen=True)
class OutputPaths:
    """The files of one study.

    Attributes:
        record: the record.
        readme: its tables as Markdown.
        report: its tables and pictures as one HTML file.
        picture: speed against loss, SVG.
        time_picture: where the time goes, SVG; of a study with profiles that compare.
    """

    record: Path
    readme: Path
    report: Path
    picture: Path
    time_picture: Path


#: How the file of a study ends that is not finished.
PARTIAL = ".partial.json"


def output_paths(folder: Path, id_: str) -> OutputPaths:
    """The files of the study ``id_`` in ``folder``."""
    return OutputPaths(
        record=folder / f"{id_}.json",
        readme=folder / f"{id_}.md",
        report=folder / f"{id_}.html",
        picture=folder / f"{id_}.svg",
        time_picture=folder / time_picture(f"{id_}.svg"),
    )


def write_outputs(record: Record, paths: OutputPaths) -> None:
    """Write the record first, then what is rendered from it.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    write_record(record, paths.record)
    _write_rendered(record, paths)


def write_rejudged(record: Record, path: Path) -> None:
    """Store a record's new conclusions in its file, and render what lies beside it again.

    Beside a partial record lies nothing.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    replace_derived(record.derived, path)
    if path.name.endswith(PARTIAL):
        return
    _write_rendered(record, output_paths(path.parent, path.stem))


def _write_rendered(record: Record, paths: OutputPaths) -> None:
    pictures = draw(record)
    write_atomic(paths.picture, pictures.speed_loss.encode())
    if pictures.time_split is not None:
        write_atomic(paths.time_picture, pictures.time_split.encode())
    write_atomic(paths.readme, render_markdown(record, paths.picture.name).encode())
    write_atomic(paths.report, render_html(record, pictures).encode())
