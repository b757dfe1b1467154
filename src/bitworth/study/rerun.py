"""A study that runs again from its record: its own configuration, seed and model."""

from __future__ import annotations

import shlex
from pathlib import Path

from bitworth.errors import UserError
from bitworth.record.schema import Record
from bitworth.study.config import check, subject_path
from bitworth.study.originals import opened
from bitworth.study.request import StudyRequest
from bitworth.study.sections import SubjectConfig
from bitworth.subject.onnx_model import load


def rerun_request(
    record: Record, path: Path, folder: Path | None, output: Path, other_model: bool
) -> StudyRequest:
    """What to run, to study again what ``record`` studied.

    Args:
        record: the record.
        path: its file, for messages.
        folder: of the study file, to which its paths are relative; None: as the record's command
            has it, from here.
        output: folder for the new record.
        other_model: whether the model may be another one than was studied.

    Raises:
        UserError: its configuration is none of today's, or its model is not here or another one.
    """
    config = check(dict(record.facts.config), path)
    where = _folder(record.facts.command) if folder is None else folder
    if config.subject.torch is not None:
        _check_module(config.subject, where, record.facts.subject.sha256, other_model)
        return StudyRequest(config, where, output, record.facts.command)
    model = subject_path(config.subject, where)
    if not model.is_file():
        raise UserError(
            f"{model}: the studied model is not there; run from where the study ran, or give "
            "--folder, the folder of its study file"
        )
    if not other_model and load(model).identity_sha256 != record.facts.subject.sha256:
        raise UserError(
            f"{model}: is not the model that was studied (its hash differs); --other-model "
            "studies it all the same"
        )
    return StudyRequest(config, where, output, record.facts.command)


def _check_module(subject: SubjectConfig, folder: Path, studied: str, other_model: bool) -> None:
    """Raise UserError where the factory makes another module than was studied."""
    with opened(subject, folder) as original:
        if not other_model and original.identity_sha256 != studied:
            raise UserError(
                f"{subject.torch}: makes another module than was studied (its hash differs); "
                "--other-model studies it all the same"
            )


def _folder(command: str) -> Path:
    """The folder of the study file that a command names; else the current one."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return next((Path(word).parent for word in words if word.endswith(".toml")), Path())
