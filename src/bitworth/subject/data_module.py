"""Imports the Python file in which a user makes samples."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from bitworth.errors import UserError
from bitworth.subject.samples import Sample


def open_module(path: Path, function: str, count: int, seed: int) -> Callable[[], Iterator[Sample]]:
    """Return what starts a pass over ``function(count, seed)`` of the file at ``path``.

    Raises:
        UserError: no such file, it cannot be imported, or it has no such function. While
            streaming: the function raises, or yields something other than (inputs, target).
    """
    made = getattr(_import(path), function, None)
    if not callable(made):
        raise UserError(f"{path}: has no function '{function}(count, seed)'; add it")
    where = f"{path}:{function}"

    def stream() -> Iterator[Sample]:
        try:
            for i, item in enumerate(made(count, seed)):
                if not (isinstance(item, tuple) and len(item) == 2 and _is_mapping(item[0])):
                    raise UserError(
                        f"{where}: item {i} is no pair of inputs and target; yield "
                        "({'input': array}, target)"
                    )
                yield Sample(dict(item[0]), item[1])
        except UserError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise UserError(f"{where}: raised {type(error).__name__}: {_line(error)}") from error

    return stream


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the Python file that makes the samples")
    # A name of its own for each file, so that two files called inputs.py can both be in use.
    name = f"bitworth_data_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: is no Python file; give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a class up through sys.modules while the file is running.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        del sys.modules[name]
        raise UserError(f"{path}: cannot be imported ({_line(error)})") from error
    return module


def _is_mapping(item: object) -> bool:
    return isinstance(item, Mapping)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
