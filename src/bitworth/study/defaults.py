"""The study of a model that came without a study file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bitworth.errors import UserError
from bitworth.recipe import Site
from bitworth.study.config import checked
from bitworth.study.sections import GroupConfig, StudyConfig, VariantConfig
from bitworth.study.variant_checks import RESERVED
from bitworth.subject.onnx_model import InputSpec, load
from bitworth.subject.prepare import prepare
from bitworth.subject.sites import find_sites

#: The opset that int8 with a scale per channel needs, at least.
_OPSET = 13
#: The slowest sites that together take this share of the sites' time are a group of their own.
TOP_SHARE = 0.5
SLOWEST = "slowest half"


def default_study(
    model: Path,
    *,
    calibration: Path | None,
    holdout: Path | None,
    random_inputs: bool,
    shapes: dict[str, tuple[int, ...]],
    engines: Sequence[str],
    budget_minutes: float,
    max_rel_l2: float | None,
) -> StudyConfig:
    """A study of ``model``: bf16; int8 on each operator type, on the slowest half, cumulatively
    and on everything; fp8 on everything.

    Args:
        model: an ONNX file.
        calibration, holdout: ``.npz`` files.
        random_inputs: time only.
        shapes: sizes for random inputs with free dimensions.
        engines: engines to study on.
        budget_minutes: time to spend on timing.
        max_rel_l2: largest relative L2 error that may be shipped.

    Raises:
        UserError: no data given, or no site in the model.
    """
    original = load(model)
    if not random_inputs and (calibration is None or holdout is None):
        raise UserError(missing_data(model, original.inputs))
    if original.has_qdq:
        raise UserError(
            f"{model}: is quantized already (it has Q/DQ nodes) and is no honest baseline; "
            f"give its float original: bitworth compare ORIGINAL {model.name}"
        )
    sites = find_sites(prepare(original, _OPSET)).sites
    if not sites:
        raise UserError(f"{model}: has no Conv, Gemm or MatMul with a constant weight to quantize")
    groups, variants = default_variants(sites)
    return checked(
        model,
        subject={"name": model.stem, "onnx": str(model)},
        data={
            "calibration": None if calibration is None else str(calibration),
            "holdout": None if holdout is None else str(holdout),
            "random_inputs": random_inputs,
            "shapes": shapes,
        },
        cell=[{"engine": engine} for engine in engines],
        group=groups,
        variant=variants,
        policy={"max_rel_l2": max_rel_l2},
        timing={"budget_minutes": budget_minutes},
    )


def missing_data(model: Path, inputs: Sequence[InputSpec]) -> str:
    """What to give when no data was given."""
    names = ", ".join(f"{i.name} {_shape(i)}" for i in inputs)
    return (
        f"{model}: no data given; give --calibration c.npz and --holdout h.npz (keys: {names}), "
        "or --random-inputs to time only"
    )


def default_variants(
    sites: Sequence[Site],
) -> tuple[tuple[GroupConfig, ...], tuple[VariantConfig, ...]]:
    """Groups by operator type and by time share, and variants for each, cumulative and whole."""
    types = [name for name, _ in Counter(s.op_type for s in sites).most_common()]
    groups = [GroupConfig(name=t, op_types=(t,)) for t in types]
    groups.append(GroupConfig(name=SLOWEST, top_share=TOP_SHARE))
    variants = [
        VariantConfig(name="bf16", format="bf16"),
        VariantConfig(name="int8 all", format="int8"),
        VariantConfig(name=f"int8 {SLOWEST}", format="int8", groups=(SLOWEST,)),
    ]
    if len(types) > 1:
        variants += [VariantConfig(name=f"int8 {t}", format="int8", groups=(t,)) for t in types]
    # Cumulative ones; the first is a type alone, the last is everything: both are there already.
    variants += [
        VariantConfig(name="int8 " + "+".join(types[:n]), format="int8", groups=tuple(types[:n]))
        for n in range(2, len(types))
    ]
    variants.append(VariantConfig(name="fp8_e4m3 all", format="fp8_e4m3"))
    return tuple(groups), tuple(variants)


def comparison_study(
    base: Path,
    candidates: Sequence[Path],
    *,
    holdout: Path | None,
    random_inputs: bool,
    shapes: dict[str, tuple[int, ...]],
    engines: Sequence[str],
    budget_minutes: float,
    max_rel_l2: float | None,
) -> StudyConfig:
    """A study of models that were quantized elsewhere against their float original.

    Arguments as ``default_study``; ``candidates`` are ONNX files with the inputs and outputs of
    ``base``.

    Raises:
        UserError: no data given.
    """
    original = load(base)
    if not random_inputs and holdout is None:
        names = ", ".join(f"{i.name} {_shape(i)}" for i in original.inputs)
        raise UserError(
            f"{base}: no data given; give --holdout h.npz (keys: {names}), "
            "or --random-inputs to time only"
        )
    return checked(
        base,
        subject={"name": base.stem, "onnx": str(base)},
        data={
            "holdout": None if holdout is None else str(holdout),
            "random_inputs": random_inputs,
            "shapes": shapes,
        },
        cell=[{"engine": engine} for engine in engines],
        variant=[
            {"name": name, "source": "file", "path": str(path)}
            for name, path in zip(_distinct(candidates), candidates, strict=True)
        ],
        policy={"max_rel_l2": max_rel_l2},
        timing={"budget_minutes": budget_minutes},
    )


def _distinct(candidates: Sequence[Path]) -> list[str]:
    """A name for each candidate: its file's, numbered where another has it."""
    names: list[str] = []
    for path in candidates:
        name, number = path.stem, 1
        while name in names or name in RESERVED:
            number += 1
            name = f"{path.stem} #{number}"
        names.append(name)
    return names


def _shape(spec: InputSpec) -> str:
    dims = ("?" if d is None else str(d) for d in spec.shape or ())
    return f"[{', '.join(dims)}] {spec.dtype}"
