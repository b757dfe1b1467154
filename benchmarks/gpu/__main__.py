"""``python -m benchmarks.gpu OUT STUDY.toml...``: studies on a machine that only measures.

Each record is copied to OUT under its study's name; what is rendered from it is made elsewhere
(``bitworth rejudge RECORD --write``), so that the machine needs no package that draws.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bitworth.errors import UserError
from bitworth.record.render_terminal import render
from bitworth.record.store import read_record
from bitworth.study.config import read_study_file
from bitworth.study.progress import Reporter
from bitworth.study.request import StudyRequest
from bitworth.study.run import Interrupted, run_study


def measure(study: Path, out: Path) -> None:
    """Run one study and keep its record."""
    start = time.monotonic()
    command = f"bitworth study {study}"
    with TemporaryDirectory(dir=out.parent, prefix="study-") as folder:
        request = StudyRequest(read_study_file(study), study.parent, Path(folder), command)
        try:
            run_study(request, Reporter(Console(stderr=True, width=110)))
        except ImportError as error:  # the record is written before anything is drawn
            sys.stderr.write(f"not drawn here: {error}\n")
        except (UserError, Interrupted) as error:
            sys.stderr.write(f"{study}: {error}\n")
        for log in sorted(Path(folder).rglob("*.log")):
            sys.stderr.write(log.read_text(errors="replace")[-3000:])
        for record in sorted(Path(folder).glob("[!.]*/*/*.json")):
            Console(width=150).print(render(read_record(record)))
            for beside in record.parent.iterdir():
                if beside.suffix in (".json", ".gz"):
                    shutil.copyfile(beside, out / beside.name)
    sys.stdout.write(f"{study}: {time.monotonic() - start:.0f} s\n")


def main(out: Path, studies: list[Path]) -> int:
    """Run all of them, one after another."""
    out.mkdir(parents=True, exist_ok=True)
    for study in studies:
        measure(study, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
