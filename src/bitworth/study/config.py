"""``study.toml``: read, checked, and with every unknown key refused by name."""

from __future__ import annotations

import difflib
import importlib.util
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bitworth.errors import UserError

EngineName = Literal["onnxruntime", "openvino", "mock"]
#: Names that a study gives itself.
RESERVED = ("baseline", "baseline again", "reference", "as given")


class Section(BaseModel):
    """Base of all sections: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SubjectConfig(Section):
    """``[subject]``: the model under study.

    ``onnx`` is a path relative to the study file or, with ``package``, inside that installed
    package's folder.
    """

    name: str
    onnx: str
    package: str | None = None


class DataConfig(Section):
    """``[data]``: where calibration and held-out samples come from.

    ``source`` is a Python file with functions ``calibration(count, seed)`` and
    ``holdout(count, seed)``; or ``calibration`` and ``holdout`` name ``.npz`` files.
    """

    source: str | None = None
    calibration: str | None = None
    holdout: str | None = None
    calibration_samples: int = Field(default=96, ge=1)
    holdout_samples: int = Field(default=800, ge=1)
    seed: int = Field(default=0, ge=0)
    random_inputs: bool = False
    shapes: dict[str, tuple[int, ...]] = Field(default_factory=dict)


class CellConfig(Section):
    """``[[cell]]``: one engine with its options."""

    engine: EngineName
    threads: int = Field(default=0, ge=0, description="0: all cores of this process")
    options: dict[str, str] = Field(default_factory=dict)
    mode: Literal["host", "throughput", "tail"] = "host"
    streams: int = Field(default=0, ge=0, description="in flight at once; 0: the engine chooses")
    batch: int | None = Field(default=None, ge=1, description="samples that one call takes")
    quantile: float = Field(default=0.99, gt=0.5, le=0.999, description="what the tail compares")


class GroupConfig(Section):
    """``[[group]]``: a named set of sites."""

    name: str
    names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    top_share: float | None = Field(default=None, gt=0, le=1)


class VariantConfig(Section):
    """``[[variant]]``: a named recipe, a base precision, or a file quantized elsewhere."""

    name: str
    format: Literal["int8", "fp8_e4m3", "bf16"] | None = None
    groups: tuple[str, ...] = ("all",)
    weights: Literal["per_tensor", "per_channel"] = "per_channel"
    sign: Literal["auto", "s8", "u8", "by_range"] = "auto"
    zero_point: Literal["auto", "symmetric", "asymmetric"] = "auto"
    weight_range: Literal["auto", "full", "reduced"] = "auto"
    placement: Literal["auto", "before_activation", "after_activation", "input_only"] = "auto"
    calibrator: Literal["max", "percentile"] = "max"
    percentile: float = Field(default=99.99, gt=50, le=100)
    source: Literal["recipe", "file"] = "recipe"
    path: str | None = None
    engines: tuple[EngineName, ...] = ()


class QualityConfig(Section):
    """``[quality]``: ``metric`` is a Python file with ``METRICS`` and ``make_metric``."""

    metric: str | None = None


class PolicyConfig(Section):
    """``[policy]``: what a variant must reach to be shipped."""

    min_speedup: float = Field(default=1.05, gt=0)
    max_loss: dict[str, float] = Field(default_factory=dict)
    max_rel_l2: float | None = Field(default=None, gt=0)
    max_error_over_floor: float | None = Field(default=None, gt=0)


class TimingConfig(Section):
    """``[timing]``: precision to reach and minutes to spend on it, over all cells."""

    precision: float = Field(default=0.02, gt=0, lt=1)
    budget_minutes: float = Field(default=10.0, gt=0)
    min_sessions: int = Field(default=6, ge=2)
    max_sessions: int = Field(default=60, ge=2)
    delta: float = Field(default=0.01, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)
    until_settled: bool = False


class StudyConfig(Section):
    """A whole study file."""

    version: Literal[1]
    subject: SubjectConfig
    data: DataConfig
    cell: tuple[CellConfig, ...] = Field(min_length=1)
    group: tuple[GroupConfig, ...] = ()
    variant: tuple[VariantConfig, ...] = ()
    quality: QualityConfig = QualityConfig()
    policy: PolicyConfig = PolicyConfig()
    timing: TimingConfig = TimingConfig()


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
    groups = {g.name for g in config.group} | {"all"}
    for variant in config.variant:
        _check_variant(variant, groups, path)
    for number, cell in enumerate(config.cell, start=1):
        _check_cell(cell, f"{path}: cell {number} ({cell.engine})")
    for kind, names in (
        ("variant", [v.name for v in config.variant]),
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
    if config.package is None:
        return folder / config.onnx
    spec = importlib.util.find_spec(config.package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"subject.package: '{config.package}' is not installed; pip install {config.package}"
        )
    return Path(spec.submodule_search_locations[0]) / config.onnx


def _check_cell(cell: CellConfig, where: str) -> None:
    """A key that the cell's mode does not read would be a measurement that was not asked for."""
    for key, mode in (("streams", "throughput"), ("quantile", "tail")):
        if getattr(cell, key) != CellConfig.model_fields[key].default and cell.mode != mode:
            raise UserError(
                f'{where}: {key} is for mode = "{mode}" alone, and its mode is "{cell.mode}"; '
                f'set mode = "{mode}" or leave {key} out'
            )


def _check_variant(variant: VariantConfig, groups: set[str], path: Path) -> None:
    if variant.name in RESERVED:
        raise UserError(f"{path}: variant name '{variant.name}' is reserved; choose another")
    if variant.source == "file":
        if variant.path is None:
            raise UserError(f"{path}: variant '{variant.name}' has source = \"file\" but no path")
        return
    if variant.format is None:
        raise UserError(f"{path}: variant '{variant.name}' has no format; add format = \"int8\"")
    if variant.format == "bf16" and variant.groups != ("all",):
        raise UserError(
            f"{path}: variant '{variant.name}': bf16 is a precision of the whole model here; "
            "leave groups out"
        )
    for name in variant.groups:
        if name not in groups:
            near = difflib.get_close_matches(name, sorted(groups), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(groups))}"
            raise UserError(f"{path}: variant '{variant.name}' names no group '{name}'; {hint}")


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
