"""What a study is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitworth.study.sections import StudyConfig


@dataclass(frozen=True)
class StudyRequest:
    """What to run.

    Attributes:
        config: the study.
        folder: of the study file, to which its paths are relative.
        output: folder under which records are kept.
        command: how it was started, for the record.
    """

    config: StudyConfig
    folder: Path
    output: Path
    command: str
