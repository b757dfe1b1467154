"""``study.toml``: read, checked, and with every unknown key refused by name."""

from __future__ import annotations

import difflib
import importlib.util
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bitworth.errors import UserError
from bitworth.study.sections import CellConfig, StudyConfig, SubjectConfig, VariantConfig
from bitworth.study.variant_checks import check_free_win, check_variant, expanded


def read_study_file(path: Path) -> StudyConfig:
    """Read and check a study file.

    Raises:
        UserError: missing, not TOML, an unknown key (with the nearest valid one), a wrong value, a
            variant that names no group, two of one name.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give a study file or an ONNX model") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not a TOML file ({error}); see examples/ocr/study.toml") from None
    return check(tree, path)


def check(tree: dict[str, Any], path: Path) -> StudyConfig:
    """Check a study's tree of values; ``path`` is for messages."""
    try:
        config = StudyConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{path}: {_first(error)}") from None
    config = config.model_copy(update={"variant": expanded(config.variant)})
    _check_subject(config, path)
    groups = {g.name for g in config.group} | {"all"}
    for variant in config.variant:
        check_variant(variant, groups, path)
    for number, cell in enumerate(config.cell, start=1):
        _check_cell(cell, f"{path}: cell {number} ({cell.engine})")
    for change in config.free_win:
        check_free_win(change, path)
    for kind, names in (
        ("variant", [v.name for v in config.variant]),
        ("free_win", [f.name for f in config.free_win]),
        ("group", [g.name for g in config.group]),
    ):
        for name in {n for n in names if names.count(n) > 1}:
            raise UserError(f"{path}: {kind} '{name}' is defined twice; rename one")
    if config.timing.max_sessions < config.timing.min_sessions:
        raise UserError(f"{path}: timing.max_sessions is below timing.min_sessions; raise it")
    return config


def checked(path: Path, **sections: Any) -> StudyConfig:
    """A study made of these sections, checked as if a file held them."""
    return check({"version": 1, **sections}, path)


def with_budget(config: StudyConfig, minutes: float, path: Path) -> StudyConfig:
    """``config`` with another budget."""
    tree = config.model_dump()
    tree["timing"]["budget_minutes"] = minutes
    return check(tree, path)


def with_until_settled(config: StudyConfig, path: Path) -> StudyConfig:
    """``config`` that goes on until every comparison is settled."""
    tree = config.model_dump()
    tree["timing"]["until_settled"] = True
    return check(tree, path)


def subject_path(config: SubjectConfig, folder: Path) -> Path:
    """Where the subject's file lies.

    Raises:
        UserError: the package is not installed.
    """
    assert config.onnx is not None
    if config.package is None:
        return folder / config.onnx
    spec = importlib.util.find_spec(config.package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"subject.package: '{config.package}' is not installed; pip install {config.package}"
        )
    return Path(spec.submodule_search_locations[0]) / config.onnx


#: Keys of a variant that a PyTorch module's lowering does not read.
_OF_ONNX = ("smooth_quant", "smooth_insert", "equalize", "keep_fp32", "shared", "residual", "path")


def _check_subject(config: StudyConfig, path: Path) -> None:
    """One kind of subject, on the engines that run it, with keys that mean something for it."""
    subject = config.subject
    if (subject.onnx is None) == (subject.torch is None):
        raise UserError(
            f"{path}: subject: give either onnx, a model file, or torch, a function that makes a "
            "module"
        )
    runs = "torch" if subject.torch is not None else "onnx"
    for number, cell in enumerate(config.cell, start=1):
        if (cell.engine == "torch") != (runs == "torch"):
            raise UserError(
                f"{path}: cell {number} ({cell.engine}): the subject is {_KINDS[runs]}; "
                + (
                    'use engine = "torch", or study what bitworth onnx makes of it'
                    if runs == "torch"
                    else 'engine = "torch" runs subject.torch = "package.module:factory"'
                )
            )
    if runs == "onnx":
        if subject.base != "fp32":
            raise UserError(
                f"{path}: subject.base is for a PyTorch module; an ONNX graph computes in its own "
                "types"
            )
        return
    fields = VariantConfig.model_fields
    for variant in config.variant:
        for key in _OF_ONNX:
            if getattr(variant, key) != fields[key].default:
                raise UserError(
                    f"{path}: variant '{variant.name}': {key} is for ONNX subjects; leave it out"
                )
        if variant.base != "fp32" and variant.base != subject.base:
            raise UserError(
                f"{path}: variant '{variant.name}': its base is that of the baseline, "
                f"{subject.base}; set subject.base instead"
            )


_KINDS = {"onnx": "an ONNX model", "torch": "a PyTorch module"}


def _check_cell(cell: CellConfig, where: str) -> None:
    """A key that the cell does not read would be a measurement that was not asked for."""
    if cell.optimization != "all" and cell.engine != "onnxruntime":
        raise UserError(
            f"{where}: optimization is for onnxruntime, the only engine with levels; leave it out"
        )
    if cell.mode in ("hot", "cold") and cell.engine not in ("torch", "mock"):
        raise UserError(
            f'{where}: mode = "{cell.mode}" is the time that a GPU takes itself, and {cell.engine} '
            'runs on the CPU here; use mode = "host"'
        )
    if cell.mode == "throughput" and cell.engine == "torch":
        raise UserError(f'{where}: mode = "throughput" is for engines on a CPU; use "host"')
    for key, mode in (("streams", "throughput"), ("quantile", "tail")):
        if getattr(cell, key) != CellConfig.model_fields[key].default and cell.mode != mode:
            raise UserError(
                f'{where}: {key} is for mode = "{mode}" alone, and its mode is "{cell.mode}"; '
                f'set mode = "{mode}" or leave {key} out'
            )


def _first(error: ValidationError) -> str:
    """The first fault of a validation, an unknown key with the nearest valid one."""
    faults = error.errors()
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(p) for p in fault["loc"])
    if fault["type"] != "extra_forbidden":
        return f"{where}: {fault['msg']}"
    section: Any = StudyConfig
    for part in fault["loc"][:-1]:
        if isinstance(part, str):
            section = _section(section, part)
    key = str(fault["loc"][-1])
    valid = sorted(section.model_fields)
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"valid keys: {', '.join(valid)}"
    return f"unknown key '{where}'; {hint}"


def _section(section: type[BaseModel], key: str) -> type[BaseModel]:
    annotation = section.model_fields[key].annotation
    inner = getattr(annotation, "__args__", (annotation,))[0]
    assert isinstance(inner, type)
    assert issubclass(inner, BaseModel)
    return inner
