"""Runs the whole comparison: environments, models, data, peers, results, document.

    python -m benchmarks.peers [--work FOLDER] [MODEL ...]

What is in FOLDER (build/peers) already is not made again. It takes about an hour on two cores, most
of it in the peers and in running quantized graphs without optimizations.
"""

from __future__ import annotations

import argparse
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import environments
from benchmarks.peers.compare import compare
from benchmarks.peers.errors import error
from benchmarks.peers.forms import FORMS, MODELS
from benchmarks.peers.report import DOCUMENT, insert
from benchmarks.peers.results import RESULTS, Comparison, read, write
from benchmarks.peers.subject import Files, Subject

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: Where a model comes from: a script of an example, or a member of rapidocr's wheel.
SCRIPTS = {
    "efficientnet": ROOT / "examples" / "efficientnet" / "make_model.py",
    "minilm": ROOT / "examples" / "minilm" / "make_model.py",
}
MEMBERS = {
    "detector": "rapidocr/models/PP-OCRv6_det_small.onnx",
    "recogniser": "rapidocr/models/PP-OCRv6_rec_small.onnx",
}


class Work:
    """The folder in which everything is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environments = folder / "environments"
        self.tokenizer = folder / "tokenizer.json"

    def model(self, name: str) -> Path:
        """The float model, made where it is not there."""
        path = self._place(f"models/{name}.onnx")
        if not path.exists():
            if name in MEMBERS:
                (wheel,) = (self.environments / "wheels").glob("rapidocr-*.whl")
                with zipfile.ZipFile(wheel) as packed:
                    path.write_bytes(packed.read(MEMBERS[name]))
            else:
                more = [self.tokenizer] if name == "minilm" else []
                self._python("models", SCRIPTS[name], path, *more)
        return path

    def data(self, name: str) -> Path:
        """Both splits of the samples."""
        path = self._place(f"data/{name}.npz")
        if not path.exists():
            more = [self.tokenizer] if name == "minilm" else []
            wheels = self.environments / "wheels"
            self._python("models", "-m", "benchmarks.peers.data", name, wheels, path, *more)
        return path

    def written(self, name: str, peer: str, method: str) -> tuple[Path | None, str]:
        """The model that a peer wrote, or its last word."""
        path = self._place(f"peers/{name}.{peer}.{method}.onnx")
        told = path.with_suffix(".failed")
        if not path.exists() and not told.exists():
            part = path.with_name(f"part.{path.name}")
            words = [method] if peer != "nncf" else []
            script = HERE / f"run_{peer}.py"
            given = (self.model(name), self.data(name), *words, part)
            # -P: nothing of this folder is taken for a package of the peer's.
            ran = self._python(peer, "-P", script, *given, check=False)
            path.with_suffix(".log").write_text(ran.stdout + ran.stderr)
            if ran.returncode == 0:
                part.replace(path)
            else:
                last = [line for line in ran.stderr.splitlines() if line.strip()] or [""]
                told.write_text(last[-1][:200] or f"exit status {ran.returncode}")
        return (path, "") if path.exists() else (None, told.read_text())

    def _place(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _python(
        self, name: str, *arguments: object, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        interpreter = environments.python(self.environments, name)
        command = [str(interpreter), *map(str, arguments)]
        return subprocess.run(command, check=check, capture_output=True, text=True, cwd=ROOT)


def one(work: Work, name: str, versions: dict[str, dict[str, str]]) -> Comparison:
    """One model against all peers."""
    written, failures = {}, {}
    for form in FORMS:
        path, told = work.written(name, form.peer, form.method)
        if path is None:
            failures[form.name] = told
        else:
            written[form.name] = path
    made = work.folder / "compared"
    made.mkdir(exist_ok=True)
    files = Files(work.model(name), work.data(name), written, failures, made)
    subject = Subject(name, files)
    found = compare(subject, versions)
    path, _ = work.written(name, "nncf", "int8")
    if path is None:
        return found
    nncf = error(name, subject.outputs(path), subject.reference)
    return replace(found, others={"nncf int8, default preset": nncf})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    options = parser.parse_args()
    work = Work(options.work.resolve())
    environments.make(work.environments)
    versions = {
        name: environments.versions(work.environments, name) for name in environments.ENVIRONMENTS
    }
    for name in options.models:
        write(RESULTS / f"{name}.json", one(work, name, versions))
        print(f"{name}: compared", flush=True)
    made = [RESULTS / f"{name}.json" for name in MODELS]
    if not all(path.exists() for path in made):
        return  # the document is about all four
    every = [read(path) for path in made]
    DOCUMENT.write_text(insert(DOCUMENT.read_text(), every))


if __name__ == "__main__":
    main()
