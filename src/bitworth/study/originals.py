"""The subject as the user gave it: an ONNX file, or a function that makes a PyTorch module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bitworth.study.config import subject_path
from bitworth.study.sections import SubjectConfig
from bitworth.study.torch_process import ModuleProcess
from bitworth.subject.onnx_model import OnnxModel, load
from bitworth.subject.torch_factory import factory_of


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch module in a process of its own.

    Attributes:
        process: the process.
    """

    process: ModuleProcess

    @property
    def identity_sha256(self) -> str:
        """Hash of the factory's source and of every tensor."""
        return str(self.process.identity["identity_sha256"])


Original = OnnxModel | TorchModel


@contextmanager
def opened(subject: SubjectConfig, folder: Path) -> Iterator[Original]:
    """The subject; the process of a PyTorch module ends with the context.

    Raises:
        UserError: it cannot be read or made.
    """
    if subject.torch is None:
        yield load(subject_path(subject, folder))
        return
    with tempfile.TemporaryDirectory(prefix="bitworth-subject-") as logs:
        process = ModuleProcess(factory_of(subject.torch, folder), Path(logs) / "subject.log")
        try:
            yield TorchModel(process)
        finally:
            process.close()
