"""A record as one HTML file that needs nothing else."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bitworth.record.address import written
from bitworth.record.pictures import Pictures
from bitworth.record.schema import Record
from bitworth.record.sections import answer, sections, title


def render_html(record: Record, pictures: Pictures) -> str:
    """The report as one self-contained file; values carry their address in ``data-bw``."""
    source = (files("bitworth.record") / "report.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["written"] = written
    return environment.from_string(source).render(
        title=title(record),
        answer=answer(record),
        kind=record.derived.decision.kind,
        # The compiler escapes the names that it writes into the picture.
        picture=Markup(pictures.speed_loss),
        time_picture=Markup(pictures.time_split or ""),
        sections=sections(record),
    )
