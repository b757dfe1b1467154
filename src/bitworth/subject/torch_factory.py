"""The function that makes a PyTorch module, named as ``package.module:factory`` or
``file.py:factory``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bitworth.errors import UserError

if TYPE_CHECKING:
    import torch

ADVICE = "name it as package.module:factory, or file.py:factory beside the study file"


@dataclass(frozen=True)
class Factory:
    """Where a module comes from.

    Attributes:
        name: as the study has it.
        folder: of the study file, to which a file is relative; empty for a package.
    """

    name: str
    folder: str = ""

    @property
    def parts(self) -> tuple[str, str]:
        """Module or file, and function.

        Raises:
            UserError: the name has no such two parts.
        """
        where, colon, function = self.name.rpartition(":")
        if not colon or not where or not function.isidentifier():
            raise UserError(f"subject.torch: '{self.name}' names no function; {ADVICE}")
        return where, function

    @property
    def file(self) -> Path | None:
        """The Python file that it names; None for a package."""
        where = self.parts[0]
        return Path(self.folder) / where if where.endswith(".py") else None


def factory_of(name: str, folder: Path) -> Factory:
    """The factory that a study in ``folder`` calls ``name``.

    Raises:
        UserError: the name has no two parts.
    """
    found = Factory(name, str(folder.resolve()))
    return found if found.file is not None else Factory(name)


def source_sha256(factory: Factory) -> str:
    """Hash of the file that holds the factory: another one may make another module.

    Raises:
        UserError: as ``load_function``.
    """
    path = inspect.getsourcefile(load_function(factory))
    return "" if path is None else sha256(Path(path).read_bytes()).hexdigest()


def load_function(factory: Factory) -> Callable[[], Any]:
    """The factory itself.

    Raises:
        UserError: it cannot be imported, or there is no such function.
    """
    function = factory.parts[1]
    made = getattr(_import(factory), function, None)
    if not callable(made):
        raise UserError(f"subject.torch: {factory.parts[0]} has no function '{function}'; add it")
    return made  # type: ignore[no-any-return]


def make_module(factory: Factory) -> torch.nn.Module:
    """The module, in evaluation mode and without gradients.

    Raises:
        UserError: as ``load_function``; it raises, or makes no module.
    """
    import torch

    made = load_function(factory)
    try:
        module = made()
    except Exception as error:  # the user's code may raise anything
        raise UserError(
            f"subject.torch: {factory.name} raised {type(error).__name__}: {_line(error)}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"subject.torch: {factory.name} makes a {type(module).__name__}; return a "
            "torch.nn.Module"
        )
    return module.eval().requires_grad_(False)


def _import(factory: Factory) -> ModuleType:
    where, path = factory.parts[0], factory.file
    try:
        if path is None:
            return importlib.import_module(where)
        return _import_file(path)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if path is None and error.name is not None and where.startswith(error.name):
            raise UserError(
                f"subject.torch: there is no module '{error.name}' here; {ADVICE}"
            ) from None
        raise UserError(f"subject.torch: {where} cannot be imported ({_line(error)})") from error
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"subject.torch: {where} cannot be imported ({_line(error)})") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"subject.torch: {path}: no such file; {ADVICE}")
    # A name of its own for each file, so that two files called model.py can both be in use.
    name = f"bitworth_factory_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"subject.torch: {path}: is no Python file; {ADVICE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
