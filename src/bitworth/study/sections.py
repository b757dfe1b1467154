"""The sections of ``study.toml``: their keys, types and defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bitworth.recipe.recipe import BasePrecision, CalibratorName

EngineName = Literal["onnxruntime", "openvino", "torch", "mock"]


class Section(BaseModel):
    """Base of all sections: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SubjectConfig(Section):
    """``[subject]``: the model under study.

    ``onnx`` is a path relative to the study file or, with ``package``, inside that installed
    package's folder. ``torch`` is a function that makes a module: ``package.module:factory``, or
    ``file.py:factory`` relative to the study file.
    """

    name: str
    onnx: str | None = None
    package: str | None = None
    torch: str | None = None
    base: BasePrecision = Field(default="fp32", description="of a PyTorch module's baseline")


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
    dtypes: dict[str, Literal["float32", "int64", "int32", "bool"]] = Field(
        default_factory=dict, description="of a PyTorch module's random inputs, if not float32"
    )


class CellConfig(Section):
    """``[[cell]]``: one engine with its options."""

    engine: EngineName
    threads: int = Field(default=0, ge=0, description="0: all cores of this process")
    optimization: Literal["all", "extended", "basic"] = "all"
    options: dict[str, str] = Field(default_factory=dict)
    mode: Literal["host", "throughput", "tail", "hot", "cold"] = "host"
    streams: int = Field(default=0, ge=0, description="in flight at once; 0: the engine chooses")
    batch: int | None = Field(default=None, ge=1, description="samples that one call takes")
    quantile: float = Field(default=0.99, gt=0.5, le=0.999, description="what the tail compares")


class GroupConfig(Section):
    """``[[group]]``: a named set of sites that meet every condition given.

    ``exclude`` takes sites out again. With ``attention`` the group holds products of two
    activations instead, all or none of an attention; no other group holds any.
    """

    name: str
    names: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    where: tuple[str, ...] = Field(default=(), description='such as "in_channels < 32"')
    first_blocks: int | None = Field(default=None, ge=1)
    last_blocks: int | None = Field(default=None, ge=1)
    top_share: float | None = Field(default=None, gt=0, le=1)
    exclude: tuple[str, ...] = ()
    attention: bool = False


class VariantConfig(Section):
    """``[[variant]]``: a named recipe, a base precision, or a file quantized elsewhere.

    What is None follows from the format. ``calibrators`` stands for as many variants, one each.
    """

    name: str
    format: (
        Literal["int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4", "bf16", "fp16", "fp32"]
        | None
    ) = None
    groups: tuple[str, ...] = ("all",)
    weights: Literal["per_tensor", "per_channel", "block"] | None = None
    block: int | None = Field(default=None, ge=2, description="elements that share a scale")
    activations: (
        Literal["per_tensor", "per_channel", "dynamic", "dynamic_per_row", "none"] | None
    ) = None
    sign: Literal["auto", "s8", "u8", "by_range"] = "auto"
    zero_point: Literal["auto", "symmetric", "asymmetric"] = "auto"
    weight_range: Literal["auto", "full", "reduced"] = "auto"
    placement: Literal["auto", "before_activation", "after_activation", "input_only"] = "auto"
    shared: tuple[str, ...] | None = Field(
        default=None, description="operators whose inputs share a scale; None: the preference"
    )
    residual: tuple[str, ...] | None = Field(
        default=None, description="operators that add in the format; None: the preference"
    )
    calibrator: CalibratorName = "max"
    calibrators: tuple[CalibratorName, ...] = ()
    percentile: float = Field(default=99.99, gt=50, le=100)
    smooth_quant: float | None = Field(default=None, ge=0, le=1, description="alpha")
    smooth_insert: bool = Field(
        default=False, description="multiply in front of sites where nothing takes the factors"
    )
    equalize: bool = False
    base: BasePrecision = "fp32"
    keep_fp32: tuple[str, ...] = Field(
        default=(), description="under a 16-bit base: operators and node names that stay in fp32"
    )
    dequantize: Literal["base", "fp32", "fp16", "bf16"] = "base"
    ignore_rules: tuple[str, ...] = Field(
        default=(), description="engine rules that leave no site of this variant out"
    )
    options: dict[str, str] = Field(
        default_factory=dict, description="engine options of this variant beside the cell's"
    )
    source: Literal["recipe", "file"] = "recipe"
    path: str | None = None
    engines: tuple[EngineName, ...] = ()


class FreeWinsConfig(Section):
    """``[free_wins]``: what is tried on the baseline before any variant."""

    standard: bool = Field(default=True, description="the engine's own list")
    batch: int | None = Field(default=None, ge=0, description="samples in a call; 0: no batch")


class FreeWinConfig(Section):
    """``[[free_win]]``: engine options to try on the baseline beside the standard ones."""

    name: str
    threads: int | None = Field(default=None, ge=1)
    optimization: Literal["all", "extended", "basic"] | None = None
    options: dict[str, str] = Field(default_factory=dict)
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
    free_wins: FreeWinsConfig = FreeWinsConfig()
    free_win: tuple[FreeWinConfig, ...] = ()
    quality: QualityConfig = QualityConfig()
    policy: PolicyConfig = PolicyConfig()
    timing: TimingConfig = TimingConfig()
