"""The work folder of one study: what is finished, so that a killed study resumes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bitworth.atomic import write_atomic
from bitworth.errors import UserError
from bitworth.measurement.device_lock import hold
from bitworth.record.store import canonical


class Workspace:
    """Finished stages as JSON files, and the folder for models, plans and arrays.

    Every stage is written whole or not at all, under a name that the study derives from its
    inputs; a stage that exists is never computed again.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.resumed = root.exists()

    def path(self, *parts: str) -> Path:
        """A path inside the folder; its parent exists."""
        path = self.root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{path.parent}: cannot be created ({error.strerror}); "
                "choose another folder with --output"
            ) from None
        return path

    def load(self, *parts: str) -> Any | None:
        """The finished stage of that name, None if it is not finished."""
        try:
            return json.loads((self.root.joinpath(*parts).with_suffix(".json")).read_bytes())
        except FileNotFoundError:
            return None

    def save(self, value: Any, *parts: str) -> None:
        """Finish a stage."""
        write_atomic(self.path(*parts).with_suffix(".json"), canonical(value))

    def without_paths(self, text: str) -> str:
        """``text`` without this machine's folders: an engine's message goes into the record."""
        for folder in (self.root.resolve(), self.root, Path(tempfile.gettempdir())):
            text = text.replace(f"{folder}/", "")
        return text

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of this folder.

        Raises:
            UserError: another process runs the same study.
        """
        with hold(self.path("lock"), "this study is running already"):
            yield

    def remove(self) -> None:
        """Remove all of it: the study is complete.

        Under another name first: a kill in the middle must leave no half of it to resume from.
        """
        gone = self.root.with_name(f"{self.root.name}.done-{os.getpid()}")
        self.root.replace(gone)
        shutil.rmtree(gone, ignore_errors=True)
